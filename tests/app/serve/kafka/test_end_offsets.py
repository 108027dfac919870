"""The log's end, gaps and the producer, against a real Kafka."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from queryable_app.errors import Failure, Reason
from queryable_app.placement.assignment import Placement, initial_placement
from queryable_app.platform.clock import monotonic_ms
from queryable_app.platform.kafka_clients import KafkaUnavailable
from queryable_app.policy.freshness import next_offset
from queryable_app.serve.api.status import status_json
from queryable_app.serve.kafka.group_offsets import GroupOffsets
from queryable_app.serve.node import Node
from tests.support.kafka import KafkaForTests, embedded_kafka
from tests.support.node import APPLICATION_ID, NOBODY, bad, node_settings, open_node, put, slice_payload
from tests.support.waiting import until


@pytest.fixture
def topic(kafka: KafkaForTests) -> str:
    name = f"log-end-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 1)
    return name


@asynccontextmanager
async def node_on(tmp_path: Path, bootstrap: str, topic: str, **spec: Any) -> AsyncIterator[Node]:
    settings = {"log_end_interval_ms": 50}
    node = open_node(tmp_path, topic=topic, bootstrap=bootstrap, settings=settings, **spec)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


@asynccontextmanager
async def producer(bootstrap: str, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **options) as started:
        yield started


async def produce(bootstrap: str, topic: str, *values: bytes) -> None:
    async with producer(bootstrap) as sender:
        for value in values:
            await sender.send_and_wait(topic, value, key=b"k", partition=0)


async def produce_in_transaction(bootstrap: str, topic: str, commit: bool) -> None:
    """Returns when the transaction's marker is in the log, which is later than Kafka's answer."""
    async with producer(bootstrap, transactional_id=uuid.uuid4().hex) as sender:
        await sender.begin_transaction()
        sent = await sender.send_and_wait(topic, b"v", key=b"k", partition=0)
        if commit:
            await sender.commit_transaction()
        else:
            await sender.abort_transaction()
    where, deadline = TopicPartition(topic, 0), time.monotonic() + 20
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as reader:
        while (await reader.end_offsets([where]))[where] < sent.offset + 2:
            assert time.monotonic() < deadline, "no marker came"
            await asyncio.sleep(0.01)


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
        await _delete_records(kafka.bootstrap, topic, 3)
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


@pytest.mark.parametrize("commit", [True, False], ids=["commit marker", "aborted"])
def test_trailing_markers_are_proven_away(
    tmp_path: Path, kafka: KafkaForTests, topic: str, commit: bool
) -> None:
    """The marker at the end of a transaction, or the whole of an aborted one, never arrives; the copy gets to the
    end."""

    async def run() -> None:
        await produce_in_transaction(kafka.bootstrap, topic, commit)
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            replica = node.replicas.by_partition[0]
            await until("an end", lambda: replica.end_offset == 2)
            if commit:
                node.slices.apply(slice_payload(put(0, b"k", b"v")))
                assert replica.position == 1
            await until("the end reached", lambda: replica.position == 2)
            assert replica.complete

    asyncio.run(run())


def test_a_record_that_is_there_is_never_skipped(tmp_path: Path, kafka: KafkaForTests, topic: str) -> None:
    """A gap is proven up to the first record that ingest still has to bring, and not beyond."""

    async def run() -> None:
        await produce_in_transaction(kafka.bootstrap, topic, False)
        await produce(kafka.bootstrap, topic, b"there")
        await produce_in_transaction(kafka.bootstrap, topic, False)
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            replica = node.replicas.by_partition[0]
            await until("the record's offset", lambda: replica.position == 2)
            await until("a later end", lambda: replica.end_offset == 5)
            for _ in range(10):  # as many look-ups of the end as it takes for a wrong proof to show
                await node.end_offsets.latest([0])
                await asyncio.sleep(0.05)
            assert (replica.position, replica.complete) == (2, False)

            node.slices.apply(slice_payload(put(2, b"k", b"there")))
            await until("the end reached", lambda: replica.position == 5)

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


def test_a_posted_record_has_its_offset(tmp_path: Path, kafka: KafkaForTests, topic: str) -> None:
    """The offset comes after the broker's acknowledgement; a tombstone is a record too."""

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, topic) as node:
            assert await node.producer.send(b"k", b"v", 0) == 0
            assert await node.producer.send(b"k", None, 0) == 1
            assert await node.end_offsets.latest([0]) == {0: 2}

    asyncio.run(run())


def test_a_record_that_the_topic_does_not_take_is_too_large(tmp_path: Path, kafka: KafkaForTests) -> None:
    """The broker's bound is answered as `too_large`, and the next record goes through."""
    name = f"small-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 1, {"max.message.bytes": "1000"})

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, name) as node:
            with pytest.raises(Failure) as raised:
                await node.producer.send(b"k", b"x" * 2000, 0)
            assert raised.value.reason is Reason.TOO_LARGE
            assert await node.producer.send(b"k", b"v", 0) == 0

    asyncio.run(run())


def test_without_kafka_a_posted_record_is_refused_in_time(tmp_path: Path) -> None:
    """Nothing was written, and the answer says so before the deadline is long over."""

    async def run() -> None:
        async with node_on(tmp_path, NOBODY, "users") as node:
            with pytest.raises(Failure) as raised:
                await node.producer.send(b"k", b"v", 0, deadline_seconds=1)
            assert raised.value.reason is Reason.NOT_AVAILABLE

    asyncio.run(run())


