"""What a key's read answers, decided once for both ways in.

Strategy: `Reads.point` looks at the copies of this node, here and now: it neither waits nor forwards, so the fast lane
can call it before there is a task. It returns the finished answer, found or not, or raises the failure that says why
this node may not answer; whoever can wait (`Reads.caught_up`) or forward takes it from there.

When the producers' partitioner is not known, every partition may hold the key, and the newest row of all of them, a
tombstone too, is the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from time import monotonic, time_ns
from typing import Final, NamedTuple
from zlib import crc32

from queryable_app.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE
from queryable_app.errors import Failure, Reason
from queryable_app.freshness import Asked, Consistency, judge, lag_ms, lag_records, next_offset, position_text
from queryable_app.http_text import BYTES, Answer, header_text, matches_etag, problem_answer
from queryable_app.partitioners import SCATTER, partition_for
from queryable_app.serde import value_to_json
from queryable_app.serve.copies import Copy
from queryable_app.kafka_clients import KafkaAway
from queryable_app.serve.node import Node

_FRESHNESS: Final = (
    b"qt-position: %b\r\nqt-role: %b\r\nqt-lag-records: %d\r\nqt-lag-ms: %d\r\nqt-epoch: %d\r\nqt-hops: 0\r\n"
)
_COMPLETE: Final = Asked()  # what a copy must be before it may say that a key is not there
_NOTHING_NEEDED: Final[Mapping[int, int]] = {}


class Found(NamedTuple):
    """A row as it was read. Ordered by age: of several rows of a key the greatest is the newest."""

    timestamp_ms: int
    offset: int
    partition: int
    expiry_ms: int
    tombstone: bool
    stored: bytes

    def live(self, now_ms: int) -> bool:
        return not self.tombstone and not 0 < self.expiry_ms <= now_ms

    @property
    def value(self) -> bytes:
        return self.stored[ROW_HEADER_SIZE:]


def found(partition: int, stored: bytes) -> Found:
    flags, offset, timestamp_ms, expiry_ms = ROW_HEADER.unpack_from(stored)
    return Found(timestamp_ms, offset, partition, expiry_ms, bool(flags & TOMBSTONE), stored)


class Reads:
    """The reads of one node, with what their answers have in common made once."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.copies = node.copies
        read = node.spec.read
        consistency = Consistency(read.consistency)
        bound = read.max_lag_ms if consistency is Consistency.BOUNDED else None
        self.defaults = Asked(consistency, max_lag_ms=bound)
        """What a read gets that asks for nothing."""
        self.waits = consistency is Consistency.STRONG
        """Reads wait even when they ask for nothing."""
        application = node.settings.application_id
        self.identity = b"qt-served-by: %b\r\nqt-application: %b\r\n" % (
            header_text(node.settings.name),
            header_text(application),
        )
        self._counters = node.counters
        self._to_disk = node.codec.to_disk
        self._format = node.spec.stored_format
        # An entity tag names record and revision: the same record has another value behind other SQL.
        self._revision = b"%08x" % crc32(application.encode())
        self._caching = b"cache-control: no-cache\r\nvary: accept\r\n" + self.identity

    def point(
        self,
        record_key: bytes,
        asked: Asked,
        needed: Mapping[int, int] = _NOTHING_NEEDED,
        form: str = "",
        if_none_match: str | None = None,
    ) -> Answer:
        """The answer for a key, from the copies of this node as they are now. `needed` has the positions to have been
        reached; `form` is BYTES for the value as it is stored."""
        copies = self.copies
        algorithm = copies.algorithm
        now_ms = time_ns() // 1_000_000
        self.note_read()
        if algorithm == SCATTER:
            partitions: Sequence[int] = range(copies.partitions)
            row = self.newest(record_key, partitions, asked, needed, now_ms)
            freshness = self.freshness([copies.by_partition[p] for p in partitions], now_ms)
        else:
            partition = partition_for(record_key, algorithm, copies.partitions)
            partitions = (partition,)
            copy = self.judged(partition, asked, needed, now_ms)
            stored = copy.store.get(self._to_disk(record_key))
            row = None if stored is None else found(partition, stored)
            freshness = self._freshness_of_one(copy, now_ms)
        if row is None or not row.live(now_ms):
            return self._absent(record_key, partitions, freshness, now_ms)
        return self._found(row, freshness, form, if_none_match)

    def note_read(self) -> None:
        """Ingest leaves room for reads while there are some."""
        self.node.last_read_at = monotonic()

    def judged(self, partition: int, asked: Asked, needed: Mapping[int, int], now_ms: int) -> Copy:
        """The copy here, if it may answer; otherwise the failure that says why not."""
        copy = self.copies.by_partition.get(partition)
        if copy is None:
            raise not_here(partition)
        refusal = judge(copy, asked, now_ms, needed.get(partition))
        if refusal is not None:
            raise refusal
        return copy

    def newest(
        self,
        record_key: bytes,
        partitions: Iterable[int],
        asked: Asked,
        needed: Mapping[int, int],
        now_ms: int,
    ) -> Found | None:
        """The newest row of the key in any of the partitions; it may be a tombstone."""
        disk_key, rows = self._to_disk(record_key), []
        for partition in partitions:
            stored = self.judged(partition, asked, needed, now_ms).store.get(disk_key)
            if stored is not None:
                rows.append(found(partition, stored))
        return max(rows, default=None)

    async def caught_up(
        self, asked: Asked, partitions: Collection[int], deadline: float
    ) -> Mapping[int, int]:
        """Wait, up to the deadline (loop time), for what `asked` needs of the copies here; returns what that is. Whether
        it was reached is for `point` to see."""
        if asked.consistency is Consistency.AT_LEAST:
            needed: Mapping[int, int] = {p: o for p, o in asked.min_positions.items() if p in partitions}
        elif asked.consistency is Consistency.STRONG:
            needed = await self._log_ends(partitions, deadline)
        else:
            return _NOTHING_NEEDED
        here = self.copies.by_partition
        behind = [(p, n) for p, n in needed.items() if p in here and here[p].position < n]
        await asyncio.gather(*(self.copies.wait_for(p, n, deadline) for p, n in behind))
        return needed

    async def _log_ends(self, partitions: Collection[int], deadline: float) -> Mapping[int, int]:
        why = "Kafka did not say in time where the log ends"
        try:
            async with asyncio.timeout_at(deadline):
                return await self.node.log_end.ends([p for p in partitions if p in self.copies.by_partition])
        except TimeoutError:
            pass
        except KafkaAway as away:
            why = f"Kafka cannot be asked where the log ends: {away}"
        raise Failure(
            Reason.NOT_FRESH_ENOUGH,
            why,
            "retry, or ask with consistency=bounded for what is here",
            retry_after_ms=1000,
        )

    def partitions_of(self, record_key: bytes) -> Sequence[int]:
        """Where the key may be: one partition, or all of them while the partitioner is not known."""
        copies = self.copies
        if copies.algorithm == SCATTER:
            return range(copies.partitions)
        return (partition_for(record_key, copies.algorithm, copies.partitions),)

    def _found(self, row: Found, freshness: bytes, form: str, if_none_match: str | None) -> Answer:
        self._counters.keys_found += 1
        etag = b"%b-%d-%d-%x" % (self._revision, row.partition, row.offset, row.timestamp_ms)
        if form == BYTES:
            etag += b"-b"
            content_type, body = BYTES.encode(), row.value
        else:
            content_type, body = b"application/json", value_to_json(row.value, self._format)
        headers = b'etag: "%b"\r\nqt-partition: %d\r\nqt-offset: %d\r\n%b%b' % (
            etag,
            row.partition,
            row.offset,
            freshness,
            self._caching,
        )
        if if_none_match is not None and matches_etag(if_none_match, f'"{etag.decode()}"'):
            return Answer(304, headers, b"")
        return Answer(
            200,
            b"content-type: %b\r\ncontent-length: %d\r\n%b" % (content_type, len(body), headers),
            body,
        )

    def _absent(self, record_key: bytes, partitions: Sequence[int], freshness: bytes, now_ms: int) -> Answer:
        """key_not_found, on the word of complete copies alone."""
        for partition in partitions:
            self.judged(partition, _COMPLETE, _NOTHING_NEEDED, now_ms)
        self._counters.keys_absent += 1
        copies = [self.copies.by_partition[p] for p in partitions]
        position = ",".join(position_text(copy) for copy in copies)
        one = copies[0].partition if len(copies) == 1 else None
        failure = Failure(
            Reason.KEY_NOT_FOUND,
            f"the key is not in the view as of position {position}",
            "it was never written, was deleted, was filtered out or has expired; "
            "to wait for a write of your own, read with min-position=<the position that it answered>",
            partition=one,
            position=position,
        )
        headers = b"" if one is None else b"qt-partition: %d\r\n" % one
        return problem_answer(failure, headers + freshness + self._caching)

    def freshness(self, copies: Collection[Copy], now_ms: int) -> bytes:
        """What a read over several copies says: every position, and the lag of the one that is furthest behind."""
        lags_ms = [lag_ms(copy, now_ms) for copy in copies]
        lags = [lag_records(copy) for copy in copies]
        roles = {copy.role for copy in copies}
        return _FRESHNESS % (
            ",".join(position_text(copy) for copy in copies).encode(),
            (roles.pop() if len(roles) == 1 else "standby").encode(),
            -1 if -1 in lags else max(lags, default=0),
            -1 if -1 in lags_ms else max(lags_ms, default=0),
            self.copies.placement.epoch,
        )

    def _freshness_of_one(self, copy: Copy, now_ms: int) -> bytes:
        return _FRESHNESS % (
            b"%d:%d" % (copy.partition, next_offset(copy)),
            copy.role.encode(),
            lag_records(copy),
            lag_ms(copy, now_ms),
            self.copies.placement.epoch,
        )


def not_here(partition: int) -> Failure:
    return Failure(
        Reason.WRONG_OWNER,
        f"this node does not hold partition {partition}",
        "see /v1/placement for the nodes that do, or ask with route=forward",
        partition=partition,
    )
