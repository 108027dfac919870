"""Read rows by a secondary index: the rows of a range of values in the order of the values, or the values with numbers of rows.

Strategy: entries take the place of keys in a scan (reads/scans.py), so merging, paging, streaming and forwarding are those of
scans. If the partitioning is scattered, an older row of a key may have an entry in another partition. Then the keys of each batch
are looked up in all partitions, and a row counts only if it is the newest of its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice
from time import time_ns
from typing import Final

from queryable_app.aggregates.rendering import Render
from queryable_app.config.indexes import IndexSpec
from queryable_app.errors import Failure, Reason
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.base.combining import added_counts
from queryable_app.serve.base.look_budget import LookBudget
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads.coverage import Coverage
from queryable_app.serve.reads.covered_reads import covered_rows, look_up_keys
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.row_filter import row_filter
from queryable_app.serve.reads.scans import (
    Batches,
    Bounds,
    Line,
    ToLines,
    ToText,
    one_row_of_each_key,
    to_lines,
    to_text,
)
from queryable_app.serve.store.index_family import COUNT_BYTES
from queryable_app.wire.disk_format import ROW_HEADER, TOMBSTONE
from queryable_app.wire.index_keys import value_end, value_json
from queryable_app.wire.serde import KeyCodec
from queryable_app.wire.where import Where

_ONE: Final = (1).to_bytes(COUNT_BYTES)
_LOOKUP_SECONDS_MIN: Final = 1.0


@dataclass(frozen=True, slots=True)
class IndexReader:
    """Read one index of a view."""

    spec: IndexSpec
    number: int

    def row_key(self, entry: bytes) -> bytes:
        """Return the on-disk key of an entry's row."""
        return entry[value_end(entry, self.spec.type) :]

    def batches(
        self,
        reads: Reads,
        covered: Coverage,
        lookups: AnswerReservation,
        bounds: Bounds,
        deadline: float,
        reservation: AnswerReservation | None,
        limit: int | None,
        where: Where | None = None,
        looks: LookBudget | None = None,
    ) -> Batches:
        """Yield what the bounds name, of all covered partitions, in the order of the index.

        All but `lookups` are as for `covered_rows`. `lookups` takes the size of the rows that are looked up a second time.
        """
        if not reads.partitioning.scattered:
            return covered_rows(reads, covered, bounds, deadline, reservation, limit, where, looks)
        if reads.node.spec.aggregate is not None:
            raise _no_index_of_merged_groups()
        rows = covered_rows(reads, covered, replace(bounds, index="rows"), deadline, reservation, limit)
        seconds = max(_LOOKUP_SECONDS_MIN, deadline - asyncio.get_running_loop().time())
        newest = self._newest(reads, covered, rows, seconds, lookups)
        row_matches = row_filter(reads.node, where)
        if row_matches is not None:
            newest = row_matches.matching(newest, LookBudget() if looks is None else looks)
        if bounds.index == "rows":
            return newest
        return one_row_of_each_key(self._counts(newest), added_counts)

    async def _newest(
        self,
        reads: Reads,
        covered: Coverage,
        batches: Batches,
        seconds: float,
        reservation: AnswerReservation,
    ) -> Batches:
        """Yield the rows that are the newest of their key."""
        partitions = [*covered.local, *(each for positions in covered.remote.values() for each in positions)]
        async with aclosing(batches):
            async for batch in batches:
                keys = [*dict.fromkeys([self.row_key(entry) for entry, _, _ in batch])]
                deadline = asyncio.get_running_loop().time() + seconds
                rows = await look_up_keys(
                    reads, covered, dict.fromkeys(partitions, keys), deadline, reservation
                )
                reservation.release(sum([len(stored) for _, stored in rows.values()]))
                yield [
                    (entry, partition, stored)
                    for entry, partition, stored in batch
                    if rows.get(self.row_key(entry)) == (partition, stored)
                ]

    async def _counts(self, batches: Batches) -> Batches:
        """Yield the value of each live row, with the number 1."""
        async with aclosing(batches):
            async for batch in batches:
                now_ms = time_ns() // 1_000_000
                yield [
                    (entry[: value_end(entry, self.spec.type)], partition, _ONE)
                    for entry, partition, stored in batch
                    if _is_live(stored, now_ms)
                ]

    def lines(self, codec: KeyCodec, render: Render | None, bounds: Bounds) -> ToLines:
        """Return a function from rows, or from values with numbers, to JSON objects."""
        if bounds.index == "values":
            return lambda batch: list(self._groups(batch))
        return to_lines(codec, render, self.row_key)

    def text(self, codec: KeyCodec, render: Render | None, bounds: Bounds) -> ToText:
        """Return a function from rows, or from values with numbers, to lines of JSON, and the number of lines."""
        if bounds.index == "rows":
            return to_text(codec, render, self.row_key)

        def text(batch: list[RawRow], limit: int) -> tuple[bytes, int]:
            found = [line + b"\n" for _, line in islice(self._groups(batch), limit)]
            return b"".join(found), len(found)

        return text

    def _groups(self, batch: Sequence[RawRow]) -> Iterator[Line]:
        for value, _, stored in batch:
            if count := int.from_bytes(stored):
                shown, truncated = value_json(value, self.spec.type)
                more = b',"truncated":true' if truncated else b""
                yield value, b'{"value":%b,"count":%d%b}' % (shown, count, more)


async def count_rows(batches: Batches) -> int:
    """Add up the numbers of all values."""
    counted = 0
    async with aclosing(batches):
        async for batch in batches:
            counted += sum([int.from_bytes(stored) for _, _, stored in batch])
    return counted


def _is_live(stored: bytes, now_ms: int) -> bool:
    flags, _, _, expiry_ms = ROW_HEADER.unpack_from(stored)
    return not flags & TOMBSTONE and not 0 < expiry_ms <= now_ms


def _no_index_of_merged_groups() -> Failure:
    return Failure(
        Reason.NO_SUCH_RESOURCE,
        "the records of a group are in several partitions, because its producers partition keys in different ways; "
        "the index has no results over all of them",
        "scan the view at /v1/scan, or let all producers of the topic use one partitioner and make a new revision",
    )
