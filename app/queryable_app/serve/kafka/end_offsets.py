"""Look up the end offsets of this node's replicas, against which freshness is measured.

Strategy: one loop looks up the end offsets of all replicas, at intervals and at once when a strong read waits. A strong read uses
only a lookup that began after the read, because an earlier one may miss records that were acknowledged in between. All reads that
wait share the next lookup. The end offset is the last stable offset (read_committed): what consumers may see.

Kafka may be unavailable for any time. The log has one line when that begins and one when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from queryable_app.platform.clock import monotonic_ms
from queryable_app.platform.kafka_clients import KafkaUnavailable
from queryable_app.platform.log import event
from queryable_app.policy.freshness import NeededPosition, next_offset
from queryable_app.serve.base.background import Background
from queryable_app.serve.base.kafka_client import LazyKafkaClient
from queryable_app.serve.store.rekeyed_replica import RekeyedReplica
from queryable_app.serve.store.replicas import Replicas

_RETRY_SECONDS_MIN: Final = 0.2  # between lookups while Kafka is unavailable, doubled up to the maximum
_RETRY_SECONDS_MAX: Final = 1.0  # for this long after Kafka is back, strong reads are still refused


class EndOffsets(Background):
    """Look up end offsets from `start` to `stop`. `arguments` are those of an aiokafka client."""

    def __init__(self, arguments: dict[str, Any], topic: str, replicas: Replicas, interval_ms: int) -> None:
        self._topic = topic
        self._replicas = replicas
        self._interval_seconds = interval_ms / 1000
        self._consumer = LazyKafkaClient(
            lambda: AIOKafkaConsumer(**arguments, group_id=None, isolation_level="read_committed")
        )
        self._next: asyncio.Future[dict[int, NeededPosition]] | None = (
            None  # of reads that wait for the next lookup
        )
        self._running_lookup: asyncio.Future[dict[int, NeededPosition]] | None = (
            None  # of reads that it answers
        )
        self._wake = asyncio.Event()
        self.unavailable: str | None = None
        """Why Kafka does not answer; None while it does."""

    async def _close(self) -> None:
        self._fail_waiting("the node is stopping")
        await self._consumer.drop()

    async def latest(self, partitions: Iterable[int]) -> dict[int, NeededPosition]:
        """Return the end offsets as of now or later, or raise KafkaUnavailable. The caller sets the deadline."""
        if self._running is None:
            raise KafkaUnavailable("this node does not ask Kafka")
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._wake.set()
        ends = await asyncio.shield(self._next)
        found = {partition: ends.get(partition) for partition in partitions}
        if None in found.values():
            raise KafkaUnavailable(
                "a replica was removed from this node meanwhile, or is beyond the end of the topic, which was made again"
            )
        return {partition: end for partition, end in found.items() if end is not None}

    async def _run(self) -> None:
        pause = _RETRY_SECONDS_MIN
        if self._running_lookup is not None:  # the loop was restarted, and nothing else answers these reads
            self._fail_waiting("the lookup was interrupted")
        while True:
            self._wake.clear()
            try:
                await self._look_up()
            except (KafkaError, OSError, TimeoutError) as error:
                why = str(error) or type(error).__name__
                if self.unavailable is None:
                    event("kafka-away", reason=why)
                    pause = _RETRY_SECONDS_MIN
                self.unavailable = why
                self._fail_waiting(why)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RETRY_SECONDS_MAX)
                continue
            if self.unavailable is not None:
                event("kafka-back")
                self.unavailable = None
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_seconds):
                    await self._wake.wait()

    async def _look_up(self) -> None:
        consumer = await self._consumer.connected()
        self._running_lookup, self._next = self._next, None
        ends = await self._ends(consumer)
        if self._running_lookup is not None:
            self._running_lookup.set_result(ends)
            self._running_lookup = None

    async def _ends(self, consumer: AIOKafkaConsumer) -> dict[int, NeededPosition]:
        """Look up the end offsets of the replicas, and note them there.

        A replica that was beyond the end already when it was asked for has rows of another log: the topic was deleted and made
        again. The end says nothing about its rows, so it is left out until ingest has looked at the topic's id."""
        # Replicas are added, removed and started over during the lookup. A partition that the topic does not have is left out,
        # because Kafka would refuse the whole lookup.
        partitions = self._replicas.topic_partitions or self._replicas.partitions
        incarnations = {
            partition: (replica, replica.incarnation, next_offset(replica))
            for partition, replica in self._replicas.by_partition.items()
            if partition < partitions
        }
        as_of_ms = monotonic_ms()  # before the request: records that exist now are below the answer
        requested = [TopicPartition(self._topic, partition) for partition in incarnations]
        found = {where.partition: end for where, end in (await consumer.end_offsets(requested)).items()}
        ends: dict[int, NeededPosition] = {}
        for partition, end in found.items():
            replica, incarnation, position = incarnations[partition]
            if position <= end:
                ends[partition] = end
                if replica.incarnation is incarnation:
                    replica.note_end_offset(as_of_ms, end)
        return ends

    def _fail_waiting(self, why: str) -> None:
        for waiting in (self._running_lookup, self._next):
            if waiting is not None:
                waiting.set_exception(KafkaUnavailable(why))
                waiting.exception()  # mark it as retrieved, even if every read was cancelled
        self._running_lookup = self._next = None


class SourceEndOffsets(EndOffsets):
    """Look up the end offsets of the source of a rekeyed view. Every replica is measured against all of them."""

    async def _ends(self, consumer: AIOKafkaConsumer) -> dict[int, NeededPosition]:
        replicas = {
            partition: (replica, replica.incarnation, replica.source_offsets)
            for partition, replica in self._replicas.by_partition.items()
            if isinstance(replica, RekeyedReplica)
        }
        as_of_ms = monotonic_ms()
        requested = [TopicPartition(self._topic, p) for p in range(self._replicas.partitions)]
        found = await consumer.end_offsets(requested)
        ends = tuple([found[where] for where in requested])
        within: dict[int, NeededPosition] = {}
        for partition, (replica, incarnation, offsets) in replicas.items():
            if all([offset <= end for offset, end in zip(offsets, ends, strict=True)]):
                within[partition] = ends
                if replica.incarnation is incarnation:
                    replica.note_source_ends(as_of_ms, ends)
        return within
