"""Test end offset lookups and freshness against a real Kafka."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from queryable_app.placement.assignment import Placement, initial_placement
from queryable_app.platform.clock import monotonic_ms
from queryable_app.platform.kafka_clients import KafkaUnavailable
from queryable_app.policy.freshness import next_offset
from queryable_app.serve.kafka.group_offsets import GroupOffsets
from queryable_app.serve.node import Node
from tests.support.kafka import KafkaForTests, embedded_kafka
from tests.support.kafka_node import (
    delete_records,
    node_on,
    produce,
    producer,
)
from tests.support.node import APPLICATION_ID, NOBODY, node_settings, put, slice_payload
from tests.support.waiting import until


def test_a_strong_reader_gets_the_end_as_of_its_question(
    tmp_path: Path, kafka: KafkaForTests, topic: str
) -> None:
    """What was acknowledged before the question is below the answer, whatever look-up was under way."""

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            for count in range(1, 6):
                await produce(kafka.bootstrap, topic, b"v")
                assert await node.end_offsets.latest([0]) == {0: count}

    asyncio.run(run())


def test_a_look_up_under_way_does_not_answer_who_comes_later(
    tmp_path: Path, kafka: KafkaForTests, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that Kafka gave before the question was asked may miss what was acknowledged in between."""

    async def run() -> None:
        under_way, go_on, look_up = asyncio.Event(), asyncio.Event(), AIOKafkaConsumer.end_offsets

        async def held_up(self: AIOKafkaConsumer, partitions: Any) -> Any:
            answer = await look_up(self, partitions)
            under_way.set()
            await go_on.wait()
            return answer

        monkeypatch.setattr(AIOKafkaConsumer, "end_offsets", held_up)
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            earlier = asyncio.create_task(node.end_offsets.latest([0]))
            await under_way.wait()
            await produce(kafka.bootstrap, topic, b"v")
            later = asyncio.create_task(node.end_offsets.latest([0]))
            await asyncio.sleep(0)
            go_on.set()
            assert (await earlier, await later) == ({0: 0}, {0: 1})

    asyncio.run(run())


def test_callers_that_wait_share_one_look_up(
    tmp_path: Path, kafka: KafkaForTests, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred strong reads at once are not a hundred requests to Kafka."""

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            await node.end_offsets.latest([0])
            asked = 0
            look_up = AIOKafkaConsumer.end_offsets

            async def counted(self: AIOKafkaConsumer, partitions: Any) -> Any:
                nonlocal asked
                asked += 1
                return await look_up(self, partitions)

            monkeypatch.setattr(AIOKafkaConsumer, "end_offsets", counted)
            await asyncio.gather(*(node.end_offsets.latest([0]) for _ in range(100)))
            assert asked <= 2

    asyncio.run(run())


def test_an_empty_topic_is_complete_at_once(tmp_path: Path, kafka: KafkaForTests, topic: str) -> None:
    """There is nothing to be missing: the copy is at the end, complete and fresh."""

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            replica = node.replicas.by_partition[0]
            await until("completeness", lambda: replica.complete and replica.fresh_as_of_ms > 0)
            assert (next_offset(replica), replica.end_offset) == (0, 0)

    asyncio.run(run())


def test_a_topic_whose_records_are_all_gone_is_complete_at_its_end(
    tmp_path: Path, kafka: KafkaForTests, topic: str
) -> None:
    """A log that begins and ends at the same offset above 0 is an empty one too."""

    async def run() -> None:
        await produce(kafka.bootstrap, topic, b"1", b"2", b"3")
        await delete_records(kafka.bootstrap, topic, 3)
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            replica = node.replicas.by_partition[0]
            await until("completeness", lambda: replica.complete)
            assert replica.position == 3

    asyncio.run(run())


def test_freshness_is_the_moment_of_a_reached_end(tmp_path: Path, kafka: KafkaForTests, topic: str) -> None:
    """The copy is as fresh as the question was old when its end was reached, never fresher than now."""

    async def run() -> None:
        await produce(kafka.bootstrap, topic, b"1")
        before = monotonic_ms()
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            replica = node.replicas.by_partition[0]
            await until("an end", lambda: replica.end_offset == 1)
            assert (replica.fresh_as_of_ms, replica.complete) == (-1, False)
            node.slices.apply(slice_payload(put(0, b"k", b"1")))
            assert replica.complete
            await until("freshness", lambda: replica.fresh_as_of_ms >= before)
            assert replica.fresh_as_of_ms <= monotonic_ms()

    asyncio.run(run())


def test_an_open_transaction_is_not_part_of_the_log(tmp_path: Path, kafka: KafkaForTests, topic: str) -> None:
    """The end is the last stable offset: what readers may not see does not make a copy late."""

    async def run() -> None:
        async with producer(kafka.bootstrap, transactional_id=uuid.uuid4().hex) as sender:
            await sender.begin_transaction()
            await sender.send_and_wait(topic, b"v", key=b"k", partition=0)
            async with node_on(tmp_path, kafka.bootstrap, topic) as node:
                assert await node.end_offsets.latest([0]) == {0: 0}
                await sender.commit_transaction()  # the marker follows a moment later
                await until("the marker", lambda: node.replicas.by_partition[0].end_offset == 2)

    asyncio.run(run())


def test_without_kafka_a_node_starts_and_says_so_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Strong reads fail at once with KafkaAway, and the log has one line."""

    async def run() -> None:
        async with node_on(tmp_path, NOBODY, "users") as node:
            for _ in range(2):
                with pytest.raises(KafkaUnavailable):
                    await node.end_offsets.latest([0])
            assert node.end_offsets.unavailable is not None

    asyncio.run(run())
    assert capfd.readouterr().err.count('"event": "kafka-away"') == 1


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaForTests]:
    """A broker that may be killed."""
    with embedded_kafka(tmp_path / "kafka") as broker:
        yield broker


