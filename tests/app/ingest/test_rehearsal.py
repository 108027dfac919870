"""Test the rehearsal of the pause between two batches, with Spark and Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from queryable_app.config.topic_spec import parse_spec
from queryable_app.ingest.rehearsal import Rehearsal
from queryable_app.ingest.stream import QueryStart
from tests.support.kafka import KafkaForTests
from tests.support.waiting import eventually


def rehearsed(spark: SparkSession, kafka: KafkaForTests, partition: int, directory: Path) -> Rehearsal:
    spec = parse_spec({"kafka": {"bootstrapServers": kafka.bootstrap}, "topic": "rehearsed"})
    start = QueryStart(spec, kafka.bootstrap, 1, {partition: -2}, 1, directory / "rows.sock", "realtime")
    rehearsal = Rehearsal(spark, start, directory, directory)

    def ended() -> bool:
        rehearsal.end_when_done()
        return not rehearsal.running

    eventually("the rehearsal has ended", ended, 60)
    return rehearsal


@pytest.fixture
def topic(kafka: KafkaForTests) -> KafkaForTests:
    if not kafka.partitions_of("rehearsed"):
        kafka.create_topic("rehearsed", 1)
    return kafka


def test_rehearsal_runs_its_batches_and_ends(
    spark: SparkSession, topic: KafkaForTests, tmp_path: Path
) -> None:
    """A rehearsal of an empty topic runs its batches, writes no rows, and leaves nothing behind."""
    rehearsal = rehearsed(spark, topic, 0, tmp_path)

    assert rehearsal.batches >= 3
    assert spark.streams.active == []
    assert not list(tmp_path.glob("*.sock"))


def test_failed_rehearsal_ends(spark: SparkSession, topic: KafkaForTests, tmp_path: Path) -> None:
    """A rehearsal of a partition that the topic lacks fails and ends."""
    rehearsal = rehearsed(spark, topic, 7, tmp_path)

    assert rehearsal.batches == 0
    assert spark.streams.active == []


def test_rehearsal_with_a_too_long_path_ends(
    spark: SparkSession, topic: KafkaForTests, tmp_path: Path
) -> None:
    """A rehearsal whose socket path is too long ends."""
    directory = tmp_path / ("x" * 100)
    directory.mkdir()

    assert rehearsed(spark, topic, 0, directory).batches == 0
