"""Tells Kafka how far this node is, under the application's group, so that every lag tool can show it.

Strategy: for show alone. Nobody ever reads these offsets back, the positions in the stores are the truth; a cluster that
does not let us commit costs one line in the log and nothing else. The consumer that commits is assigned its partitions
and paused, so it fetches nothing.
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
    """Runs from `start` to `stop`. `arguments` are those of an aiokafka client."""

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
        said = False
        while True:
            await asyncio.sleep(_COMMIT_SECONDS)
            try:
                await self.commit()
            except (KafkaError, OSError, TimeoutError) as error:
                if not said:
                    event("group-not-committed", group=self._application_id, reason=str(error))
                    said = True
                await self._consumer.drop()
            else:
                said = False

    async def commit(self) -> None:
        """Commit the positions that have changed since the last time."""
        now = {
            partition: (replica.incarnation, replica.position)
            for partition, replica in self._replicas.by_partition.items()
            if replica.position >= 0
        }
        changed = {
            TopicPartition(self._topic, partition): said[1]
            for partition, said in now.items()
            if self._committed.get(partition) != said
        }
        if changed:
            consumer = await self._consumer.connected()
            if not consumer.assignment() >= changed.keys():  # the node has got copies since
                self._pause_all(consumer)
            await consumer.commit(changed)
            self._committed = now

    def _pause_all(self, consumer: AIOKafkaConsumer) -> None:
        partitions = [TopicPartition(self._topic, partition) for partition in self._replicas.by_partition]
        consumer.assign(partitions)
        consumer.pause(*partitions)
