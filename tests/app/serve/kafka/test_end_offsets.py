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
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.metadata import MetadataRequest

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
from tests.support.node import APPLICATION_ID, UNREACHABLE_KAFKA, node_settings, put, slice_payload
from tests.support.waiting import until


def test_lookup_returns_the_end_offset_as_of_the_call(
    tmp_path: Path, kafka: KafkaForTests, topic: str
) -> None:
    """Records that were acknowledged before the call are below the end offset, whatever lookup was under
    way."""

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            for count in range(1, 6):
                await produce(kafka.bootstrap, topic, b"v")
                assert await node.end_offsets.latest([0]) == {0: count}

    asyncio.run(run())


def test_running_lookup_does_not_answer_later_callers(
    tmp_path: Path, kafka: KafkaForTests, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer from before the call may miss records that were acknowledged in between."""

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


def test_waiting_callers_share_one_lookup(
    tmp_path: Path, kafka: KafkaForTests, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred strong reads at once are not a hundred requests to Kafka."""

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            await node.end_offsets.latest([0])
            calls = 0
            look_up = AIOKafkaConsumer.end_offsets

            async def counted(self: AIOKafkaConsumer, partitions: Any) -> Any:
                nonlocal calls
                calls += 1
                return await look_up(self, partitions)

            monkeypatch.setattr(AIOKafkaConsumer, "end_offsets", counted)
            await asyncio.gather(*(node.end_offsets.latest([0]) for _ in range(100)))
            assert calls <= 2

    asyncio.run(run())


def test_node_that_stops_while_it_connects_closes_every_connection(
    tmp_path: Path, kafka: KafkaForTests, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup that is cancelled while it asks Kafka for the brokers leaves no connection open."""
    opened: list[AIOKafkaConnection] = []
    send = AIOKafkaConnection.send

    async def run() -> None:
        asks = asyncio.Event()

        def noted(self: AIOKafkaConnection, request: Any, **more: Any) -> Any:
            opened.append(self)
            if isinstance(request, MetadataRequest):
                asks.set()
            return send(self, request, **more)

        monkeypatch.setattr(AIOKafkaConnection, "send", noted)
        async with node_on(tmp_path, kafka.bootstrap, topic):
            await asks.wait()
        assert not [connection for connection in opened if connection.connected()]

    asyncio.run(run())


def test_replica_of_an_empty_topic_is_complete_at_once(
    tmp_path: Path, kafka: KafkaForTests, topic: str
) -> None:
    """A replica of an empty topic is at the end offset, complete and fresh."""

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            replica = node.replicas.by_partition[0]
            await until("completeness", lambda: replica.complete and replica.fresh_as_of_ms > 0)
            assert (next_offset(replica), replica.end_offset) == (0, 0)

    asyncio.run(run())


def test_end_before_the_position_says_nothing(tmp_path: Path, kafka: KafkaForTests, topic: str) -> None:
    """A replica that is beyond the end has rows of a topic that was deleted, and made again with fewer records: no lookup
    makes it fresh, and a strong read is refused."""

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            replica = node.replicas.by_partition[0]
            await produce(kafka.bootstrap, topic, b"v")
            await node.end_offsets.latest([0])
            node.slices.apply(slice_payload(put(0, b"a", b"1"), put(1, b"a", b"2")))
            with pytest.raises(KafkaUnavailable, match="beyond the end of the topic"):
                await node.end_offsets.latest([0])
            before = replica.fresh_as_of_ms  # a lookup that had begun before the rows came has ended now
            with pytest.raises(KafkaUnavailable, match="beyond the end of the topic"):
                await node.end_offsets.latest([0])
            assert replica.fresh_as_of_ms == before

            await produce(kafka.bootstrap, topic, b"v")
            assert await node.end_offsets.latest([0]) == {0: 2}
            assert replica.fresh_as_of_ms > before

    asyncio.run(run())


def test_topic_without_remaining_records_is_complete_at_its_end(
    tmp_path: Path, kafka: KafkaForTests, topic: str
) -> None:
    """A log that begins and ends at the same offset above 0 is empty too."""

    async def run() -> None:
        await produce(kafka.bootstrap, topic, b"1", b"2", b"3")
        await delete_records(kafka.bootstrap, topic, 3)
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            replica = node.replicas.by_partition[0]
            await until("completeness", lambda: replica.complete)
            assert replica.position == 3

    asyncio.run(run())


def test_freshness_is_the_moment_of_the_reached_end_offset(
    tmp_path: Path, kafka: KafkaForTests, topic: str
) -> None:
    """A replica is as fresh as the lookup whose end offset it has reached, and never fresher than now."""

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


def test_open_transaction_does_not_count_as_lag(tmp_path: Path, kafka: KafkaForTests, topic: str) -> None:
    """The end offset is the last stable offset: records that consumers may not see are no lag."""

    async def run() -> None:
        async with producer(kafka.bootstrap, transactional_id=uuid.uuid4().hex) as sender:
            await sender.begin_transaction()
            await sender.send_and_wait(topic, b"v", key=b"k", partition=0)
            async with node_on(tmp_path, kafka.bootstrap, topic) as node:
                assert await node.end_offsets.latest([0]) == {0: 0}
                await sender.commit_transaction()  # the marker follows a moment later
                await until("the marker", lambda: node.replicas.by_partition[0].end_offset == 2)

    asyncio.run(run())


def test_node_starts_without_kafka(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Strong reads fail at once with KafkaUnavailable, and the log has one line."""

    async def run() -> None:
        async with node_on(tmp_path, UNREACHABLE_KAFKA, "users") as node:
            for _ in range(2):
                with pytest.raises(KafkaUnavailable):
                    await node.end_offsets.latest([0])
            assert node.end_offsets.unavailable is not None

    asyncio.run(run())
    assert capfd.readouterr().err.count('"event": "kafka-away"') == 1


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaForTests]:
    """Run a broker that a test may kill."""
    with embedded_kafka(tmp_path / "kafka") as broker:
        yield broker


def test_lookups_recover_from_a_killed_broker(
    tmp_path: Path, own_kafka: KafkaForTests, capfd: pytest.CaptureFixture[str]
) -> None:
    """After kill -9 the log has one line when Kafka is unavailable and one when it is back, and lookups
    work again."""
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


def test_lookups_and_commits_follow_the_assigned_replicas(tmp_path: Path, kafka: KafkaForTests) -> None:
    """An added partition is looked up and its position committed. A removed one is not looked up any more."""
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
