"""Test the rehearsal of the pause between two batches, with Spark and Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queryable_app.config.topic_spec import parse_spec
from queryable_app.ingest.decoded_records import View
from queryable_app.ingest.rehearsal import Rehearsal, turn_to_rehearse
from queryable_app.ingest.sample_record import rehearse_record
from queryable_app.ingest.stream import QueryStart, view_of
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


def test_jvm_that_lives_for_seconds_rehearses_nothing() -> None:
    """No supervisor rehearses in a JVM that runs with the first compiler only; in any other, one does."""
    assert turn_to_rehearse(["-XX:TieredStopAtLevel=1"]).locked()
    assert not turn_to_rehearse(["-Xss8m"]).locked()


def test_rehearsal_with_a_too_long_path_ends(
    spark: SparkSession, topic: KafkaForTests, tmp_path: Path
) -> None:
    """A rehearsal whose socket path is too long ends."""
    directory = tmp_path / ("x" * 100)
    directory.mkdir()

    assert rehearsed(spark, topic, 0, directory).batches == 0


def _view(**fields: Any) -> View:
    return view_of(parse_spec({"kafka": {"bootstrapServers": "localhost:9"}, "topic": "t", **fields}))


def _counted(group_by: str, **fields: Any) -> View:
    aggregate = {"groupBy": [group_by], "columns": [{"name": "n", "op": "count"}]}
    return _view(view={"kind": "aggregate", "aggregate": aggregate}, **fields)


def test_made_up_record_passes_through_any_view(spark: SparkSession) -> None:
    """Spark computes the rows of a made-up record, whatever the view makes of records."""
    text = {"value": {"format": "string"}}
    rows = {"sql": "SELECT explode(split(value, ' ')) AS word FROM records"}
    fields = {"value": {"schema": "f0 INT"}, "transform": {"sql": "SELECT value.f0 AS f0 FROM records"}}

    for view in (
        _view(),
        _view(**fields),
        _view(view={"keyBy": ["f0"]}, **fields),
        _counted("f0", **fields),
        _counted("word", transform=rows, **text),
    ):
        assert rehearse_record(spark, view)


def test_made_up_record_reaches_the_expressions(spark: SparkSession) -> None:
    """The made-up record is computed, and not only planned: SQL that fails on every record fails, and nothing else does."""
    sql = "SELECT key, raise_error(CAST(value.f0 AS STRING)) AS e FROM records"

    assert not rehearse_record(spark, _view(value={"schema": "f0 INT"}, transform={"sql": sql}))
