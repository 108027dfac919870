"""Test that proofs and lookups apply to one incarnation of a replica, with the simulation's topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from aiokafka import TopicPartition

from queryable_app.serve.base.background import Background
from queryable_app.serve.kafka.end_offsets import EndOffsets
from queryable_app.serve.kafka.gaps import OffsetGaps, PendingRecords
from queryable_app.serve.store.rekeyed_replica import RekeyedReplica
from queryable_app.serve.store.replicas import Replicas
from tests.simulation.clock import Scheduler
from tests.simulation.topic import Topic, TopicConsumer
from tests.support.node import open_node
from tests.support.rekeyed import WORDS
from tests.support.waiting import until

T = TypeVar("T")


class BlockingConsumer(TopicConsumer):
    """Delay each response until the test lets it continue."""

    def __init__(self, topic: Topic) -> None:
        super().__init__({"users": topic}, Random(1))
        self.requested, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def hold(self) -> None:
        """Return when the next response is delayed."""
        self.go_on.clear()
        self.requested.clear()
        await self.requested.wait()

    async def getmany(
        self, where: TopicPartition, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[Any]]:
        return await self._blocked(super().getmany(where, timeout_ms, max_records))

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._blocked(super().end_offsets(partitions))

    async def _blocked(self, answer: Awaitable[T]) -> T:
        found = await answer
        self.requested.set()
        await self.go_on.wait()
        return found


def topic_of(records: int, markers: int) -> Topic:
    topic = Topic(Scheduler(Random(1)), 1)
    for _ in range(records):
        topic.append(0, b"k", b"1", 1)
    topic.skip(0, markers)
    return topic


@asynccontextmanager
async def running(
    tmp_path: Path, part: type[OffsetGaps | EndOffsets], consumer: BlockingConsumer, *args: Any, **spec: Any
) -> AsyncIterator[tuple[Replicas, Background]]:
    node = open_node(tmp_path, **spec)
    begun: Background = part({}, "users", node.replicas, *args)
    begun._consumer._make = lambda: consumer  # type: ignore[attr-defined]
    await begun.start()
    try:
        yield node.replicas, begun
    finally:
        await begun.stop()
        node.replicas.close()


def test_gap_is_proven_in_a_recreated_topic(tmp_path: Path) -> None:
    """A record that was found at a high offset of the old topic does not apply to the shorter new one."""

    async def run() -> None:
        consumer = BlockingConsumer(topic_of(records=100, markers=0))
        async with running(tmp_path, OffsetGaps, consumer) as (replicas, _):
            replica = replicas.by_partition[0]
            replica.apply((), replica.state._replace(position=90))
            replica.note_end_offset(1, 100)
            await until("the record is seen", lambda: replica.pending_record_offset == 90)

            consumer._topics = {"users": topic_of(records=3, markers=2)}
            replica.rebuild()
            replica.note_end_offset(2, 5)
            replica.apply((), replica.state._replace(position=3))
            await until("the markers are passed", lambda: replica.position == 5)
            assert replica.complete

    asyncio.run(run())


def test_proof_from_before_a_rebuild_moves_no_position(tmp_path: Path) -> None:
    """A proof about the old topic moves no position of the new one, whose records it would skip."""

    async def run() -> None:
        consumer = BlockingConsumer(topic_of(records=10, markers=20))
        async with running(tmp_path, OffsetGaps, consumer) as (replicas, _):
            replica = replicas.by_partition[0]
            replica.apply((), replica.state._replace(position=10))
            replica.note_end_offset(1, 30)
            await consumer.hold()
            replica.rebuild()
            replica.note_end_offset(2, 30)
            consumer.go_on.set()
            await until("the next proof has begun", lambda: replica.pending_record_offset == 0)
            assert replica.position <= 0

    asyncio.run(run())


def test_lookup_from_before_a_rebuild_completes_nothing(tmp_path: Path) -> None:
    """A replica is complete at the end offset of the topic that it reads, not of the one before."""

    async def run() -> None:
        consumer = BlockingConsumer(topic_of(records=2, markers=0))
        async with running(tmp_path, EndOffsets, consumer, 50) as (replicas, _):
            replica = replicas.by_partition[0]
            await until("the end is known", lambda: replica.end_offset == 2)
            await consumer.hold()
            replica.rebuild()
            consumer._topics = {"users": topic_of(records=50, markers=0)}
            consumer.go_on.set()
            await until("an end is known", lambda: replica.end_offset >= 0)
            assert replica.end_offset == 50

    asyncio.run(run())


def test_record_of_an_internal_topic_is_found_and_moves_no_position(tmp_path: Path) -> None:
    """The watchdog of a rekeyed view learns of a record that does not arrive. Only rows and markers move the replica."""

    async def run() -> None:
        consumer = BlockingConsumer(topic_of(records=4, markers=0))
        rekeyed = {"view": WORDS, "settings": {"group_key_format": "string"}}
        async with running(tmp_path, PendingRecords, consumer, **rekeyed) as (replicas, _):
            replica = replicas.by_partition[0]
            assert isinstance(replica, RekeyedReplica)
            replica.apply((), replica.state._replace(position=3))
            replica.note_source_ends(1, (1,))  # lower than the position in the internal topic
            await until("the record is seen", lambda: replica.pending_record_offset == 3)
            assert replica.position == 3

    asyncio.run(run())
