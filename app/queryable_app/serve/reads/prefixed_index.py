"""Read an index for a caller that may read only the keys with some prefixes.

Strategy: rows of other callers shape neither the answer, nor its cursor, nor how much is read. The entries of one value are in
the order of their keys, so a read of one value narrows the range of entries to each prefix. Entries of several values are spread
among those of all callers. Then the caller's own rows are read by key, their entries are computed from their values as the store
does it, and the first ones in the order of the index are the answer. Each page reads these rows again, so they have a bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from time import time_ns
from typing import Final

from queryable_app.errors import Failure, Reason
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.base.combining import added_counts
from queryable_app.serve.base.look_budget import PAGE_LOOK_BYTES_MAX, PAGE_LOOKS_MAX, LookBudget
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.base.step_budget import PARSING_FACTOR, RENDERING_FACTOR
from queryable_app.serve.reads.coverage import Coverage
from queryable_app.serve.reads.covered_reads import covered_rows
from queryable_app.serve.reads.index_reads import IndexReader
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.rendering_steps import in_rendering_steps
from queryable_app.serve.reads.scans import BATCH_ROWS, Batches, Bounds, live_rows, one_row_of_each_key
from queryable_app.serve.store.index_family import COUNT_BYTES
from queryable_app.wire.index_entries import RowIndexes
from queryable_app.wire.index_keys import after_value, value_end
from queryable_app.wire.where import Where

OWN_ROWS_MAX: Final = PAGE_LOOKS_MAX
"""The rows with the caller's prefixes that one read of several values looks at."""


@dataclass(frozen=True, slots=True)
class PrefixedIndexReader(IndexReader):
    """Read the rows of one index whose keys have one of some prefixes. No prefix begins another one."""

    indexes: RowIndexes
    prefixes: tuple[bytes, ...]

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
        value = self._only_value(bounds)
        if value is None:
            return self._own_rows(reads, covered, lookups, bounds, deadline, reservation, limit, where)
        parts = [
            part for prefix in self.prefixes if (part := part_with_prefix(bounds, value + prefix)) is not None
        ]
        found = in_turn(
            # A dataclass with slots is a copy of its class, in which `super()` does not work.
            IndexReader.batches(
                self, reads, covered, lookups, part, deadline, reservation, limit, where, looks
            )
            for part in (reversed(parts) if bounds.reverse else parts)
        )
        return one_row_of_each_key(found, added_counts) if bounds.index == "values" else found

    def _only_value(self, bounds: Bounds) -> bytes | None:
        """Return the value, with the index number, that all entries of the range have; None: they may have several."""
        start, stop = bounds.start or b"", bounds.stop
        try:
            end = value_end(start, self.spec.type)
        except ValueError:
            return None
        value = start[:end]
        return value if len(start) >= end and stop is not None and stop <= after_value(value) else None

    async def _own_rows(
        self,
        reads: Reads,
        covered: Coverage,
        held: AnswerReservation,
        bounds: Bounds,
        deadline: float,
        reservation: AnswerReservation | None,
        limit: int | None,
        where: Where | None,
    ) -> Batches:
        """Yield the first entries of the caller's rows, in the order of the index, or the values with numbers of rows."""
        looks = LookBudget(OWN_ROWS_MAX + 1, PAGE_LOOK_BYTES_MAX)
        rows: list[RawRow] = []
        counts: Counter[bytes] = Counter()
        size = 0
        try:
            for prefix in self.prefixes:
                own = Bounds.of_prefix(prefix)
                found = covered_rows(reads, covered, own, deadline, reservation, None, where, looks)
                # Parsing a value costs more than copying it; the event loop is free in between.
                factor = PARSING_FACTOR if reads.node.spec.aggregate is None else RENDERING_FACTOR
                async with aclosing(in_rendering_steps(found, factor)) as batches:
                    async for batch in batches:
                        if where is None:
                            looks.take(len(batch), sum([len(stored) for _, _, stored in batch]))
                        if looks.is_spent:
                            raise _too_many_rows()
                        for row in self._entries(batch, bounds):
                            taken = len(row[0])
                            if bounds.index == "values":
                                counts[row[0][: value_end(row[0], self.spec.type)]] += 1
                            else:
                                rows.append(row)
                                taken += len(row[2])
                            held.take(taken)
                            size += taken
                        if limit is not None and len(rows) >= 2 * limit + BATCH_ROWS:
                            rows = _first(rows, bounds, limit)
                            left = sum([len(entry) + len(stored) for entry, _, stored in rows])
                            held.release(size - left)
                            size = left
            if bounds.index == "values":
                rows = [(value, 0, number.to_bytes(COUNT_BYTES)) for value, number in counts.items()]
            rows = _first(rows, bounds, limit)
            for start in range(0, len(rows), BATCH_ROWS):
                yield rows[start : start + BATCH_ROWS]
        finally:
            held.release(size)

    def _entries(self, batch: list[RawRow], bounds: Bounds) -> Iterator[RawRow]:
        """Iterate over the entries of live rows that are in the range, each with the row that it is of."""
        for key, partition, stored in live_rows(batch, time_ns() // 1_000_000):
            for value in self.indexes.entries(stored)[0]:
                entry = value + key
                if value[0] == self.number and bounds.contain(entry):
                    yield entry, partition, stored


def part_with_prefix(bounds: Bounds, prefix: bytes) -> Bounds | None:
    """Return the part of a range whose keys, or entries, have the prefix; None: there is none."""
    allowed = Bounds.of_prefix(prefix)
    assert allowed.start is not None
    start = allowed.start if bounds.start is None else max(bounds.start, allowed.start)
    stops = [stop for stop in (bounds.stop, allowed.stop) if stop is not None]
    stop = min(stops, default=None)
    if stop is not None and stop <= start:
        return None
    return replace(bounds, start=start, stop=stop)


def _first(rows: list[RawRow], bounds: Bounds, limit: int | None) -> list[RawRow]:
    """Return the first rows in the order of the read."""
    return sorted(rows, key=lambda row: row[0], reverse=bounds.reverse)[:limit]


async def in_turn(sources: Iterator[Batches]) -> Batches:
    """Yield the batches of each source after those of the one before."""
    for source in sources:
        async with aclosing(source) as batches:
            async for batch in batches:
                yield batch


def _too_many_rows() -> Failure:
    return Failure(
        Reason.TOO_LARGE,
        "a read of several values of an index looks at all rows that the token allows, and they are more than "
        f"{OWN_ROWS_MAX}, or larger than {PAGE_LOOK_BYTES_MAX >> 20} MiB",
        "name one value of the index with eq, which has no such bound, or page through /v1/scan with where",
    )