def test_a_killed_broker_is_noticed_and_found_again(
    tmp_path: Path, own_kafka: KafkaForTests, capfd: pytest.CaptureFixture[str]
) -> None:
    """kill -9: one line when it goes, one when it is back, and ends are known again."""
    own_kafka.create_topic("users", 1)

    async def run() -> None:
        async with node_on(tmp_path, own_kafka.bootstrap, "users") as node:
            await node.end_offsets.latest([0])
            own_kafka.kill()
            await until("away", lambda: node.end_offsets.unavailable is not None)
            await asyncio.to_thread(own_kafka.start)
            await until("back", lambda: node.end_offsets.unavailable is None, 40)
            assert await node.end_offsets.latest([0]) == {0: 0}

    asyncio.run(run())
    logged = capfd.readouterr().err
    assert (logged.count('"kafka-away"'), logged.count('"kafka-back"')) == (1, 1)


def test_what_asks_kafka_follows_the_copies(tmp_path: Path, kafka: KafkaForTests) -> None:
    """A partition that comes is asked for and its position committed; one that goes is not asked for any more."""
    topic = f"log-end-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 2)
    placement = initial_placement(APPLICATION_ID, 2, ["http://127.0.0.1:1", "http://127.0.0.1:2"], 1)

    async def run() -> None:
        async with producer(kafka.bootstrap) as sender:
            for partition in (0, 1, 1):
                await sender.send_and_wait(topic, b"v", key=b"k", partition=partition)
        settings = node_settings(tmp_path, 2, topic=topic, bootstrap=kafka.bootstrap)
        write(settings.placement_path, replace(placement, serving=((0,), (1,))))
        node = Node.open(settings)
        positions = GroupOffsets({"bootstrap_servers": kafka.bootstrap}, topic, APPLICATION_ID, node.replicas)
        await node.start()
        try:
            node.slices.apply(slice_payload(put(0, b"k", b"v")))
            assert await node.end_offsets.latest([0]) == {0: 1}
            await positions.commit()

            node.assigned_replicas.follow(replace(placement, epoch=2, serving=((1,), (0,))))
            replica = node.replicas.by_partition[1]
            await until("the end is known", lambda: replica.opened and replica.end_offset == 2)
            assert await node.end_offsets.latest([1]) == {1: 2}
            with pytest.raises(KafkaUnavailable):
                await node.end_offsets.latest([0])
            replica.accepts_slices = True
            node.slices.apply(slice_payload(put(0, b"k", b"v"), put(1, b"k", b"v"), partition=1))
            await positions.commit()
            where = TopicPartition(topic, 1)
            async with AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=APPLICATION_ID) as tool:
                tool.assign([where])
                assert await tool.committed(where) == 2
        finally:
            await positions.stop()
            await node.stop()

    asyncio.run(run())


def write(path: str, placement: Placement) -> None:
    Path(path).write_text(placement.to_json())
