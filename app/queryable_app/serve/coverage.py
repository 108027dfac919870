"""Reads over several partitions: whose copies answer, which are missing, and what the answer says about that.

Strategy: a partition whose copy may not answer is never left out in silence. Either the whole read fails and names it, or
the caller allowed a part, and the answer names it. With `any` a copy that is still being built answers with what it
has, and is named as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import time_ns

from queryable_app.errors import Failure, Reason
from queryable_app.freshness import Asked, next_offset
from queryable_app.serve.copies import Copy
from queryable_app.serve.reads import Reads


@dataclass(frozen=True, slots=True)
class Coverage:
    copies: Mapping[int, Copy]
    missing: tuple[int, ...]  # of these there may be rows that the answer does not have
    positions: Mapping[int, int]  # as of which the answer holds; later rows may be in it too
    headers: bytes

    def fields(self) -> bytes:
        """The end of the answer's JSON object."""
        about = {"complete": not self.missing, "missing": self.missing, "positions": self.positions}
        return b"," + json.dumps(about, separators=(",", ":")).encode()[1:]


async def coverage(
    reads: Reads, partitions: Iterable[int], asked: Asked, deadline: float, partial: bool
) -> Coverage:
    """The copies that answer, caught up as far as was asked for. Raises Failure, naming what is missing."""
    wanted = sorted(partitions)
    needed = await reads.caught_up(asked, wanted, deadline)
    now_ms = time_ns() // 1_000_000
    reads.note_read()
    copies: dict[int, Copy] = {}
    refusals: dict[int, Failure] = {}
    for partition in wanted:
        try:
            copy = reads.judged(partition, asked, needed, now_ms)
            _ = copy.store  # one that could not be opened says so
            copies[partition] = copy
        except Failure as refusal:
            refusals[partition] = refusal
    if refusals and not partial:
        raise _all_or_nothing(refusals)
    incomplete = [p for p, copy in copies.items() if not copy.complete]
    positions = {p: next_offset(copy) for p, copy in copies.items()}
    headers = reads.freshness(list(copies.values()), now_ms) + reads.identity
    return Coverage(copies, tuple(sorted([*refusals, *incomplete])), positions, headers)


def _all_or_nothing(refusals: Mapping[int, Failure]) -> Failure:
    """One failure for all of them; a partition that is not there weighs more than one that is behind."""
    order = (Reason.WRONG_OWNER, Reason.NOT_AVAILABLE, Reason.NOT_FRESH_ENOUGH)
    worst = min(refusals.values(), key=lambda refusal: order.index(refusal.reason))
    more = f" (and {len(refusals) - 1} more partitions)" if len(refusals) > 1 else ""
    return Failure(
        worst.reason,
        worst.detail + more,
        f"{worst.advice}; or read the other partitions with partial=allow",
        retry_after_ms=worst.retry_after_ms,
        missing=tuple(sorted(refusals)),
    )


@asynccontextmanager
async def until(deadline: float) -> AsyncIterator[None]:
    """Work that ends at the deadline (loop time), finished or not."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise Failure(
            Reason.DEADLINE_EXCEEDED,
            "the answer was not finished in time",
            "ask for less at once, or for more time with deadline-ms",
        ) from None
