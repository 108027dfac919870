"""Where the log ends, as Kafka says: what freshness is measured against.

Strategy: one loop asks for the ends of all partitions of this node, at intervals and at once when a strong read waits. A
caller is answered by a look-up that began after it came, and all who wait meanwhile share the next one. The end is the
last stable offset (read_committed): what readers may see.

Kafka may be away for as long as it likes. It is said once when it goes and once when it is back.
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
from queryable_app.serve.base.background import Background
from queryable_app.serve.base.kafka_client import LazyKafkaClient
from queryable_app.serve.store.replicas import Replicas

_AWAY_SECONDS_MIN: Final = 0.2  # between attempts while Kafka is away, doubled up to the maximum
_AWAY_SECONDS_MAX: Final = 1.0  # reads that ask for freshness are refused for so long after Kafka is back


class EndOffsets(Background):
    """Runs from `start` to `stop`. `arguments` are those of an aiokafka client."""

    def __init__(self, arguments: dict[str, Any], topic: str, replicas: Replicas, interval_ms: int) -> None:
        self._topic = topic
        self._replicas = replicas
        self._interval_seconds = interval_ms / 1000
        self._consumer = LazyKafkaClient(
            lambda: AIOKafkaConsumer(**arguments, group_id=None, isolation_level="read_committed")
        )
        self._asked: asyncio.Future[dict[int, int]] | None = None
        self._answering: asyncio.Future[dict[int, int]] | None = None
        self._wanted = asyncio.Event()
        self.away: str | None = None
        """Why Kafka cannot be asked at present; None when it answers."""

    async def _close(self) -> None:
        self._answer_failed("the node is stopping")
        await self._consumer.drop()

    async def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """The ends as of now or later. The caller brings its own deadline; raises KafkaAway."""
        if self._running is None:
            raise KafkaUnavailable("this node does not ask Kafka")
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self._wanted.set()
        ends = await asyncio.shield(self._asked)
        wanted = {partition: ends.get(partition) for partition in partitions}
        if None in wanted.values():
            raise KafkaUnavailable("a copy has left this node meanwhile")
        return {partition: end for partition, end in wanted.items() if end is not None}

    async def _run(self) -> None:
        pause = _AWAY_SECONDS_MIN
        if self._answering is not None:  # this part is started again, and nothing else answers them
            self._answer_failed("the look-up was broken off")
        while True:
            self._wanted.clear()
            try:
                await self._look_up()
            except (KafkaError, OSError, TimeoutError) as error:
                why = str(error) or type(error).__name__
                if self.away is None:
                    event("kafka-away", reason=why)
                    pause = _AWAY_SECONDS_MIN
                self.away = why
                self._answer_failed(why)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _AWAY_SECONDS_MAX)
                continue
            if self.away is not None:
                event("kafka-back")
                self.away = None
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_seconds):
                    await self._wanted.wait()

    async def _look_up(self) -> None:
        consumer = await self._consumer.connected()
        self._answering, self._asked = self._asked, None
        # As the question finds them: replicas come, go and begin anew meanwhile. Of one that the topic has no partition
        # for, Kafka's refusal would be one for all.
        there = self._replicas.topic_partitions or self._replicas.partitions
        held = {
            p: (replica, replica.incarnation)
            for p, replica in self._replicas.by_partition.items()
            if p < there
        }
        as_of_ms = monotonic_ms()  # before the question: what is there then is below the answer
        asked = [TopicPartition(self._topic, partition) for partition in held]
        ends = {where.partition: end for where, end in (await consumer.end_offsets(asked)).items()}
        for partition, end in ends.items():
            replica, incarnation = held[partition]
            if replica.incarnation is incarnation:
                replica.note_end_offset(as_of_ms, end)
        if self._answering is not None:
            self._answering.set_result(ends)
            self._answering = None

    def _answer_failed(self, why: str) -> None:
        for asked in (self._answering, self._asked):
            if asked is not None:
                asked.set_exception(KafkaUnavailable(why))
                asked.exception()  # seen, also when everybody who asked has given up
        self._answering = self._asked = None
