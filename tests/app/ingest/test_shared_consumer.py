"""Tests of the consumer that a query's tasks share, with a real broker and a real query: which task reads what, in what order."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from queryable_app.config.topic_spec import parse_spec
from queryable_app.ingest.stream import QueryStart, start_query
from tests.app.ingest.test_writer import java_rows, new_writer
from tests.integration import topics
from tests.support.fake_serve import RowSink
from tests.support.kafka import KafkaForTests
from tests.support.waiting import eventually

PARTITIONS = 4  # as many as the session has threads
BACKLOG = 60_000  # records: the shared consumer leaves them to the tasks


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[RowSink]:
    with RowSink(tmp_path / "rows.sock") as opened:
        yield opened


@pytest.fixture
def topic(kafka: KafkaForTests) -> str:
    name = f"shared-{uuid.uuid4().hex[:8]}"
    topics.create(kafka.bootstrap, name, PARTITIONS)
    return name


@contextmanager
def running(
    spark: SparkSession,
    kafka: KafkaForTests,
    topic: str,
    sink: RowSink,
    partitions: Sequence[int] = range(PARTITIONS),
    config: Mapping[str, str] = MappingProxyType({}),
    **ingest: Any,
) -> Iterator[StreamingQuery]:
    document = {
        "kafka": {"bootstrapServers": kafka.bootstrap, "config": config},
        "topic": topic,
        "ingest": ingest,
    }
    positions = dict.fromkeys(partitions, 0)
    start = QueryStart(parse_spec(document), kafka.bootstrap, PARTITIONS, positions, 5, sink.path, "realtime")
    query = start_query(spark, start, sink.path.parent / "checkpoints")
    try:
        yield query
    finally:
        query.stop()


def produce(kafka: KafkaForTests, topic: str, count: int) -> None:
    topics.produce(kafka.bootstrap, topic, [(b"key-%d" % (n % 97), b"v") for n in range(count)])


def wait_for(sink: RowSink, ends: Mapping[int, int]) -> None:
    """Wait until the sink has the last record of each partition."""

    def all_there() -> bool:
        reached = {header.partition: header.last_offset + 1 for header, _ in list(sink.slices)}
        return all(reached.get(partition, 0) >= end for partition, end in ends.items())

    eventually("all records have come", all_there, story=lambda: str(sink.frames[-20:]))


def tasks_of_the_next_records(
    kafka: KafkaForTests,
    topic: str,
    sink: RowSink,
    partitions: Sequence[int] = range(PARTITIONS),
    count: int = 100,
) -> set[int]:
    """Produce records for all partitions, and return the tasks that bring those of the sink's."""
    before = len(sink.frames)
    produce(kafka, topic, count)
    ends = topics.ends(kafka.bootstrap, topic)
    wait_for(sink, {partition: ends[partition] for partition in partitions})
    return {task for task, header in sink.frames[before:] if header is not None}


def wait_until_shared(
    kafka: KafkaForTests, topic: str, sink: RowSink, partitions: Sequence[int] = range(PARTITIONS)
) -> int:
    """Return the task that brings the records of all these partitions, as soon as there is one."""

    def only_task() -> list[int]:
        tasks = tasks_of_the_next_records(kafka, topic, sink, partitions)
        return list(tasks) if len(tasks) == 1 else []

    (task,) = eventually("one task reads all partitions", only_task)
    return task


def assert_in_order(sink: RowSink) -> None:
    """Check that no record is missing or twice, and that no row could overtake an older one of its partition on another
    connection: a task that brought rows has an acknowledged end before another one brings rows of the same partition."""
    for partition in range(PARTITIONS):
        offsets = [row.offset for row in sink.rows(partition)]
        assert offsets == list(range(len(offsets)))
        brought = [
            (n, task)
            for n, (task, header) in enumerate(sink.frames)
            if header and header.partition == partition
        ]
        for (before, task), (after, other) in itertools.pairwise(brought):
            assert task == other or (task, None) in sink.frames[before:after]


def test_one_task_reads_all_partitions_that_have_caught_up(
    spark: SparkSession, kafka: KafkaForTests, topic: str, sink: RowSink
) -> None:
    """After the first records, which each task reads by itself, those of all partitions come over one connection."""
    produce(kafka, topic, BACKLOG)
    with running(spark, kafka, topic, sink):
        wait_for(sink, topics.ends(kafka.bootstrap, topic))
        first_tasks = {task for task, header in sink.frames if header is not None}
        wait_until_shared(kafka, topic, sink)

    assert len(first_tasks) == PARTITIONS
    assert_in_order(sink)


