"""Read many rows, for ranges, scans and counts: rows in, JSON text out, never all of them at once.

Strategy: a pipeline of small stages over batches of rows. Each batch takes a few milliseconds, and the event loop is free in
between. Each partition yields its rows in the order of on-disk keys, so all partitions together are a merge. A stored value is
JSON already, or becomes JSON by itself, and is copied into the answer as text: nothing is parsed.

If the partitioning is scattered, a key may come from several partitions. Its rows are neighbours in the merge, and the newest
one counts, a tombstone too; aggregated states are merged.
"""

from __future__ import annotations

import asyncio
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from time import time_ns
from typing import Final, Literal, NamedTuple, TypeVar

from queryable_app.aggregates.rendering import Render
from queryable_app.errors import Failure, Reason
from queryable_app.serve.base.admission import YieldSlot
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.base.combining import Combine
from queryable_app.serve.base.look_budget import LookBudget
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads.chosen_replica import ChosenReplica
from queryable_app.serve.reads.past_rows import VersionRange, rows_as_of, versions
from queryable_app.serve.reads.window_seeks import PASSED_OVER, rows_of_starts
from queryable_app.wire.as_of import AsOf
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE
from queryable_app.wire.index_keys import after_value
from queryable_app.wire.serde import KeyCodec

BATCH_ROWS: Final = 512
BATCH_BYTES: Final = 1 << 20
_READ_AHEAD_MIN: Final = 4  # rows of each replica
PAGE_BYTES_MAX: Final = 8 << 20  # the row that exceeds it is the page's last

# Keys whose JSON is the key itself in quotes.
_PLAIN_KEY: Final = re.compile(rb"[ !#-\[\]-~]*")

_PLAIN_KEY_ITEM: Final = b'{"key":"%b","value":%b,"partition":%d,"offset":%d,"timestamp":%d}'
_ITEM: Final = b'{"key":%b,"value":%b,"partition":%d,"offset":%d,"timestamp":%d}'
_key_of_row: Final = itemgetter(0)

T = TypeVar("T")

Batches = AsyncGenerator[list[RawRow], None]
IndexPart = Literal["rows", "values"]
"""What a read takes from an index: rows, with entries in place of their keys; or values, with numbers of rows."""
Line = tuple[bytes, bytes]
"""On-disk key, and the row as JSON."""
ToLines = Callable[[list[RawRow]], list[Line]]
KeyOf = Callable[[bytes], bytes]
ToText = Callable[[list[RawRow], int], tuple[bytes, int]]
"""From rows, and the most lines to return, to the text of the lines and their number."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range `[start, stop)` of on-disk keys; None is open."""

    start: bytes | None = None
    stop: bytes | None = None
    reverse: bool = False
    starts: tuple[int, int] | None = None
    """Take only windows with starts in this range, which excludes its end. None: all rows."""
    index: IndexPart | None = None
    """The range is one of index entries (wire/index_keys.py), and says what to read of them. None: it is one of rows."""
    as_of: AsOf | None = None
    """The moment of which the rows are wanted. None: the present."""
    versions: VersionRange | None = None
    """The range is one of versions of a key (wire/version_keys.py). None: it is one of rows."""

    def contain(self, key: bytes) -> bool:
        return (self.start is None or key >= self.start) and (self.stop is None or key < self.stop)

    def after(self, last_key: bytes) -> Bounds:
        """Return the rest of the range once `last_key` has been read."""
        if self.reverse:
            return replace(self, stop=last_key)
        return replace(self, start=after_value(last_key) if self.index == "values" else last_key + b"\0")

    @staticmethod
    def of_prefix(prefix: bytes) -> Bounds:
        """Return the range of the keys with this prefix: up to the prefix with its last byte below 0xff raised by one."""
        head = prefix.rstrip(b"\xff")
        return Bounds(prefix, head[:-1] + bytes((head[-1] + 1,)) if head else None)


@dataclass(frozen=True, slots=True)
class Page:
    """The rows of a page as JSON."""

    items: list[bytes]
    last_key: bytes | None
    """The next page starts after it; None: there is no next page."""


