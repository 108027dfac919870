"""Hash the keys of one request in steps, between which the event loop serves other connections.

Strategy: FNV-1a runs byte by byte in Python, so a key of a megabyte takes 60 ms. The other algorithms run in C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from queryable_app.serve.base.step_budget import STEP_BYTES, StepBudget
from queryable_app.wire.partitioners import FNV1A_START, Partitioning, fnv1a_end, fnv1a_more

_PIECE_BYTES: Final = 16 * 1024  # a millisecond
_BYTEWISE: Final = STEP_BYTES // _PIECE_BYTES  # the work of a byte, beside that of a byte which C handles


async def partitions_in_steps(
    record_keys: Sequence[bytes], partitioning: Partitioning, steps: StepBudget
) -> list[int | None]:
    """Return `partitioning.partition_of` for each key."""
    if not partitioning.hashes_bytewise:
        return [partitioning.partition_of(key) for key in record_keys]
    partitions: list[int | None] = []
    for key in record_keys:
        hashed = FNV1A_START
        for start in range(0, len(key), _PIECE_BYTES):
            piece = key[start : start + _PIECE_BYTES]
            hashed = fnv1a_more(hashed, piece)
            await steps.spend(len(piece) * _BYTEWISE)
        partitions.append(fnv1a_end(hashed) % partitioning.partitions)
    return partitions
