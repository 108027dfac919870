"""Answer a read of one key from this node's replicas, for the fast lane and for the API alike.

Strategy: `Reads.point` looks at the replicas of this node as they are now. It neither waits nor forwards, so the fast lane can
call it before there is a task. It returns the finished answer, found or not, or raises the failure that says why this node may
not answer. A caller that can wait does so before, with `Reads.wait_until_fresh_for_key`; one that can forward does so after.
`Reads.found_at_once` is the shortest way to the most frequent answer, a live row for a plain read, and leaves any other to
`point`.

If the partitioning is scattered, every partition may hold the key. The newest row of all of them, a tombstone too, is then the
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import reduce
from time import time_ns
from typing import Final, NamedTuple

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
from queryable_app.serve.base.answer_reservation import SMALL_ANSWER_BYTES
from queryable_app.serve.node import Node
from queryable_app.serve.reads.past_rows import is_settled, refusal_as_of
from queryable_app.serve.reads.point_answers import FOUND_END, PointAnswers
from queryable_app.serve.reads.replica_progress import progress_of
from queryable_app.serve.reads.stored_row import stored_row
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.store import Store
from queryable_app.wire.as_of import AsOf
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE, ReplicaState
from queryable_app.wire.http_text import JSON, Answer
from queryable_app.wire.partitioners import Partitioning

_SHARED_MS: Final = 5
_STREAMING_LAG_MS_MAX: Final = 2000  # the lag of a replica that streams is measured as a second at most
_REPLY_RESERVE_SECONDS: Final = 0.01  # the position of a replica is a better answer than "deadline exceeded"
_NO_POSITIONS: Final[Mapping[int, NeededPosition]] = {}


_Source = tuple[Callable[[bytes], bytes | None], bytes]
"""How to get a row of a replica, and what the answers with its rows begin with."""


class _Shared(NamedTuple):
    """What all plain reads of a replica share for `_SHARED_MS`, or until the replica's state changes.

    The lag is that of the last moment, so it is never too small.
    """

    until_ms: int
    replica: Replica
    store: Store | None  # None: it may not answer, or is not open
    state: ReplicaState
    refusal: Failure | None
    headers: bytes
    begin: bytes  # of the answers that `found_at_once` finds


class Reads:
    """Answer point reads of one node. `defaults` are the options of a plain read, which is a read that names no option."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.replicas = node.replicas
        self.rekeyed = bool(node.spec.source_topic)
        self.answers = PointAnswers(node)
        self.identity = self.answers.identity
        self._partitioner = node.replicas.partitioner
        self._counters = node.counters
        self._to_disk = node.codec.to_disk
        self._keys_need_conversion = node.codec.format not in ("string", "bytes")
        self._render = node.render
        self._server_lines = b""
        self._cache: dict[int, _Shared] = {}  # by partition
        self._not_hosted: dict[int, Failure] = {}  # by partition
        self.defaults = ReadOptions()
        self.plain_reads_wait = False
        self.answers_at_once = False
        """Whether `found_at_once` answers: no plain read waits, and no connection is to be closed."""
        node.listeners.append(self._apply_settings)
        self._apply_settings()

    def _apply_settings(self) -> None:
        """Take the defaults from `spec.read`, which may change while the node runs, and note whether it drains."""
        read = self.node.read_settings
        consistency = Consistency(read.consistency)
        bound = read.max_lag_ms if consistency is Consistency.BOUNDED else None
        self.defaults = ReadOptions(consistency, max_lag_ms=bound)
        # A view with windows or entries has no single value of a key; the router says so.
        self.plain_reads_wait = consistency is Consistency.STRONG or not self.node.has_single_rows
        self.answers_at_once = not (self.plain_reads_wait or self.node.draining)
        self._cache.clear()  # its refusals follow from the defaults

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
        now_ms = self.node.last_read_ms = monotonic_ms()
        partition = self._partitioner.partitioning.partition_of(record_key)
        if partition is None:
            return self._point_scattered(record_key, options, needed, form, if_none_match, now_ms)
        replica = self.replicas.by_partition.get(partition)
        if replica is None:
            raise not_hosted_here(partition)
        shared = self._cache.get(partition)
        if (
            shared is None
            or shared.replica is not replica
            or shared.until_ms < now_ms
            or shared.state is not replica.state
        ):
            shared = self._renewed(replica, now_ms)
        if options is self.defaults:
            refusal = shared.refusal
        else:
            for other in needed.keys() - {partition}:  # its records may change which partition holds the key
                self.readable_replica(other, options, needed, now_ms)
            refusal = freshness_failure(replica, options, now_ms, needed.get(partition))
        if refusal is not None:
            raise refusal
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

    def hosted_elsewhere(self, key: bytes) -> Failure | None:
        """Return why this node cannot answer a plain read of a key that only other nodes host. None: `point` must decide.

        `key` stands in the path as it is, without percent signs. The failure is shared, so it must not be raised.
        """
        if self._keys_need_conversion:
            return None
        partition = self._partitioner.partitioning.partition_of(key)
        return None if partition is None else self._elsewhere(partition)

    def _elsewhere(self, partition: int) -> Failure | None:
        if partition in self.replicas.by_partition:
            return None
        failure = self._not_hosted.get(partition)
        if failure is None:
            failure = self._not_hosted[partition] = not_hosted_here(partition)
        return failure

    def set_server_lines(self, lines: bytes) -> None:
        """Begin the header lines of `found_at_once` with those of the server, such as the date."""
        self._server_lines = lines
        self._cache.clear()

    def found_at_once(self, keys: Sequence[bytes]) -> list[bytes | Failure | None]:
        """Return for each key the bytes of the answer to a plain read that finds a live row; None if `point` must decide, and the
        refusal if only other nodes host the key.

        `keys` stand in their paths as they are, without percent signs.
        """
        if not self.answers_at_once:
            return [None] * len(keys)
        now_ms = self.node.last_read_ms = monotonic_ms()
        keys_need_conversion = self._keys_need_conversion
        partition_of = self._partitioner.partitioning.partition_of
        sources: dict[int | None, _Source | Failure | None] = {}
        rows: list[tuple[bytes, bytes] | Failure | None] = []
        for key in keys:
            record_key = disk_key = key
            try:
                if keys_need_conversion:
                    record_key = self.node.codec.from_url_bytes(key)
                    disk_key = self._to_disk(record_key)
                partition = partition_of(record_key)
                if partition in sources:
                    source = sources[partition]
                else:
                    source = sources[partition] = self._source(partition, now_ms)
                if isinstance(source, tuple):
                    get, begin = source
                    stored = get(disk_key)
                    # No large row is held while others are read.
                    if stored is None or len(stored) > SMALL_ANSWER_BYTES:
                        rows.append(None)
                    else:
                        rows.append((begin, stored))
                else:
                    rows.append(source)
            except Exception:  # no key of the format, or an unreadable block: `point` meets it again
                rows.append(None)
        # Rendered after all look-ups: the processor's caches hold either the store's code and data, or these.
        answers: list[bytes | Failure | None] = []
        for row in rows:
            try:
                answers.append(self._rendered(*row) if isinstance(row, tuple) else row)
            except Exception:
                answers.append(None)
        return answers

    def _rendered(self, begin: bytes, stored: bytes) -> bytes | None:
        """Return the answer with a row. None: `point` must decide."""
        flags, offset, timestamp_ms, expiry_ms = ROW_HEADER.unpack_from(stored)
        if flags or (expiry_ms and expiry_ms <= time_ns() // 1_000_000):
            return None
        body = stored[ROW_HEADER_SIZE:]
        if self._render is not None:
            body = self._render(body)
        self._counters.keys_found += 1
        row = offset, timestamp_ms, offset, timestamp_ms, len(body), body
        return FOUND_END % (begin, *row)

    def _source(self, partition: int | None, now_ms: int) -> _Source | Failure | None:
        """Return where `found_at_once` reads the keys of a partition. None: several may hold them, or the replica here may not
        answer."""
        if partition is None:
            return None
        hosted = self.replicas.by_partition.get(partition)
        if hosted is None:
            return self._elsewhere(partition)
        shared = self._cache.get(partition) or self._renewed(hosted, now_ms)
        store = shared.store
        if (
            shared.until_ms < now_ms
            or shared.replica is not hosted
            or (store is not None and (store.state is not shared.state or not hosted.serves_from(store)))
        ):
            shared = self._renewed(hosted, now_ms)
            store = shared.store
        return None if store is None else (store.get_unchecked, shared.begin)

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

    def _renewed(self, replica: Replica, now_ms: int) -> _Shared:
        """Return what the plain reads of a replica share from now on."""
        until_ms = now_ms + _SHARED_MS
        refusal = freshness_failure(replica, self.defaults, until_ms, None)
        store = replica.store if replica.opened and refusal is None else None
        headers = self.answers.lines_of_one(replica, until_ms)
        begin = self.answers.begin_of_found(replica.partition, self._server_lines, headers)
        shared = self._cache[replica.partition] = _Shared(
            until_ms, replica, store, replica.state, refusal, headers, begin
        )
        return shared

    def note_read(self) -> None:
        """Remember the time of the read: ingest leaves room for reads while there are some."""
        self.node.last_read_ms = monotonic_ms()

    def readable_replica(
        self, partition: int, options: ReadOptions, needed: Mapping[int, NeededPosition], now_ms: int
    ) -> Replica:
        """Return the replica of a partition on this node. Raises the Failure that says why it may not answer."""
        replica = self.replicas.by_partition.get(partition)
        if replica is None:
            raise not_hosted_here(partition)
        refusal = freshness_failure(replica, options, now_ms, needed.get(partition))
        if refusal is None and options.as_of is not None:
            refusal = refusal_as_of(replica, options.as_of, now_ms, partition in needed)
        if refusal is not None:
            raise refusal
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


def not_hosted_here(partition: int) -> Failure:
    return Failure(
        Reason.WRONG_OWNER,
        f"this node does not host partition {partition}",
        "see /v1/placement for the nodes that do, or ask with route=forward",
        partition=partition,
    )
