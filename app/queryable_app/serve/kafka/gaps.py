"""Move a position over gaps: offsets without a readable record.

Strategy: transaction markers, aborted records and compacted ones never arrive as rows, so a replica would stay below the end
offset for ever. When no slice has arrived for a while below the end offset, a consumer reads from the position. If it reaches a
later offset without a record, the offsets in between are proven empty, and the position moves. If it finds a record, ingest has
to bring that record, and the next proof waits until it has arrived.

The replicas of a rekeyed view read an internal topic, and their end offsets are those of its source. Their positions never move
here: only the rekey job's markers say which source offsets have no row. The record that comes next is found for the watchdog.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from queryable_app.policy.freshness import lag_records
from queryable_app.serve.base.background import Background
from queryable_app.serve.base.kafka_client import LazyKafkaClient
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.replicas import Replicas

_QUIET_SECONDS: Final = 0.3  # a partition without a slice for this long may have a gap
_PROOF_MS_MAX: Final = 1000
_RETRY_SECONDS: Final = 2.0
_FETCH_BYTES_MAX: Final = 64 * 1024  # one record is enough; Kafka sends a larger one too


class OffsetGaps(Background):
    """Prove gaps empty from `start` to `stop`. `arguments` are those of an aiokafka client."""

    _look_seconds = 0.1

    def __init__(self, arguments: dict[str, Any], topic: str, replicas: Replicas) -> None:
        self._topic = topic
        self._replicas = replicas
        self._consumer = LazyKafkaClient(
            lambda: AIOKafkaConsumer(
                **arguments,
                group_id=None,
                isolation_level="read_committed",
                auto_offset_reset="none",  # an offset out of range proves nothing
                max_partition_fetch_bytes=_FETCH_BYTES_MAX,
                fetch_max_wait_ms=100,
            )
        )

    async def _close(self) -> None:
        await self._consumer.drop()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            refused = False
            for replica in self._quiet(time.monotonic()):
                try:
                    await self._prove(replica)
                except (KafkaError, OSError, TimeoutError):
                    # `end_offsets` reports an unavailable Kafka, and the control socket handles lost records.
                    refused = True
                    await self._consumer.drop()
            if refused:
                await asyncio.sleep(_RETRY_SECONDS)

    def _quiet(self, now: float) -> Sequence[Replica]:
        return [
            replica
            for replica in self._replicas.by_partition.values()
            if replica.writable
            and self._is_behind(replica)
            and now - replica.position_changed_at > _QUIET_SECONDS
            and replica.position > replica.pending_record_offset
        ]

    def _is_behind(self, replica: Replica) -> bool:
        return replica.position < replica.end_offset or replica.position < 0 <= replica.end_offset

    async def _prove(self, replica: Replica) -> None:
        consumer = await self._consumer.connected()
        end, incarnation = replica.end_offset, replica.incarnation
        reached = await self._first_record(consumer, replica, end)
        position = min(reached, end)
        if replica.incarnation is incarnation and replica.writable and position > replica.position:
            replica.apply((), replica.state._replace(position=position))

    async def _first_record(self, consumer: AIOKafkaConsumer, replica: Replica, end: int) -> int:
        """Return up to which offset there is no record from the position on, and note the record that is there."""
        where = TopicPartition(self._topic, replica.partition)
        begin, incarnation = replica.position, replica.incarnation
        if begin < 0:
            begin = (await consumer.beginning_offsets([where]))[where]
        reached = begin
        if begin < end:
            consumer.assign([where])
            consumer.seek(where, begin)
            try:
                deadline = time.monotonic() + _PROOF_MS_MAX / 1000
                while reached < end and time.monotonic() < deadline:
                    fetched = await consumer.getmany(where, timeout_ms=100, max_records=1)
                    if records := fetched.get(where):
                        reached = records[0].offset
                        if replica.incarnation is incarnation:
                            replica.pending_record_offset = reached
                        break
                    reached = await consumer.position(where)
            finally:
                consumer.unsubscribe()
        return reached


class PendingRecords(OffsetGaps):
    """Find the next records of an internal topic from `start` to `stop`. No position moves."""

    _look_seconds = 1.0  # only the watchdog reads what is found

    def _is_behind(self, replica: Replica) -> bool:
        return lag_records(replica) > 0

    async def _prove(self, replica: Replica) -> None:
        consumer = await self._consumer.connected()
        where = TopicPartition(self._topic, replica.partition)
        incarnation = replica.incarnation
        end = (await consumer.end_offsets([where]))[where]
        if replica.incarnation is incarnation:
            await self._first_record(consumer, replica, end)
