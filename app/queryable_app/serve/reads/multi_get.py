"""Look up many keys in one read, and write an item for each in the order of the request.

Strategy: keys of one partition go to RocksDB together, a batch at a time, and the event loop is free in between. A large JSON
value becomes a piece of the answer as a view of the row, without a second copy of its bytes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from time import time_ns
from typing import Final, NamedTuple

from queryable_app.aggregates.rendering import Render
from queryable_app.errors import Failure, Reason
from queryable_app.serve.base.admission import YieldSlot
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.base.combining import Combine
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.base.step_budget import ITEM_BYTES, RENDERING_FACTOR, StepBudget
from queryable_app.serve.reads.chosen_replica import ChosenReplica
from queryable_app.serve.reads.partitions_in_steps import partitions_in_steps
from queryable_app.serve.reads.scans import key_json
from queryable_app.serve.reads.stored_row import StoredRow, stored_row
from queryable_app.wire.disk_format import ROW_HEADER_SIZE
from queryable_app.wire.partitioners import Partitioning
from queryable_app.wire.serde import KeyCodec

VALUE_BYTES_MAX: Final = 64 << 20
"""The bound of one answer's values, over all nodes."""
KEYS_BETWEEN_YIELDS: Final = 512  # they take a few milliseconds; a read of more keys is a long read
_BATCH_KEYS: Final = 64
_FIRST_BATCH_KEYS: Final = 4  # the size of the values is not known yet
_BATCH_BYTES: Final = 1 << 20  # the target for later batches
_COPIED_BYTES_MAX: Final = 4096  # a larger value is a piece of its own

Rows = dict[bytes, tuple[int, bytes]]
"""On-disk key → partition and stored bytes of its row, which may be a tombstone."""
Piece = bytes | memoryview
"""A part of an answer's body."""
Keys = Mapping[int, Sequence[bytes]]
"""Partition → the on-disk keys to look up in it."""


class KeyLookup(NamedTuple):
    """A key of the request, and the partition to look it up in; None for every partition."""

    record_key: bytes
    disk_key: bytes
    partition: int | None


async def plan_lookups(
    record_keys: Sequence[bytes], codec: KeyCodec, partitioning: Partitioning
) -> tuple[list[KeyLookup], dict[int, list[bytes]]]:
    """Return a lookup for each key, in the order of the keys, and the on-disk keys for each partition, each key once."""
    to_disk = codec.to_disk
    lookups: list[KeyLookup] = []
    keys: dict[int, dict[bytes, None]] = {}
    steps = StepBudget()
    for start in range(0, len(record_keys), _BATCH_KEYS):
        batch = record_keys[start : start + _BATCH_KEYS]
        partitions = await partitions_in_steps(batch, partitioning, steps)
        portion = [
            KeyLookup(key, to_disk(key), partition) for key, partition in zip(batch, partitions, strict=True)
        ]
        for _, disk_key, partition in portion:
            for each in range(partitioning.partitions) if partition is None else (partition,):
                keys.setdefault(each, {})[disk_key] = None
        lookups += portion
        await steps.spend(_BATCH_KEYS * ITEM_BYTES * (1 + partitioning.scattered * partitioning.partitions))
    return lookups, {partition: list(distinct) for partition, distinct in keys.items()}


def add_rows(rows: Rows, batch: Sequence[RawRow], combine: Combine) -> int:
    """Add rows, combine each with the one that its key has already, and return by how many bytes `rows` has grown."""
    grown = 0
    for row in batch:
        disk_key, partition, stored = row
        before = rows.get(disk_key)
        if before is not None:
            _, partition, stored = combine((disk_key, *before), row)
            grown -= len(before[1])
        rows[disk_key] = partition, stored
        grown += len(stored)
    return grown


async def rows_of_keys(
    replicas: Mapping[int, ChosenReplica], keys: Keys, yield_slot: YieldSlot
) -> AsyncGenerator[tuple[int, list[RawRow]], None]:
    """Yield the rows of the keys, in order and in batches of about a megabyte, each with the number of keys looked up for it."""
    since_yield, batch_keys = 0, _FIRST_BATCH_KEYS
    for partition, replica in replicas.items():
        wanted = keys.get(partition, ())
        start = 0
        while start < len(wanted):
            if since_yield >= KEYS_BETWEEN_YIELDS:
                since_yield = 0
                await yield_slot()
            batch = wanted[start : start + batch_keys]
            start += len(batch)
            since_yield += len(batch)
            rows = [
                (key, partition, stored)
                for key, stored in zip(batch, replica.store.multi_get(list(batch)), strict=True)
                if stored is not None
            ]
            size = sum([len(stored) for _, _, stored in rows])
            batch_keys = max(1, min(_BATCH_KEYS, _BATCH_BYTES * len(batch) // max(1, size)))
            yield len(batch), rows


def values_too_large() -> Failure:
    return Failure(
        Reason.TOO_LARGE,
        f"the values of these keys are larger than {VALUE_BYTES_MAX} bytes together",
        "ask for fewer keys at once",
    )


async def items_json(
    lookups: Sequence[KeyLookup],
    rows: Rows,
    unknown: Collection[int],
    codec: KeyCodec,
    render: Render | None,
    reservation: AnswerReservation,
) -> list[Piece]:
    """Return one JSON item for each lookup, with commas between them.

    `found` is null for a key without a row if an `unknown` partition may hold it.
    """
    now_ms = time_ns() // 1_000_000
    pieces: list[Piece] = []
    size = 0
    steps = StepBudget()
    for lookup in lookups:
        await steps.spend(ITEM_BYTES)
        start = b'%b{"key":%b' % (b"," if pieces else b"", key_json(codec, lookup.record_key))
        raw = rows.get(lookup.disk_key)
        row = None if raw is None else stored_row(*raw)
        if row is None or not row.is_live(now_ms):
            pieces.append(start + _not_found(lookup.partition, unknown))
            continue
        value: Piece = memoryview(row.stored)[ROW_HEADER_SIZE:]
        if render is not None:
            await steps.spend(len(value) * RENDERING_FACTOR)
            value = render(bytes(value))
            reservation.take(len(value))
        size += len(value)
        if size > VALUE_BYTES_MAX:
            raise values_too_large()
        pieces += _found(start, row, value)
    return pieces


def _found(start: bytes, row: StoredRow, value: Piece) -> list[Piece]:
    """Return an item with a value, in one piece or, if the value is large, in three."""
    start += b',"found":true,"value":'
    end = b',"partition":%d,"offset":%d,"timestamp":%d}' % (row.partition, row.offset, row.timestamp_ms)
    if len(value) > _COPIED_BYTES_MAX:
        return [start, value, end]
    return [start + bytes(value) + end]


def _not_found(partition: int | None, unknown: Collection[int]) -> bytes:
    """Return the rest of an item without a value."""
    if partition is None:
        return b',"found":null}' if unknown else b',"found":false}'
    found = b"null" if partition in unknown else b"false"
    return b',"found":%b,"partition":%d}' % (found, partition)
