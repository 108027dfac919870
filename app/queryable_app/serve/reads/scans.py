"""Reads over many rows: ranges, scans, counts. Rows in, JSON text out, never all of them at once.

Strategy: a pipeline of small stages over batches of rows, a few milliseconds of work each, with the event loop free in
between. Each partition gives its rows in the order of on-disk keys, so all of them together are a merge. A stored value
is JSON already, or becomes it by itself, and is copied into the answer as text: nothing is parsed.

While the partitioner is not known a key may come from several partitions; its rows follow one another in the merge, and
the newest one counts, a tombstone too.
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
PAGE_BYTES_MAX: Final = 8 << 20  # the row that goes beyond it is the page's last

# Keys whose JSON is themselves in quotes.
_PLAIN_KEY: Final = re.compile(rb"[ !#-\[\]-~]*")

T = TypeVar("T")

Batches = AsyncGenerator[list[RawRow], None]
Line = tuple[bytes, bytes]
"""On-disk key, and the row as JSON."""
ToLines = Callable[[list[RawRow]], list[Line]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """`[start, stop)` in on-disk keys; None is open."""

    start: bytes | None = None
    stop: bytes | None = None
    reverse: bool = False

    def hold(self, key: bytes) -> bool:
        return (self.start is None or key >= self.start) and (self.stop is None or key < self.stop)

    def behind(self, last_key: bytes) -> Bounds:
        """What is left when `last_key` was the last one."""
        if self.reverse:
            return Bounds(self.start, last_key, True)
        return Bounds(last_key + b"\0", self.stop)

    @staticmethod
    def of_prefix(prefix: bytes) -> Bounds:
        """Up to the first key behind all that begin so: the last byte that can be raised is."""
        head = prefix.rstrip(b"\xff")
        return Bounds(prefix, head[:-1] + bytes((head[-1] + 1,)) if head else None)


@dataclass(frozen=True, slots=True)
class Page:
    items: list[bytes]
    last_key: bytes | None  # where the next page goes on; None: there is none


async def local_rows(replicas: Sequence[Replica], bounds: Bounds, yield_slot: YieldSlot) -> Batches:
    """The rows of these copies, tombstones and expired ones too, with a pause after each batch. Closing it releases the
    stores."""
    sources = [_rows_of(replica, bounds) for replica in replicas]
    rows = sources[0] if len(sources) == 1 else merge(*sources, reverse=bounds.reverse)
    try:
        while True:
            for replica in replicas:
                _ = replica.store  # one that has left the node, and whose time is over, says so
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
    """Several sources, each in key order, as one. A row is given on when no source can have one before it."""
    held: list[list[RawRow]] = [[] for _ in sources]
    ended = [False] * len(sources)
    try:
        while True:
            empty = [n for n, rows in enumerate(held) if not rows and not ended[n]]
            for n, rows in zip(
                empty, await gather_or_cancel([anext(sources[n], []) for n in empty]), strict=True
            ):
                held[n], ended[n] = rows, not rows
            lasts = [rows[-1][0] for rows in held if rows]
            if not lasts:
                return
            horizon = max(lasts) if reverse else min(lasts)
            ready: list[list[RawRow]] = []
            for n, rows in enumerate(held):
                cut = next(
                    (i for i, row in enumerate(rows) if (row[0] < horizon if reverse else row[0] > horizon)),
                    len(rows),
                )
                ready.append(rows[:cut])
                held[n] = rows[cut:]
            yield list(merge(*ready, reverse=reverse))
    finally:
        for source in sources:
            await source.aclose()


async def gather_or_cancel(work: Iterable[Awaitable[T]]) -> list[T]:
    """What comes of each, at once. When one fails the others have ended before that is said: a source cannot be closed
    while it is being read, and nobody is to work for a read that is over."""
    doing = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*doing)
    finally:
        for each in doing:
            each.cancel()
        await asyncio.gather(*doing, return_exceptions=True)


async def newest_of_each_key(batches: Batches) -> Batches:
    """Of rows with the same key, which follow one another, the newest."""
    held: RawRow | None = None
    async with aclosing(batches):
        async for batch in batches:
            kept: list[RawRow] = []
            for row in batch:
                if held is None or row[0] != held[0]:
                    if held is not None:
                        kept.append(held)
                    held = row
                elif _age(row) > _age(held):
                    held = row
            yield kept
    if held is not None:
        yield [held]


def _age(row: RawRow) -> tuple[int, int, int]:
    _, offset, timestamp_ms, _ = ROW_HEADER.unpack_from(row[2])
    return timestamp_ms, offset, row[1]


def to_lines(codec: KeyCodec, format: ValueFormat, single_lines: bool = False) -> ToLines:
    """Rows → JSON objects; rows that nobody may read any more are left out. With `single_lines` each is on one line,
    whatever white space the producer sent."""
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
    """The key as it stands in an item; one that its format cannot express is marked."""
    if codec.format == "string" and _PLAIN_KEY.fullmatch(record_key):
        return b'"%b"' % record_key
    text, encoding = codec.to_json(record_key)
    return text if encoding is None else b'%b,"keyEncoding":"%b"' % (text, encoding.encode())


async def counted(batches: Batches, share: AnswerReservation) -> Batches:
    """The same batches; each takes of the share for as long as it is read."""
    async with aclosing(batches):
        async for batch in batches:
            size = sum([len(stored) for _, _, stored in batch])
            share.take(size)
            try:
                yield batch
            finally:
                share.release(size)


async def page(batches: Batches, lines: ToLines, limit: int, share: AnswerReservation) -> Page:
    """The first `limit` rows. A page of large rows ends earlier, and so does one for which there is no more memory; its
    cursor goes on."""
    items: list[bytes] = []
    last_key: bytes | None = None
    size = 0
    try:
        async with aclosing(batches):
            async for batch in batches:
                for disk_key, line in lines(batch):
                    if len(items) == limit or size > PAGE_BYTES_MAX:
                        return Page(items, last_key)
                    share.take(len(line))
                    items.append(line)
                    last_key = disk_key
                    size += len(line)
    except BaseException as error:
        if items and isinstance(error, Failure) and error.reason is Reason.OVERLOADED:
            return Page(items, last_key)
        share.release(size)  # it may begin again, with other nodes
        raise
    return Page(items, None)


async def ndjson(batches: Batches, lines: ToLines, limit: int | None) -> AsyncGenerator[bytes, None]:
    """A line a row, in chunks."""
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
    counted = 0
    async for batch in batches:
        now_ms = time_ns() // 1_000_000
        for _, _, stored in batch:
            flags, _, _, expiry_ms = ROW_HEADER.unpack_from(stored)
            counted += not (flags & TOMBSTONE or 0 < expiry_ms <= now_ms)
    return counted


async def count_local(replicas: Sequence[Replica], approximate: bool, yield_slot: YieldSlot) -> int:
    """Count the keys of these copies; a key must not be in two of them. A replica that has no estimate yet is read."""
    estimated, now_ms = 0, time_ns() // 1_000_000
    if approximate:
        estimates = [(replica, replica.store.keys.count(now_ms)) for replica in replicas]
        estimated = sum(keys for _, keys in estimates if keys is not None)
        replicas = [replica for replica, keys in estimates if keys is None]
    if not replicas:
        return estimated
    async with aclosing(local_rows(replicas, Bounds(), yield_slot)) as batches:
        return estimated + await count(batches)
