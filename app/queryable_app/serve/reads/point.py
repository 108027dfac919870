"""Answer a read of one key from this node's replicas, for the fast lane and for the API alike.

Strategy: `Reads.point` looks at the replicas of this node as they are now. It neither waits nor forwards, so the fast lane can
call it before there is a task. It returns the finished answer, found or not, or raises the failure that says why this node may
not answer. A caller that can wait does so before, with `Reads.wait_until_fresh_for_key`; one that can forward does so after.
`PlainReads` (`plain_reads.py`) is the shortest way to the most frequent answer, a live row for a plain read, and leaves any other
to `point`.

If the partitioning is scattered, every partition may hold the key. The newest row of all of them, a tombstone too, is then the
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Set
from functools import reduce
from time import time_ns
from typing import Final

from queryable_app.errors import Failure, Reason
from queryable_app.platform.clock import monotonic_ms
from queryable_app.platform.kafka_clients import KafkaUnavailable
from queryable_app.policy.freshness import (
    Consistency,
    NeededPosition,
    ReadOptions,
    freshness_failure,
    lag_ms,
    records_short,
)
from queryable_app.policy.routing import not_hosted_here
from queryable_app.serve.node import Node
from queryable_app.serve.reads.past_rows import is_settled, refusal_as_of
from queryable_app.serve.reads.plain_reads import PlainReads
from queryable_app.serve.reads.point_answers import PointAnswers
from queryable_app.serve.reads.replica_progress import progress_of
from queryable_app.serve.reads.shared_by_reads import SharedByReads
from queryable_app.serve.reads.stored_row import stored_row
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.as_of import AsOf
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE
from queryable_app.wire.http_text import JSON, Answer
from queryable_app.wire.partitioners import Partitioning

_STREAMING_LAG_MS_MAX: Final = 2000  # the lag of a replica that streams is measured as a second at most
_REPLY_RESERVE_SECONDS: Final = 0.01  # the position of a replica is a better answer than "deadline exceeded"
_NO_POSITIONS: Final[Mapping[int, NeededPosition]] = {}


class Reads:
    """Answer point reads of one node. `defaults` are the options of a plain read, which is a read that names no option."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.replicas = node.replicas
        self.rekeyed = bool(node.spec.source_topic)
        self.answers = PointAnswers(node)
        self.identity = self.answers.identity
        self._partitioner = node.replicas.partitioner
        self._to_disk = node.codec.to_disk
        self.shared = SharedByReads(self.answers)
        self.plain = PlainReads(node, self.shared)
        self.defaults = ReadOptions()
        self.plain_reads_wait = False
        node.listeners.append(self._apply_settings)
        self._apply_settings()

    def _apply_settings(self) -> None:
        """Take the defaults from `spec.read`, which may change while the node runs, and the settings. Note whether it drains."""
        read = self.node.read_settings
        consistency = Consistency(read.consistency)
        bound = read.max_lag_ms if consistency is Consistency.BOUNDED else None
        deadline_ms = self.node.settings.read_deadline_ms
        self.defaults = ReadOptions(consistency, max_lag_ms=bound, deadline_ms=deadline_ms)
        # A view with windows or entries has no single value of a key; the router says so.
        self.plain_reads_wait = consistency is Consistency.STRONG or not self.node.has_single_rows
        self.plain.answers_at_once = not (self.plain_reads_wait or self.node.draining)
        self.shared.take_defaults(self.defaults)

    @property
    def partitioning(self) -> Partitioning:
        """Which partitions may hold a key, by what this node knows now."""
        return self._partitioner.partitioning

    def partitions_of(self, record_key: bytes, options: ReadOptions) -> Set[int]:
        """Return the partitions that decide a read of the key: those that may hold it, and those whose positions it names."""
        return {*self.partitioning.partitions_of(record_key), *options.min_positions}

    def point(
        self,
        record_key: bytes,
        options: ReadOptions,
        needed: Mapping[int, NeededPosition] = _NO_POSITIONS,
        form: str = JSON,
        if_none_match: str | None = None,
    ) -> Answer:
        """Return the answer for a key from this node's replicas as they are now. Raises Failure if they may not answer.

        `needed` are the positions that replicas must have reached, by partition. `form` BYTES asks for the value as it is
        stored.
        """
        now_ms = monotonic_ms()
        partition = self._partitioner.partitioning.partition_of(record_key)
        if partition is None:
            return self._point_scattered(record_key, options, needed, form, if_none_match, now_ms)
        replica = self.replicas.by_partition.get(partition)
        if replica is None:
            raise not_hosted_here(partition)
        shared = self.shared.of(replica, now_ms)
        if options is self.defaults:
            refusal = shared.refusal
        else:
            for other in needed.keys() - {partition}:  # its records may change which partition holds the key
                self.readable_replica(other, options, needed, now_ms)
            refusal = freshness_failure(replica, options, now_ms, needed.get(partition))
        if refusal is not None:
            raise refusal
        self.node.last_read_ms = now_ms
        stored = replica.store.get(self._to_disk(record_key))
        if stored is not None:
            flags, offset, timestamp_ms, expiry_ms = ROW_HEADER.unpack_from(stored)
            if not flags & TOMBSTONE and (not expiry_ms or expiry_ms > time_ns() // 1_000_000):
                value = stored[ROW_HEADER_SIZE:]
                return self.answers.found(
                    partition, offset, timestamp_ms, value, shared.headers, form, if_none_match
                )
        headers = b"qt-partition: %d\r\n%b" % (partition, shared.headers)
        return self.answers.absent((progress_of(replica, now_ms),), headers)

    def _point_scattered(
        self,
        record_key: bytes,
        options: ReadOptions,
        needed: Mapping[int, NeededPosition],
        form: str,
        if_none_match: str | None,
        now_ms: int,
    ) -> Answer:
        """Return the newest row of all partitions. Raises Failure if one of them has no readable replica here."""
        partitions = range(self.replicas.partitions)
        replicas = [self.readable_replica(partition, options, needed, now_ms) for partition in partitions]
        disk_key = self._to_disk(record_key)
        rows = [
            (disk_key, replica.partition, stored)
            for replica in replicas
            if (stored := replica.store.get(disk_key)) is not None
        ]
        newest = stored_row(*reduce(self.node.combine, rows)[1:]) if rows else None
        progress = [progress_of(replica, now_ms) for replica in replicas]
        return self.answers.of_newest(newest, progress, 0, form, if_none_match)

    def readable_replica(
        self, partition: int, options: ReadOptions, needed: Mapping[int, NeededPosition], now_ms: int
    ) -> Replica:
        """Return the replica of a partition on this node, and note the read. Raises the Failure that says why it may not
        answer."""
        replica = self.replicas.by_partition.get(partition)
        if replica is None:
            raise not_hosted_here(partition)
        refusal = freshness_failure(replica, options, now_ms, needed.get(partition))
        if refusal is None and options.as_of is not None:
            refusal = refusal_as_of(replica, options.as_of, now_ms, partition in needed)
        if refusal is not None:
            raise refusal
        self.node.last_read_ms = now_ms
        return replica

    def _unsettled(self, as_of: AsOf | None, partitions: Collection[int]) -> Collection[int]:
        """Return the partitions whose replicas here may lack records that count at a time."""
        if as_of is None:
            return ()
        now_ms, here = monotonic_ms(), self.replicas.by_partition
        return [p for p in partitions if p in here and not is_settled(here[p], as_of, now_ms)]

    async def wait_until_fresh_for_key(
        self, record_key: bytes, options: ReadOptions, deadline: float, last: bool
    ) -> Mapping[int, NeededPosition]:
        """Wait as `wait_until_fresh` does, for the key's partitions and for those whose positions the read names.

        The records that arrive meanwhile may change which partition holds the key; then it waits for that one too. Raises
        Failure at once if this node does not host one of the partitions.
        """
        while True:
            partitions = self.partitions_of(record_key, options)
            for partition in partitions:
                if partition not in self.replicas.by_partition:
                    raise not_hosted_here(partition)
            needed = await self.wait_until_fresh(options, partitions, deadline, last)
            if self.partitions_of(record_key, options) == partitions:
                return needed

    async def wait_until_fresh(
        self, options: ReadOptions, partitions: Collection[int], deadline: float, last: bool
    ) -> Mapping[int, NeededPosition]:
        """Wait until the replicas here reach what `options` ask for, or until shortly before the deadline (loop time).

        Return the positions to reach; the caller checks whether they are reached. `last` says that no other node is tried
        afterwards, so that all of the time may be spent here.
        """
        deadline -= _REPLY_RESERVE_SECONDS
        if options.consistency is Consistency.AT_LEAST:
            needed: Mapping[int, NeededPosition] = self._named_positions(options, partitions)
        elif options.consistency is Consistency.STRONG:
            needed = await self._end_offsets(partitions, deadline)
        elif unsettled := self._unsettled(options.as_of, partitions):
            needed = await self._end_offsets(unsettled, deadline)
        else:
            return _NO_POSITIONS
        now = asyncio.get_running_loop().time()
        waits = (
            self.replicas.wait_for(p, offset, now + (deadline - now) * share)
            for p, offset in needed.items()
            if (share := self._waiting_share(p, offset, last)) > 0
        )
        await asyncio.gather(*waits)
        return needed

    def _named_positions(
        self, options: ReadOptions, partitions: Collection[int]
    ) -> Mapping[int, NeededPosition]:
        """Return the positions that the read names. In a rekeyed view they are of the source, so each replica must reach all."""
        if not self.rekeyed:
            return {p: o for p, o in options.min_positions.items() if p in partitions}
        offsets = tuple([options.min_sources.get(p, 0) for p in range(self.replicas.partitions)])
        return dict.fromkeys(partitions, offsets)

    def _waiting_share(self, partition: int, position: NeededPosition, last: bool) -> float:
        """Return the share of the time to wait for a replica here, given that another node may have reached the position."""
        replica = self.replicas.by_partition.get(partition)
        if replica is None or not records_short(replica, position):
            return 0
        if len(self.replicas.placement.serving[partition]) < 2:
            return 1
        if not replica.complete:
            return 0
        if last:
            return 1
        if 0 <= lag_ms(replica, monotonic_ms()) <= _STREAMING_LAG_MS_MAX:
            return 0.5
        return 0 if self.node.peers.another_is_fresh(partition, _STREAMING_LAG_MS_MAX) else 0.5

    async def _end_offsets(
        self, partitions: Collection[int], deadline: float
    ) -> Mapping[int, NeededPosition]:
        """Fetch the end offsets of those partitions that this node hosts. Raises Failure if Kafka does not answer."""
        hosted = [partition for partition in partitions if partition in self.replicas.by_partition]
        try:
            async with asyncio.timeout_at(deadline):
                return await self.node.end_offsets.latest(hosted)
        except TimeoutError:
            why = "Kafka did not return the end offsets in time"
        except KafkaUnavailable as unavailable:
            why = f"Kafka does not return the end offsets: {unavailable}"
        raise Failure(
            Reason.NOT_FRESH_ENOUGH,
            why,
            "retry, or ask with consistency=bounded for what is here",
            retry_after_ms=1000,
        )
