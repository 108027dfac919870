"""Read many rows, for ranges, scans and counts: rows in, JSON text out, never all of them at once.

Strategy: a pipeline of small stages over batches of rows. Each batch takes a few milliseconds, and the event loop is free in
between. Each partition yields its rows in the order of on-disk keys, so all partitions together are a merge. A stored value is
JSON already, or becomes JSON by itself, and is copied into the answer as text: nothing is parsed.

If the partitioning is scattered, a key may come from several partitions. Its rows are neighbours in the merge, and the newest
one counts, a tombstone too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from time import time_ns
from typing import Final, TypeVar

from queryable_app.config.topic_spec import ValueFormat
from queryable_app.errors import Failure, Reason
from queryable_app.serve.base.admission import YieldSlot
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE
from queryable_app.wire.serde import KeyCodec, value_to_json

BATCH_ROWS: Final = 512
BATCH_BYTES: Final = 1 << 20
PAGE_BYTES_MAX: Final = 8 << 20  # the row that exceeds it is the page's last

# Keys whose JSON is the key itself in quotes.
_PLAIN_KEY: Final = re.compile(rb"[ !#-\[\]-~]*")

T = TypeVar("T")

Batches = AsyncGenerator[list[RawRow], None]
Line = tuple[bytes, bytes]
"""On-disk key, and the row as JSON."""
ToLines = Callable[[list[RawRow]], list[Line]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range `[start, stop)` of on-disk keys; None is open."""

    start: bytes | None = None
    stop: bytes | None = None
    reverse: bool = False

    def contain(self, key: bytes) -> bool:
        return (self.start is None or key >= self.start) and (self.stop is None or key < self.stop)

    def after(self, last_key: bytes) -> Bounds:
        """Return the rest of the range once `last_key` has been read."""
        if self.reverse:
            return Bounds(self.start, last_key, True)
        return Bounds(last_key + b"\0", self.stop)

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


async def local_rows(replicas: Sequence[Replica], bounds: Bounds, yield_slot: YieldSlot) -> Batches:
    """Yield the rows of these replicas in key order, tombstones and expired ones too. Closing it releases the stores."""
    sources = [_rows_of(replica, bounds) for replica in replicas]
    rows = sources[0] if len(sources) == 1 else merge(*sources, reverse=bounds.reverse)
    try:
        while True:
            for replica in replicas:
                _ = replica.store  # raises once the replica has been removed from the node
            batch, size = [], 0
            for row in islice(rows, BATCH_ROWS):
                batch.append(row)
                size += len(row[2])
                if size > BATCH_BYTES:
                    break
            if not batch:
                return
            yield batch
            await yield_slot()
    finally:
        for source in sources:
            source.close()


def _rows_of(replica: Replica, bounds: Bounds) -> Generator[RawRow, None, None]:
    partition = replica.partition
    rows = replica.store.rows(bounds.start, bounds.stop, bounds.reverse)
    return ((key, partition, stored) for key, stored in rows)


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
                cut = next(
                    (i for i, row in enumerate(rows) if (row[0] < horizon if reverse else row[0] > horizon)),
                    len(rows),
                )
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


async def newest_of_each_key(batches: Batches) -> Batches:
    """Yield the newest row of each key; rows with the same key are neighbours."""
    newest: RawRow | None = None
    async with aclosing(batches):
        async for batch in batches:
            complete: list[RawRow] = []
            for row in batch:
                if newest is None or row[0] != newest[0]:
                    if newest is not None:
                        complete.append(newest)
                    newest = row
                elif _age(row) > _age(newest):
                    newest = row
            yield complete
    if newest is not None:
        yield [newest]


def _age(row: RawRow) -> tuple[int, int, int]:
    """Return what rows of one key are compared by: timestamp, offset and partition."""
    _, offset, timestamp_ms, _ = ROW_HEADER.unpack_from(row[2])
    return timestamp_ms, offset, row[1]


def to_lines(codec: KeyCodec, format: ValueFormat, single_lines: bool = False) -> ToLines:
    """Return a function from rows to JSON objects, without tombstones and expired rows.

    With `single_lines` each object is on one line, whatever white space the producer sent.
    """
    unpack, to_record, values_are_json = ROW_HEADER.unpack_from, codec.to_record, format == "json"

    def lines(batch: list[RawRow]) -> list[Line]:
        now_ms = time_ns() // 1_000_000
        made: list[Line] = []
        for disk_key, partition, stored in batch:
            flags, offset, timestamp_ms, expiry_ms = unpack(stored)
            if flags & TOMBSTONE or 0 < expiry_ms <= now_ms:
                continue
            value = stored[ROW_HEADER_SIZE:]
            if not values_are_json:
                value = value_to_json(value, format)
            elif single_lines and (b"\n" in value or b"\r" in value):
                value = value.replace(b"\n", b" ").replace(b"\r", b" ")  # JSON has them between tokens alone
            fields = (key_json(codec, to_record(disk_key)), value, partition, offset, timestamp_ms)
            made.append(
                (disk_key, b'{"key":%b,"value":%b,"partition":%d,"offset":%d,"timestamp":%d}' % fields)
            )
        return made

    return lines


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


async def page(batches: Batches, lines: ToLines, limit: int, reservation: AnswerReservation) -> Page:
    """Return the first `limit` rows, or fewer if they are large or the memory for answers is used up."""
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
    except BaseException as error:
        if items and isinstance(error, Failure) and error.reason is Reason.OVERLOADED:
            return Page(items, last_key)
        reservation.release(size)  # the read may start over with other nodes
        raise
    return Page(items, None)


async def ndjson(batches: Batches, lines: ToLines, limit: int | None) -> AsyncGenerator[bytes, None]:
    """Yield the rows as lines of JSON, many lines at a time."""
    left = limit
    async with aclosing(batches):
        async for batch in batches:
            made = lines(batch)
            if left is not None:
                made = made[:left]
                left -= len(made)
            if made:
                yield b"\n".join([line for _, line in made]) + b"\n"
            if left == 0:
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


async def count_local(replicas: Sequence[Replica], approximate: bool, yield_slot: YieldSlot) -> int:
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