async def local_rows(
    replicas: Sequence[ChosenReplica], bounds: Bounds, yield_slot: YieldSlot, wanted: int = BATCH_ROWS
) -> Batches:
    """Yield the rows of these replicas in key order, tombstones and expired ones too. Closing it releases the stores.

    If fewer rows than a batch are `wanted`, less is read ahead.
    """
    sources = [_ReplicaRows(replica, bounds) for replica in replicas]
    share = max(1, len(sources))
    rows = max(1, min(BATCH_ROWS // share, max(_READ_AHEAD_MIN, 2 * wanted // share)))
    try:
        while True:
            for replica in replicas:
                _ = replica.store  # raises once the replica has left the node or started over
            for source in sources:
                source.read(rows, BATCH_BYTES // share)
            due = _due_rows(sources, bounds.reverse)
            if not due:
                return
            passes_over = bounds.starts is not None or bounds.as_of is not None
            batch = [row for row in due if row[2] is not PASSED_OVER] if passes_over else due
            if batch:
                yield batch
            await yield_slot()
    finally:
        for source in sources:
            source.close()


class _ReplicaRows:
    """Read the rows of one replica ahead, so that rows of several are merged many at a time."""

    def __init__(self, replica: ChosenReplica, bounds: Bounds) -> None:
        self.pending: list[RawRow] = []
        self.ended = False
        self._large = False  # the last read ended at `bytes_max`
        self._partition = replica.partition
        rows = replica.store.rows
        if bounds.index is not None:
            index = replica.store.index
            entries = index.rows if bounds.index == "rows" else index.counts_of_values
            self._rows = entries(replica.store, bounds.start, bounds.stop, bounds.reverse)
        elif bounds.as_of is not None:
            self._rows = rows_as_of(replica, bounds.as_of, bounds.start, bounds.stop, bounds.reverse)
        elif bounds.versions is not None:
            self._rows = versions(replica, bounds.versions, bounds.start, bounds.stop, bounds.reverse)
        elif bounds.starts is None:
            self._rows = rows(bounds.start, bounds.stop, bounds.reverse)
        else:
            self._rows = rows_of_starts(rows, bounds.start, bounds.stop, bounds.reverse, *bounds.starts)
        self.close = self._rows.close

    def read(self, rows_max: int, bytes_max: int) -> None:
        """Read up to `rows_max` more rows if fewer are pending. The row that exceeds `bytes_max` is the last.

        After such a row, all pending rows are taken before more are read. So at most twice `bytes_max` and one row are pending.
        """
        pending, partition = self.pending, self._partition
        if self.ended or (pending and (self._large or len(pending) >= rows_max)):
            return
        expected = len(pending) + rows_max
        size = 0
        for key, stored in islice(self._rows, rows_max):
            pending.append((key, partition, stored))
            size += len(stored)
            if size > bytes_max:
                break
        self._large = size > bytes_max
        self.ended = not self._large and len(pending) < expected


def _due_rows(sources: Sequence[_ReplicaRows], reverse: bool) -> list[RawRow]:
    """Take and merge the pending rows that no source can yield a row before."""
    if len(sources) == 1:
        due, sources[0].pending = sources[0].pending, []
        return due
    lasts = [source.pending[-1][0] for source in sources if not source.ended]
    horizon = (max(lasts) if reverse else min(lasts)) if lasts else None
    due = []
    for source in sources:
        count = _count_due(source.pending, horizon, reverse)
        due += source.pending[:count]
        del source.pending[:count]
    due.sort(reverse=reverse)
    return due


def _count_due(rows: Sequence[RawRow], horizon: bytes | None, reverse: bool) -> int:
    """Return how many rows, which are in key order, are not behind the horizon."""
    if horizon is None or not rows:
        return len(rows)
    if reverse:
        return bisect_left(rows, True, key=lambda row: row[0] < horizon)
    return bisect_right(rows, horizon, key=_key_of_row)


async def merge_sources(sources: Sequence[Batches], reverse: bool) -> Batches:
    """Merge sources that are each in key order. A row is due when no source can yield one before it."""
    pending: list[list[RawRow]] = [[] for _ in sources]
    ended = [False] * len(sources)
    try:
        while True:
            empty = [n for n, rows in enumerate(pending) if not rows and not ended[n]]
            batches = await gather_or_cancel([anext(sources[n], []) for n in empty])
            for n, rows in zip(empty, batches, strict=True):
                pending[n], ended[n] = rows, not rows
            lasts = [rows[-1][0] for rows in pending if rows]
            if not lasts:
                return
            horizon = max(lasts) if reverse else min(lasts)
            due: list[list[RawRow]] = []
            for n, rows in enumerate(pending):
                cut = _count_due(rows, horizon, reverse)
                due.append(rows[:cut])
                pending[n] = rows[cut:]
            yield list(merge(*due, reverse=reverse))
    finally:
        for source in sources:
            await source.aclose()


async def gather_or_cancel(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return all results. If one fails, cancel the others and wait for their end before raising.

    A source cannot be closed while it is being read, and no work goes on for a read that is over.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def one_row_of_each_key(batches: Batches, combine: Combine) -> Batches:
    """Yield one row of each key; rows with the same key are neighbours."""
    newest: RawRow | None = None
    async with aclosing(batches):
        async for batch in batches:
            complete: list[RawRow] = []
            for row in batch:
                if newest is None or row[0] != newest[0]:
                    if newest is not None:
                        complete.append(newest)
                    newest = row
                else:
                    newest = combine(newest, row)
            yield complete
    if newest is not None:
        yield [newest]


class _Columns(NamedTuple):
    """The live rows of a batch, column by column: many rows are formatted in one call."""

    template: bytes
    """The JSON of one row."""
    disk_keys: Sequence[bytes]
    """What the rows are in order of: their keys, or index entries."""
    keys: Sequence[bytes]
    values: Sequence[bytes]
    partitions: Sequence[int]
    offsets: Sequence[int]
    timestamps: Sequence[int]

    def fields(self) -> Iterator[tuple[bytes, bytes, int, int, int]]:
        """Iterate over what the template takes for each row."""
        return zip(self.keys, self.values, self.partitions, self.offsets, self.timestamps, strict=True)


def _columns(
    batch: Sequence[RawRow], codec: KeyCodec, render: Render | None, key_of: KeyOf | None
) -> _Columns | None:
    """Return the rows that are neither tombstones nor expired; None if there are none."""
    if not batch:
        return None
    disk_keys, partitions, stored = zip(*batch, strict=True)
    flags, offsets, timestamps, expiries = zip(*map(ROW_HEADER.unpack_from, stored), strict=True)
    if any(flags) or any(expiries):
        live = live_rows(batch, time_ns() // 1_000_000)
        if len(live) < len(batch):
            return _columns(live, codec, render, key_of)
    values = [each[ROW_HEADER_SIZE:] for each in stored]
    if render is not None:
        values = [render(value) for value in values]
    row_keys = disk_keys if key_of is None else [key_of(entry) for entry in disk_keys]
    if are_plain_keys(codec, row_keys):
        return _Columns(_PLAIN_KEY_ITEM, disk_keys, row_keys, values, partitions, offsets, timestamps)
    keys = [key_json(codec, codec.to_record(row_key)) for row_key in row_keys]
    return _Columns(_ITEM, disk_keys, keys, values, partitions, offsets, timestamps)


def live_rows(batch: Sequence[RawRow], now_ms: int) -> list[RawRow]:
    """Return the rows that are neither tombstones nor expired."""
    unpack = ROW_HEADER.unpack_from
    return [
        row
        for row in batch
        for flags, _, _, expiry_ms in (unpack(row[2]),)
        if not flags & TOMBSTONE and not 0 < expiry_ms <= now_ms
    ]


def to_lines(codec: KeyCodec, render: Render | None, key_of: KeyOf | None = None) -> ToLines:
    """Return a function from rows to JSON objects, without tombstones and expired rows.

    `key_of` returns the row's key for rows that have index entries in place of their keys."""

    def lines(batch: list[RawRow]) -> list[Line]:
        columns = _columns(batch, codec, render, key_of)
        if columns is None:
            return []
        items = [columns.template % fields for fields in columns.fields()]
        return list(zip(columns.disk_keys, items, strict=True))

    return lines


def to_text(codec: KeyCodec, render: Render | None, key_of: KeyOf | None = None) -> ToText:
    """Return a function from rows to lines of JSON objects, without tombstones and expired rows, and the number of lines.

    Each object is on one line, whatever white space the producer sent.
    """

    def text(batch: Sequence[RawRow], limit: int) -> tuple[bytes, int]:
        columns = _columns(batch, codec, render, key_of)
        if columns is None:
            return b"", 0
        values = b"".join(columns.values)
        if b"\n" in values or b"\r" in values:  # JSON has them between tokens alone
            single = [value.replace(b"\n", b" ").replace(b"\r", b" ") for value in columns.values]
            columns = columns._replace(values=single)
        count = min(limit, len(columns.values))
        fields = chain.from_iterable(islice(columns.fields(), count))
        return (columns.template + b"\n") * count % tuple(fields), count

    return text


def are_plain_keys(codec: KeyCodec, record_keys: Iterable[bytes]) -> bool:
    """Return whether the JSON of each key is the key itself in quotes."""
    return codec.format == "string" and _PLAIN_KEY.fullmatch(b"".join(record_keys)) is not None


def key_json(codec: KeyCodec, record_key: bytes) -> bytes:
    """Return the key as an item has it; a key that its format cannot express has its encoding beside it."""
    if codec.format == "string" and _PLAIN_KEY.fullmatch(record_key):
        return b'"%b"' % record_key
    text, encoding = codec.to_json(record_key)
    return text if encoding is None else b'%b,"keyEncoding":"%b"' % (text, encoding.encode())


async def within_budget(batches: Batches, reservation: AnswerReservation) -> Batches:
    """Yield the same batches, and take the size of each from the reservation while it is being read."""
    async with aclosing(batches):
        async for batch in batches:
            size = sum([len(stored) for _, _, stored in batch])
            reservation.take(size)
            try:
                yield batch
            finally:
                reservation.release(size)


async def page(
    batches: Batches,
    lines: ToLines,
    limit: int,
    reservation: AnswerReservation,
    looks: LookBudget | None = None,
) -> Page:
    """Return the first `limit` rows, or fewer if they are large, if the memory for answers is used up, or if enough rows have
    been looked at for them. Such a read does not look for one more row to know whether there is a next page."""
    items: list[bytes] = []
    last_key: bytes | None = None
    size = 0
    try:
        async with aclosing(batches):
            async for batch in batches:
                for disk_key, line in lines(batch):
                    if len(items) == limit or size > PAGE_BYTES_MAX:
                        return Page(items, last_key)
                    reservation.take(len(line))
                    items.append(line)
                    last_key = disk_key
                    size += len(line)
                if looks is not None and batch and (len(items) == limit or looks.is_spent):
                    return Page(items, batch[-1][0])
    except BaseException as error:
        if items and isinstance(error, Failure) and error.reason is Reason.OVERLOADED:
            return Page(items, last_key)
        reservation.release(size)  # the read may start over with other nodes
        raise
    return Page(items, None)


async def ndjson(batches: Batches, text: ToText, limit: int | None) -> AsyncGenerator[bytes, None]:
    """Yield the rows as lines of JSON, many lines at a time, and nothing in place of rows that are no lines."""
    left = sys.maxsize if limit is None else limit
    async with aclosing(batches):
        async for batch in batches:
            lines, count = text(batch, left)
            left -= count
            yield lines
            if not left:
                return


async def count(batches: AsyncIterator[list[RawRow]]) -> int:
    """Count the rows that are neither tombstones nor expired."""
    live = 0
    async for batch in batches:
        now_ms = time_ns() // 1_000_000
        for _, _, stored in batch:
            flags, _, _, expiry_ms = ROW_HEADER.unpack_from(stored)
            live += not (flags & TOMBSTONE or 0 < expiry_ms <= now_ms)
    return live


async def count_local(replicas: Sequence[ChosenReplica], approximate: bool, yield_slot: YieldSlot) -> int:
    """Count the keys of these replicas, each of which must be in one of them only.

    With `approximate`, rows are read only where a replica has no estimate yet.
    """
    estimated, now_ms = 0, time_ns() // 1_000_000
    if approximate:
        estimates = [(replica, replica.store.keys.count(now_ms)) for replica in replicas]
        estimated = sum(keys for _, keys in estimates if keys is not None)
        replicas = [replica for replica, keys in estimates if keys is None]
    if not replicas:
        return estimated
    async with aclosing(local_rows(replicas, Bounds(), yield_slot)) as batches:
        return estimated + await count(batches)