def test_backlog_is_read_by_all_tasks(
    spark: SparkSession, kafka: KafkaForTests, topic: str, sink: RowSink
) -> None:
    """Many records at once make each task read its own partition again, until it has caught up again."""
    with running(spark, kafka, topic, sink):
        wait_until_shared(kafka, topic, sink)
        tasks = tasks_of_the_next_records(kafka, topic, sink, count=BACKLOG)
        wait_until_shared(kafka, topic, sink)

    assert len(tasks) == PARTITIONS
    assert_in_order(sink)


def test_nothing_is_lost_between_batches(
    spark: SparkSession, kafka: KafkaForTests, topic: str, sink: RowSink
) -> None:
    """While records arrive, a batch ends, the next one continues where the shared consumer was, and its tasks share one again."""
    with running(spark, kafka, topic, sink, batch="5s"):
        first = wait_until_shared(kafka, topic, sink)
        eventually(
            "a third batch has begun",
            lambda: (
                tasks_of_the_next_records(kafka, topic, sink)
                and any(hello.epoch == 2 for hello in sink.hellos)
            ),
        )
        wait_until_shared(kafka, topic, sink)

    assert (first, None) in sink.frames
    assert_in_order(sink)


def test_failure_of_the_task_that_reads_for_all_ends_the_query(
    spark: SparkSession, kafka: KafkaForTests, topic: str, sink: RowSink
) -> None:
    """The query ends with the reason of that task. No other one goes on behind the rows that are lost with its connection."""
    with running(spark, kafka, topic, sink) as query:
        sink.refused_task = wait_until_shared(kafka, topic, sink)
        while query.isActive:
            produce(kafka, topic, 100)
        with pytest.raises(StreamingQueryException, match=r"Broken pipe|reset|closed the row socket"):
            query.awaitTermination(60)

    assert_in_order(sink)


def test_queries_of_one_consumer_group_share_nothing(
    spark: SparkSession, kafka: KafkaForTests, topic: str, sink: RowSink, tmp_path: Path
) -> None:
    """The queries of two workers, each with its partitions, have a consumer each, also if the user names their group."""
    group, mine, others = {"group.id": "named"}, [0, 1], [2, 3]
    (tmp_path / "other").mkdir()
    with (
        RowSink(tmp_path / "other/rows.sock") as other,
        running(spark, kafka, topic, sink, mine, group),
        running(spark, kafka, topic, other, others, group),
    ):
        wait_until_shared(kafka, topic, sink, mine)
        wait_until_shared(kafka, topic, other, others)

    assert {header.partition for header, _ in sink.slices} == set(mine)
    assert {header.partition for header, _ in other.slices} == set(others)


def test_query_that_waits_for_records_stops_soon(
    spark: SparkSession, kafka: KafkaForTests, topic: str, sink: RowSink
) -> None:
    """Neither the task that waits for records nor those that wait for that one hold up the end of a query."""
    with running(spark, kafka, topic, sink) as query:
        wait_until_shared(kafka, topic, sink)
        query.stop()  # raises if the query does not end in ten seconds
        assert not query.isActive


def test_writer_takes_rows_of_several_partitions(spark: SparkSession, sink: RowSink) -> None:
    """Each slice has the rows of one partition, in the order in which they were written."""
    written = [(2, 7), (2, 9), (0, 4), (2, 10)]
    writer = new_writer(spark, sink)
    writer.open(0, 0)
    writer.expectFlushes(True)
    for row in [java_rows(spark, [(offset, b"k", b"v")], partition)[0] for partition, offset in written]:
        writer.process(row)
    writer.flush()
    eventually("the rows have come", lambda: len(sink.rows()) == len(written))
    writer.close(None)

    assert [(header.partition, row.offset) for header, rows in sink.slices for row in rows] == written
    assert all(
        (h.first_offset, h.last_offset) == (rows[0].offset, rows[-1].offset) for h, rows in sink.slices
    )


def test_settled_writer_goes_on(spark: SparkSession, sink: RowSink) -> None:
    """`settle` returns when serve has all rows so far, and the connection takes more."""
    writer = new_writer(spark, sink)
    writer.open(0, 0)
    rows = java_rows(spark, [(n, b"k", b"v") for n in range(2)])
    writer.expectFlushes(True)
    writer.process(rows[0])
    writer.settle()
    settled = [row.offset for row in sink.rows()]
    writer.process(rows[1])
    writer.close(None)

    assert settled == [0]
    assert [row.offset for row in sink.rows()] == [0, 1]
    assert sink.ends == 2
