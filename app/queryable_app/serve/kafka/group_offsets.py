"""Commit this node's positions under the application's consumer group, so that lag tools show them.

Strategy: the node never reads these offsets back, because the positions in the stores are authoritative. A cluster that refuses
the commit costs one line in the log. The consumer that commits has its partitions assigned and paused, so it fetches nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from queryable_app.platform.log import event
from queryable_app.serve.base.background import Background
from queryable_app.serve.base.kafka_client import LazyKafkaClient
from queryable_app.serve.store.replicas import Replicas

_COMMIT_SECONDS: Final = 5.0


class GroupOffsets(Background):
    """Commit positions from `start` to `stop`. `arguments` are those of an aiokafka client."""

    def __init__(
        self, arguments: dict[str, Any], topic: str, application_id: str, replicas: Replicas
    ) -> None:
        self._topic = topic
        self._application_id = application_id
        self._replicas = replicas
        self._committed: dict[int, tuple[object, int]] = {}  # by partition: the incarnation, and its position
        self._consumer = LazyKafkaClient(
            lambda: AIOKafkaConsumer(**arguments, group_id=application_id, enable_auto_commit=False),
            self._pause_all,
        )

    async def _close(self) -> None:
        await self._consumer.drop()

    async def _run(self) -> None:
        logged = False
        while True:
            await asyncio.sleep(_COMMIT_SECONDS)
            try:
                await self.commit()
            except (KafkaError, OSError, TimeoutError) as error:
                if not logged:
                    event("group-not-committed", group=self._application_id, reason=str(error))
                    logged = True
                await self._consumer.drop()
            else:
                logged = False

    async def commit(self) -> None:
        """Commit the positions that changed since the last commit."""
        now = {
            partition: (replica.incarnation, replica.position)
            for partition, replica in self._replicas.by_partition.items()
            if replica.position >= 0
        }
        changed = {
            TopicPartition(self._topic, partition): position
            for partition, (incarnation, position) in now.items()
            if self._committed.get(partition) != (incarnation, position)
        }
        if changed:
            consumer = await self._consumer.connected()
            if not consumer.assignment() >= changed.keys():  # replicas were added since
                self._pause_all(consumer)
            await consumer.commit(changed)
            self._committed = now

    def _pause_all(self, consumer: AIOKafkaConsumer) -> None:
        partitions = [TopicPartition(self._topic, partition) for partition in self._replicas.by_partition]
        consumer.assign(partitions)
        consumer.pause(*partitions)
