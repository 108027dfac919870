"""Take the rows of a read that match its conditions, within a bound on the rows that are looked at.

Strategy: a stage between reading rows and merging them. It removes what does not match, and expired rows and tombstones. The last
row of a batch that it removes becomes a tombstone without content: the stages behind it drop it as any other, but the merge and
the cursor know from it how far the rows have been looked at. So nothing else in the pipeline needs to know about filters.

Where a key may have rows in several partitions, the filter comes behind the stage that leaves one of them. Otherwise an
older row would match where the newest one does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import time_ns
from typing import Final

from queryable_app.aggregates.rendering import Render
from queryable_app.serve.base.look_budget import LookBudget
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.base.step_budget import ITEM_BYTES, PARSING_FACTOR, RENDERING_FACTOR, STEP_BYTES
from queryable_app.serve.node import Node
from queryable_app.serve.reads.scans import Batches
from queryable_app.serve.reads.window_rows import window_renderer
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE
from queryable_app.wire.version_keys import NOT_RETAINED
from queryable_app.wire.where import Where

LOOKED_AT: Final = ROW_HEADER.pack(TOMBSTONE, 0, 0, 0)
"""Stands for the stored bytes of a row that was looked at and removed, at the end of a batch."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Decide which rows of one view match. It is made once for each request, and holds nothing of its rows."""

    where: Where
    to_json: Render | None
    """From a stored value to JSON. None: it is JSON."""
    factor: int
    """How much more a byte costs here than one that is copied."""
    rows_expire: bool
    """Whether the expiry of a row is a time of the clock. That of a window or an entry is not."""

    def matches(self, stored: bytes, now_ms: int) -> bool:
        flags, _, _, expiry_ms = ROW_HEADER.unpack_from(stored)
        if flags & TOMBSTONE or (self.rows_expire and 0 < expiry_ms <= now_ms):
            return bool(flags & NOT_RETAINED)  # it makes the read fail
        value = stored[ROW_HEADER_SIZE:]
        return self.where.matches(value if self.to_json is None else self.to_json(value))

    def of_batch(self, batch: Sequence[RawRow]) -> list[RawRow]:
        """Return the rows of a short batch that match, and its last row, or what stands for it."""
        now_ms = time_ns() // 1_000_000
        return _with_end([row for row in batch if self.matches(row[2], now_ms)], batch)

    async def matching(self, batches: Batches, budget: LookBudget) -> Batches:
        """Yield the rows that match, in the same order. No batch is empty: its last row may stand for what was removed."""
        spent = 0
        async with aclosing(batches):
            async for batch in batches:
                now_ms = time_ns() // 1_000_000
                found: list[RawRow] = []
                size = 0
                for row in batch:
                    if spent >= STEP_BYTES:
                        spent = 0
                        await asyncio.sleep(0)
                    stored = row[2]
                    if self.matches(stored, now_ms):
                        found.append(row)
                    size += len(stored)
                    spent += ITEM_BYTES + len(stored) * self.factor
                if not batch:
                    continue
                budget.take(len(batch), size)
                yield _with_end(found, batch)


def _with_end(found: list[RawRow], batch: Sequence[RawRow]) -> list[RawRow]:
    """Add what stands for the last row of a batch, if it is not among those that match."""
    if batch and not (found and found[-1][0] == batch[-1][0]):
        last_key, partition, _ = batch[-1]
        found.append((last_key, partition, LOOKED_AT))
    return found


def row_filter(node: Node, where: Where | None) -> RowFilter | None:
    """Return the filter of a request to this node, or None if the request has no conditions."""
    if where is None:
        return None
    spec = node.spec.aggregate
    factor = PARSING_FACTOR if spec is None else RENDERING_FACTOR
    if spec is None or node.windows is None:
        return RowFilter(where, node.render, factor, node.has_single_rows)
    return RowFilter(where, window_renderer(spec, node.windows), factor, rows_expire=False)
