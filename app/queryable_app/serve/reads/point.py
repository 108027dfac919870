"""What a key's read answers, decided once for both ways in.

Strategy: `Reads.point` looks at the copies of this node, here and now: it neither waits nor forwards, so the fast lane
can call it before there is a task. It returns the finished answer, found or not, or raises the failure that says why
this node may not answer; whoever can wait (`Reads.wait_until_fresh`) or forward takes it from there.

When the producers' partitioner is not known, every partition may hold the key, and the newest row of all of them, a
tombstone too, is the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from time import monotonic, time_ns
from typing import Final, NamedTuple
from zlib import crc32

from queryable_app.errors import Failure, Reason
from queryable_app.platform.clock import monotonic_ms
from queryable_app.platform.kafka_clients import KafkaUnavailable
from queryable_app.policy.freshness import (
    Consistency,
    ReadOptions,
    freshness_failure,
    lag_ms,
    lag_records,
    next_offset,
)
from queryable_app.serve.node import Node
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE, ReplicaState
from queryable_app.wire.http_text import JSON, Answer, header_text, matches_etag, problem_answer
from queryable_app.wire.partitioners import SCATTER, partition_for
from queryable_app.wire.serde import value_to_json

_FRESHNESS: Final = b"qt-position: %b\r\nqt-role: %b\r\nqt-lag-records: %d\r\nqt-lag-ms: %d\r\nqt-epoch: %d\r\nqt-hops: %d\r\n"
_RECORD: Final = b"etag: %b\r\nqt-partition: %d\r\nqt-offset: %d\r\nqt-timestamp: %d\r\n%b"
_FRESH_MS: Final = 2000  # a copy that streams is a second behind at most, as far as anybody can tell
_REPLY_RESERVE_SECONDS: Final = 0.01  # to say how far a copy is, which says more than that time is over
_NOTHING_NEEDED: Final[Mapping[int, int]] = {}


class ReplicaProgress(NamedTuple):
    """How far a copy is."""

    partition: int
    position: int
    role: str
    lag_records: int
    lag_ms: int
    complete: bool


class _CacheEntry(NamedTuple):
    """What all answers of a copy have in common for a millisecond, or until its state changes."""

    monotonic_ms: int
    state: ReplicaState
    refusal: Failure | None  # for a read that asks for nothing
    headers: bytes


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
        self.replicas = node.replicas
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
        self._cache: dict[int, _CacheEntry] = {}
        self.defaults = ReadOptions()
        """What a read gets that asks for nothing."""
        self.waits = False
        """Reads wait even when they ask for nothing."""
        node.read_settings_listeners.append(self._follow)
        self._follow()

    def _follow(self) -> None:
        """What the resource says of reads, which may change while the node runs."""
        read = self.node.read_settings
        consistency = Consistency(read.consistency)
        bound = read.max_lag_ms if consistency is Consistency.BOUNDED else None
        self.defaults = ReadOptions(consistency, max_lag_ms=bound)
        self.waits = consistency is Consistency.STRONG
        self._cache.clear()  # refusals among it are of the defaults

    def point(
        self,
        record_key: bytes,
        asked: ReadOptions,
        needed: Mapping[int, int] = _NOTHING_NEEDED,
        form: str = JSON,
        if_none_match: str | None = None,
    ) -> Answer:
        """The answer for a key, from the copies of this node as they are now. `needed` has the positions to have been
        reached; `form` is BYTES for the value as it is stored."""
        replicas = self.replicas
        algorithm = replicas.algorithm
        moment = monotonic_ms()
        self.note_read()
        if algorithm == SCATTER:
            return self._point_anywhere(record_key, asked, needed, form, if_none_match, moment)
        partition = partition_for(record_key, algorithm, replicas.partitions)
        replica = replicas.by_partition.get(partition)
        if replica is None:
            raise not_hosted_here(partition)
        common = self._cache.get(partition)
        if common is None or common.monotonic_ms != moment or common.state is not replica.state:
            common = self._cache[partition] = self._cache_entry(replica, moment)
        if asked is self.defaults:
            refusal = common.refusal
        else:
            for other in needed.keys() - {partition}:  # what it holds may change where the key is looked for
                self.readable_replica(other, asked, needed, moment)
            refusal = freshness_failure(replica, asked, moment, needed.get(partition))
        if refusal is not None:
            raise refusal
        stored = replica.store.get(self._to_disk(record_key))
        if stored is not None:
            flags, offset, timestamp_ms, expiry_ms = ROW_HEADER.unpack_from(stored)
            if not flags & TOMBSTONE and (not expiry_ms or expiry_ms > time_ns() // 1_000_000):
                value = stored[ROW_HEADER_SIZE:]
                return self._found(
                    partition, offset, timestamp_ms, value, common.headers, form, if_none_match
                )
        return self._absent(
            (progress_of(replica, moment),), b"qt-partition: %d\r\n%b" % (partition, common.headers)
        )

    def _point_anywhere(
        self,
        record_key: bytes,
        asked: ReadOptions,
        needed: Mapping[int, int],
        form: str,
        if_none_match: str | None,
        now_ms: int,
    ) -> Answer:
        partitions = range(self.replicas.partitions)
        replicas = [self.readable_replica(partition, asked, needed, now_ms) for partition in partitions]
        disk_key = self._to_disk(record_key)
        rows = [
            found(replica.partition, stored)
            for replica in replicas
            if (stored := replica.store.get(disk_key)) is not None
        ]
        standings = [progress_of(replica, now_ms) for replica in replicas]
        return self.answer(max(rows, default=None), standings, 0, form, if_none_match)

    def answer(
        self,
        row: Found | None,
        standings: Sequence[ReplicaProgress],
        hops: int,
        form: str,
        if_none_match: str | None,
    ) -> Answer:
        """The answer for a key whose newest row, over several partitions, is this one."""
        headers = self.freshness_lines(standings, hops) + self._caching
        if row is None or not row.live(time_ns() // 1_000_000):
            return self._absent(standings, headers)
        return self._found(
            row.partition, row.offset, row.timestamp_ms, row.value, headers, form, if_none_match
        )

    def _cache_entry(self, replica: Replica, now_ms: int) -> _CacheEntry:
        headers = self.freshness_lines((progress_of(replica, now_ms),), 0) + self._caching
        return _CacheEntry(
            now_ms, replica.state, freshness_failure(replica, self.defaults, now_ms, None), headers
        )

    def note_read(self) -> None:
        """Ingest leaves room for reads while there are some."""
        self.node.last_read_at = monotonic()

    def readable_replica(
        self, partition: int, asked: ReadOptions, needed: Mapping[int, int], now_ms: int
    ) -> Replica:
        """The copy here, if it may answer; otherwise the failure that says why not."""
        replica = self.replicas.by_partition.get(partition)
        if replica is None:
            raise not_hosted_here(partition)
        refusal = freshness_failure(replica, asked, now_ms, needed.get(partition))
        if refusal is not None:
            raise refusal
        return replica

    async def wait_until_fresh_for_key(
        self, record_key: bytes, asked: ReadOptions, deadline: float, last: bool
    ) -> Mapping[int, int]:
        """Wait as `wait_until_fresh` does, in the partitions of the key and in those that the read names. What they reach may
        contradict the partitioner, and then the key is in another partition. Raises Failure at once if one is not here."""
        while True:
            where = self.partitions_of(record_key)
            partitions = {*where, *asked.min_positions}
            for partition in partitions:
                if partition not in self.replicas.by_partition:
                    raise not_hosted_here(partition)
            needed = await self.wait_until_fresh(asked, partitions, deadline, last)
            if self.partitions_of(record_key) == where:
                return needed

    async def wait_until_fresh(
        self, asked: ReadOptions, partitions: Collection[int], deadline: float, last: bool
    ) -> Mapping[int, int]:
        """Wait, until shortly before the deadline (loop time), for what `asked` needs of the copies here; returns what that
        is. Whether it was reached is for `point` to see. `last`: no other node is asked afterwards, so that all of the time
        is ours."""
        deadline -= _REPLY_RESERVE_SECONDS
        if asked.consistency is Consistency.AT_LEAST:
            needed: Mapping[int, int] = {p: o for p, o in asked.min_positions.items() if p in partitions}
        elif asked.consistency is Consistency.STRONG:
            needed = await self._end_offsets(partitions, deadline)
        else:
            return _NOTHING_NEEDED
        now = asyncio.get_running_loop().time()
        waits = (
            self.replicas.wait_for(p, offset, now + (deadline - now) * share)
            for p, offset in needed.items()
            if (share := self._waiting_share(p, offset, last)) > 0
        )
        await asyncio.gather(*waits)
        return needed

    def _waiting_share(self, partition: int, position: int, last: bool) -> float:
        """How much of the time to wait for a copy here, while another node may have one that is there already."""
        replica = self.replicas.by_partition.get(partition)
        if replica is None or next_offset(replica) >= position:
            return 0
        if len(self.replicas.placement.serving[partition]) < 2:
            return 1
        if not replica.complete:
            return 0
        if last:
            return 1
        fresh = 0 <= lag_ms(replica, monotonic_ms()) <= _FRESH_MS
        return 0.5 if fresh or not self.node.peers.another_is_fresh(partition, _FRESH_MS) else 0

    async def _end_offsets(self, partitions: Collection[int], deadline: float) -> Mapping[int, int]:
        why = "Kafka did not say in time where the log ends"
        try:
            async with asyncio.timeout_at(deadline):
                return await self.node.end_offsets.ends(
                    [p for p in partitions if p in self.replicas.by_partition]
                )
        except TimeoutError:
            pass
        except KafkaUnavailable as away:
            why = f"Kafka cannot be asked where the log ends: {away}"
        raise Failure(
            Reason.NOT_FRESH_ENOUGH,
            why,
            "retry, or ask with consistency=bounded for what is here",
            retry_after_ms=1000,
        )

    def partitions_of(self, record_key: bytes) -> Sequence[int]:
        """Where the key may be: one partition, or all of them while the partitioner is not known."""
        replicas = self.replicas
        if replicas.algorithm == SCATTER:
            return range(replicas.partitions)
        return (partition_for(record_key, replicas.algorithm, replicas.partitions),)

    def _found(
        self,
        partition: int,
        offset: int,
        timestamp_ms: int,
        value: bytes,
        headers: bytes,
        form: str,
        if_none_match: str | None,
    ) -> Answer:
        self._counters.keys_found += 1
        etag = b'"%b-%d-%d-%x"' % (self._revision, partition, offset, timestamp_ms)
        if form == JSON:
            body = value if self._format == "json" else value_to_json(value, self._format)
        else:
            body = value
            etag = etag[:-1] + b'-b"'  # another representation is another entity
        about = _RECORD % (etag, partition, offset, timestamp_ms, headers)
        if if_none_match is not None and matches_etag(if_none_match, etag.decode()):
            return Answer(304, about, b"")
        return Answer(
            200, b"content-type: %b\r\ncontent-length: %d\r\n%b" % (form.encode(), len(body), about), body
        )

    def _absent(self, standings: Sequence[ReplicaProgress], headers: bytes) -> Answer:
        """key_not_found, on the word of complete copies alone."""
        for standing in standings:
            if not standing.complete:
                raise Failure(
                    Reason.NOT_AVAILABLE,
                    f"the key is not in what there is of partition {standing.partition}, which is still being built",
                    "retry after 1000 ms",
                    partition=standing.partition,
                    retry_after_ms=1000,
                )
        unread = self.replicas.unplaced_partitions
        if unread:
            raise Failure(
                Reason.NOT_AVAILABLE,
                f"the key is not in the partitions that this view reads, and the topic has got {len(unread)} more",
                "make a new revision of the view, which reads the topic as it is now",
                missing=tuple(unread),
            )
        self._counters.keys_absent += 1
        position = positions_text(standings)
        failure = Failure(
            Reason.KEY_NOT_FOUND,
            f"the key is not in the view as of position {position}",
            "it was never written, was deleted, was filtered out or has expired; "
            "to wait for a write of your own, read with min-position=<the position that it answered>",
            partition=standings[0].partition if len(standings) == 1 else None,
            position=position,
        )
        return problem_answer(failure, headers)

    def freshness_lines(self, standings: Sequence[ReplicaProgress], hops: int) -> bytes:
        """Every position, and the lag of the copy that is furthest behind."""
        roles = {standing.role for standing in standings}
        lags, lags_ms = [s.lag_records for s in standings], [s.lag_ms for s in standings]
        return _FRESHNESS % (
            positions_text(standings).encode(),
            (roles.pop() if len(roles) == 1 else "standby").encode(),
            -1 if -1 in lags else max(lags, default=-1),
            -1 if -1 in lags_ms else max(lags_ms, default=-1),
            self.replicas.placement.epoch,
            hops,
        )


def progress_of(replica: Replica, now_ms: int) -> ReplicaProgress:
    return ReplicaProgress(
        replica.partition,
        next_offset(replica),
        replica.role,
        lag_records(replica),
        lag_ms(replica, now_ms),
        replica.complete,
    )


def positions_text(standings: Sequence[ReplicaProgress]) -> str:
    """As in `Qt-Position`, and as `min-position` takes it."""
    return ",".join(f"{standing.partition}:{standing.position}" for standing in standings)


def not_hosted_here(partition: int) -> Failure:
    return Failure(
        Reason.WRONG_OWNER,
        f"this node does not hold partition {partition}",
        "see /v1/placement for the nodes that do, or ask with route=forward",
        partition=partition,
    )
