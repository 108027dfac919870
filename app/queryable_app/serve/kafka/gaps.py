"""Moves a position over offsets at which there is no record to be read.

Strategy: transaction markers, aborted records and compacted ones never arrive as rows, so a copy would stay short of the
log's end for ever. When a partition is quiet below its end, Kafka is asked to show what is there. If a consumer gets
from the position to an offset beyond it without seeing a record, all in between is proven empty, and the position moves.
A record that is seen means that ingest has work to do; the question is not asked again until that record has arrived.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from queryable_app.serve.base.background import Background
from queryable_app.serve.base.kafka_client import LazyKafkaClient
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.replicas import Replicas

_LOOK_SECONDS: Final = 0.1
_QUIET_SECONDS: Final = 0.3  # without a slice for that long a partition may have a gap
_SHOWN_MS_MAX: Final = 1000  # how long Kafka may take to show what is there
_AWAY_SECONDS: Final = 2.0
_FETCH_BYTES_MAX: Final = 64 * 1024  # one record is enough; Kafka sends a larger one all the same


class OffsetGaps(Background):
    """Runs from `start` to `stop`. `arguments` are those of an aiokafka client."""

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
            await asyncio.sleep(_LOOK_SECONDS)
            refused = False
            for replica in self._quiet(time.monotonic()):
                try:
                    await self._prove(replica)
                except (KafkaError, OSError, TimeoutError):
                    # log_end says that Kafka is away; records that are gone are for the control socket to judge.
                    refused = True
                    await self._consumer.drop()
            if refused:
                await asyncio.sleep(_AWAY_SECONDS)

    def _quiet(self, now: float) -> Sequence[Replica]:
        return [
            replica
            for replica in self._replicas.by_partition.values()
            if replica.writable
            and (replica.position < replica.end_offset or replica.position < 0 <= replica.end_offset)
            and now - replica.position_changed_at > _QUIET_SECONDS
            and replica.position > replica.pending_record_offset
        ]

    async def _prove(self, replica: Replica) -> None:
        consumer = await self._consumer.connected()
        where = TopicPartition(self._topic, replica.partition)
        begin, end, incarnation = replica.position, replica.end_offset, replica.incarnation
        if begin < 0:
            begin = (await consumer.beginning_offsets([where]))[where]
        reached = begin
        if begin < end:
            consumer.assign([where])
            consumer.seek(where, begin)
            try:
                deadline = time.monotonic() + _SHOWN_MS_MAX / 1000
                while reached < end and time.monotonic() < deadline:
                    shown = await consumer.getmany(where, timeout_ms=100, max_records=1)
                    if records := shown.get(where):
                        reached = records[0].offset
                        if replica.incarnation is incarnation:
                            replica.pending_record_offset = reached
                        break
                    reached = await consumer.position(where)
            finally:
                consumer.unsubscribe()
        position = min(reached, end)
        if replica.incarnation is incarnation and replica.writable and position > replica.position:
            replica.apply((), replace(replica.state, position=position))