def test_a_dead_letter_says_where_it_came_from(tmp_path: Path, kafka: KafkaForTests, topic: str) -> None:
    """The raw record is in `<applicationId>.dead-letter` with topic, partition, offset and reason, before the slice is
    applied."""

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, topic, onBadRecord="DeadLetter") as node:
            payload = slice_payload(bad(0, b"k", f"not JSON {topic}", b"\xff raw"))
            await node.slices.write_dead_letters(payload)
            node.slices.apply(payload)

            found = [
                r
                for r in await _records(kafka, "tests.users.r1.dead-letter")
                if r.headers[0][1].decode() == topic
            ]
            assert [(r.key, r.value) for r in found] == [(b"k", b"\xff raw")]
            assert dict(found[0].headers) == {
                "topic": topic.encode(),
                "partition": b"0",
                "offset": b"0",
                "reason": f"not JSON {topic}".encode(),
            }
            assert node.replicas.by_partition[0].position == 1

    asyncio.run(run())


async def _records(kafka: KafkaForTests, name: str) -> list[Any]:
    where = TopicPartition(name, 0)
    async with AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest", group_id=None
    ) as consumer:
        consumer.assign([where])
        end = (await consumer.end_offsets([where]))[where]
        records: list[Any] = []
        while not records or records[-1].offset < end - 1:
            records += (await consumer.getmany(where, timeout_ms=1000)).get(where, [])
        return records


LETTERS = 20
LARGE = b"x" * 30_000


@pytest.mark.parametrize(
    ("bytes_max", "sizes", "written"),
    [
        (20_000, {len(LARGE): 16_384}, {"whole": LETTERS, "truncated": 1}),
        (700, {len(LARGE): 0}, {"whole": LETTERS, "truncated": 1}),
        (80, {}, {"skipped": LETTERS + 1}),
    ],
    ids=["truncated", "without its value", "skipped"],
)
def test_a_dead_letter_that_is_too_large_stops_no_partition(
    tmp_path: Path,
    kafka: KafkaForTests,
    topic: str,
    bytes_max: int,
    sizes: dict[int, int],
    written: dict[str, int],
) -> None:
    """It is truncated as far as Kafka asks, with headers that name its size, or skipped and counted; the position moves on."""
    dead = f"{topic}.dead-letter"
    kafka.create_topic(dead, 1, {"max.message.bytes": str(bytes_max)})

    async def run() -> None:
        async with node_on(tmp_path, kafka.bootstrap, topic, onBadRecord="DeadLetter") as node:
            node.dead_letters.name = dead
            values = [LARGE, *(b"small" for _ in range(LETTERS))]
            payload = slice_payload(
                *(bad(n, b"k%d" % n, "not JSON", value) for n, value in enumerate(values))
            )
            async with asyncio.timeout(60):
                await node.slices.write_dead_letters(payload)
            node.slices.apply(payload)

            assert node.replicas.by_partition[0].position == len(values)
            assert status_json(node)["deadLetters"]["written"] == written
            assert status_json(node)["deadLetters"]["waiting"] == {}
            if sizes:
                found = await _records(kafka, dead)
                cut = {
                    int(said["original-value-bytes"]): len(r.value)
                    for r in found
                    if "truncated" in (said := dict(r.headers))
                }
                assert cut == sizes

    asyncio.run(run())


def test_a_partition_that_waits_for_the_dead_letter_topic_is_named(tmp_path: Path) -> None:
    """Without Kafka the slice waits; status says which partition, why, and when the next attempt is."""

    async def run() -> None:
        async with node_on(tmp_path, NOBODY, "users", onBadRecord="DeadLetter") as node:
            waiting = asyncio.create_task(
                node.slices.write_dead_letters(slice_payload(bad(0, b"k", "not JSON")))
            )
            await until("it is named", lambda: status_json(node)["deadLetters"]["waiting"].get("0"))
            assert status_json(node)["deadLetters"]["waiting"]["0"]["reason"]
            waiting.cancel()
            await asyncio.wait([waiting])
            assert status_json(node)["deadLetters"]["waiting"] == {}

    asyncio.run(run())


def test_positions_are_committed_for_lag_tools(tmp_path: Path, kafka: KafkaForTests, topic: str) -> None:
    """The application's group shows how far the copies are, and follows them."""
    where = TopicPartition(topic, 0)

    async def run() -> None:
        await produce(kafka.bootstrap, topic, b"1", b"2")
        node = open_node(tmp_path, topic=topic, bootstrap=kafka.bootstrap)
        positions = GroupOffsets(
            {"bootstrap_servers": kafka.bootstrap}, topic, "tests.users.r1", node.replicas
        )
        async with AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id="tests.users.r1") as tool:
            tool.assign([where])
            for offset in range(2):
                node.slices.apply(slice_payload(put(offset, b"k", b"v")))
                await positions.commit()
                assert await tool.committed(where) == offset + 1
        await positions.stop()
        node.replicas.close()

    asyncio.run(run())


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


async def _delete_records(bootstrap: str, topic: str, before: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=before)})
    finally:
        await admin.close()
