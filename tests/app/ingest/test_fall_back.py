"""Test that a query that Spark refuses to run in Real-Time Mode runs in micro-batches, with the reason reported."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from queryable_app.config.topic_spec import parse_spec_json
from queryable_app.ingest import stream, transform
from queryable_app.ingest.control import Superseded
from queryable_app.ingest.supervisor import Supervisor
from tests.support.fake_serve import FakeServe
from tests.support.kafka import KafkaForTests
from tests.support.waiting import eventually

_SHORTEST_BATCH = "spark.sql.streaming.realTimeMode.minBatchDuration"


@contextmanager
def supervised(spark: SparkSession, bootstrap: str, topic: str, directory: Path) -> Iterator[FakeServe]:
    """Run a supervisor in this process over the tests' own Spark, started by a fake serve."""
    spec = parse_spec_json(json.dumps({"kafka": {"bootstrapServers": bootstrap}, "topic": topic}))
    supervisor = Supervisor(spark, spec, bootstrap, directory, directory / "scratch", 1, False)

    def run() -> None:
        with contextlib.suppress(Superseded):
            supervisor.run()

    with FakeServe(directory) as serve:
        running = threading.Thread(target=run, daemon=True)
        running.start()
        serve.wait_for_type("hello")
        serve.send({"type": "wanted", "topic": topic, "partitions": [0]})
        serve.wait_for_type("topic")
        serve.send({"type": "start", "generation": 1, "positions": {"0": -2}})
        yield serve
        serve.send({"type": "superseded"})
        running.join(30)
        assert not running.is_alive()


@contextmanager
def too_short_batches(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make Spark consider the batches shorter than the minimum."""
    before = spark.conf.get(_SHORTEST_BATCH) or ""
    spark.conf.set(_SHORTEST_BATCH, "3600000")
    yield
    spark.conf.set(_SHORTEST_BATCH, before)


@contextmanager
def an_operator_too_many(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add an operator to the plan that is not on Spark's list."""
    project = transform.project

    def more(*arguments: Any) -> transform.Projection:
        projection = project(*arguments)
        return replace(projection, frame=projection.frame.coalesce(1))

    monkeypatch.setattr(stream, "project", more)
    yield


@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [(too_short_batches, "REAL_TIME_MODE_TRIGGER_INTERVAL"), (an_operator_too_many, "CoalesceExec")],
)
def test_refused_query_runs_in_micro_batches(
    spark: SparkSession,
    kafka: KafkaForTests,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    refusal: Callable[..., Any],
    sentence: str,
) -> None:
    """A refused query runs in micro-batches: log and status have Spark's own refusal, and the rows arrive."""
    topic = f"refused-{refusal.__name__}"
    kafka.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    producer.produce(topic, b'"v"', b"k")
    assert producer.flush(20) == 0

    with (
        refusal(spark, monkeypatch),
        supervised(spark, kafka.bootstrap, topic, tmp_path) as serve,
    ):
        restarting = serve.wait_for_state("restarting")
        assert (restarting["mode"], sentence in restarting["detail"]) == ("microbatch", True), restarting
        since = serve.received.index(restarting)  # before it was refused, it may have looked like streaming
        serve.wait_for_type("topic", skip=since)
        serve.send({"type": "start", "generation": 2, "positions": {"0": -2}})
        streaming = serve.wait_for_state("streaming", 60, since)
        assert (streaming["mode"], sentence in streaming["detail"]) == ("microbatch", True), streaming
        eventually("the row has come", lambda: [row.disk_key for row in serve.rows.rows()] == [b"k"], 30)

    warned = [line for line in capfd.readouterr().err.splitlines() if '"real-time-refused"' in line]
    assert len(warned) == 1
    assert sentence in warned[0]
