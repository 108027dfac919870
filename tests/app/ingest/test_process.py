"""Test what the ingest process reports, sends and survives, between a real Kafka and sockets of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import initial_placement
from queryable_app.wire.check_report import reported_format
from queryable_app.wire.ingest_failures import parse_failure
from tests.support.fake_serve import FakeServe
from tests.support.kafka import KafkaForTests
from tests.support.waiting import eventually

PARTITIONS = 2


@dataclass
class Ingest:
    """Run the ingest process, and the fake serve that it connects to."""

    serve: FakeServe
    environ: Mapping[str, str]
    topic: str
    process: subprocess.Popen[bytes] = field(init=False)
    generation: int = 0

    def launch(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", "queryable_app.ingest"], env={**self.environ})

    def wanted(self, skip: int = 0) -> None:
        self.serve.wait_for_type("hello", 60, skip)
        self.serve.send({"type": "wanted", "topic": self.topic, "partitions": list(range(PARTITIONS))})

    def start(self, positions: Mapping[str, int] | None = None, skip: int = 0) -> dict[str, Any]:
        """Answer ingest's report of the topic with a start, and return the report."""
        topic = self.serve.wait_for(lambda m: m["type"] == "topic" and m["id"] is not None, 60, skip)
        self.generation += 1
        positions = positions or {str(p): -2 for p in range(PARTITIONS)}
        self.serve.send({"type": "start", "generation": self.generation, "positions": positions})
        return topic

    def jvm(self) -> psutil.Process:
        (java,) = (p for p in psutil.Process(self.process.pid).children() if p.name() == "java")
        return java

    def received_count(self) -> int:
        return len(self.serve.received)


def settings(directory: Path, kafka: str, topic: str, **spec: Any) -> NodeSettings:
    placement = directory / "placement.json"
    placement.write_text(initial_placement("local.t.r1", PARTITIONS, ["http://127.0.0.1:1"], 1).to_json())
    spec_path = directory / "spec.json"
    spec_path.write_text(json.dumps({"kafka": {"bootstrapServers": kafka}, "topic": topic, **spec}))
    run_dir = directory / "run"
    run_dir.mkdir(exist_ok=True)
    return NodeSettings(
        name="t-0",
        ordinal=0,
        application_id="local.t.r1",
        spec_path=str(spec_path),
        bootstrap_servers=kafka,
        advertised_url="http://127.0.0.1:1",
        data_dir=str(directory),
        run_dir=str(run_dir),
        placement_path=str(placement),
        cache_dir=os.environ.get("QT_CACHE_DIR", ""),
    )


@pytest.fixture
def new_ingest(tmp_path: Path, kafka: KafkaForTests) -> Iterator[Callable[..., Ingest]]:
    made: list[Ingest] = []

    def make(topic: str, bootstrap: str | None = None, jvm_options: str | None = None, **spec: Any) -> Ingest:
        node = settings(tmp_path, bootstrap or kafka.bootstrap, topic, **spec)
        environ = {**os.environ, **node.to_env()}
        if jvm_options is not None:
            environ["QT_JVM_OPTIONS"] = jvm_options
        ingest = Ingest(FakeServe(Path(node.run_dir)), environ, topic)
        made.append(ingest)
        ingest.launch()
        return ingest

    yield make
    for ingest in made:
        ingest.process.terminate()
        ingest.process.wait(10)
        ingest.serve.close()


def produce(kafka: KafkaForTests, topic: str, *records: tuple[int, bytes, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for partition, key, value in records:
        producer.produce(topic, value, key, partition)
    assert producer.flush(20) == 0


def test_rows_resume_after_every_restart(kafka: KafkaForTests, new_ingest: Callable[..., Ingest]) -> None:
    """Rows resume at serve's positions after serve hangs up, cuts the rows, or the JVM is killed; the stop is quick."""
    kafka.create_topic("arrives", PARTITIONS)
    produce(kafka, "arrives", (0, b"a", b"1"), (1, b"b", b"2"), (0, b"a", None))
    ingest = new_ingest("arrives", jvm_options="")  # which rehearses
    serve = ingest.serve
    ingest.wanted()
    topic = ingest.start()
    assert (topic["partitions"], topic["earliest"], topic["latest"]) == (
        2,
        {"0": 0, "1": 0},
        {"0": 2, "1": 1},
    )
    eventually("three rows arrive", lambda: len(serve.rows.rows()) == 3)
    assert [row.offset for row in serve.rows.rows(partition=0)] == [0, 1]
    serve.wait_for_state("streaming")
    produce(kafka, "arrives", (1, b"b", b"3"))
    eventually("a row that is produced while it streams", lambda: serve.rows.rows(1)[-1].offset == 1)
    assert {hello.generation for hello in serve.rows.hellos} == {1}
    rehearsal = Path(ingest.environ["QT_RUN_DIR"]) / "rehearsal.sock"
    assert not rehearsal.exists()  # it would take time from the hydration
    serve.send({"type": "hydrated"})
    eventually("the rehearsal begins", rehearsal.exists)

    skip = ingest.received_count()
    serve.close_connection()
    ingest.wanted(skip)
    ingest.start({"0": 2, "1": 1}, skip)
    eventually("the one row from the new positions on", lambda: len(serve.rows.rows()) == 5)
    assert serve.rows.rows()[-1].offset == 1

    skip = ingest.received_count()
    serve.rows.cut()
    produce(kafka, "arrives", (0, b"c", b"4"))
    ended = serve.wait_for_state("restarting", 30, skip)
    assert ended["detail"]
    ingest.start({"0": 2, "1": 2}, skip)
    eventually("the row that could not be sent", lambda: serve.rows.rows()[-1].disk_key == b"c")

    skip = ingest.received_count()
    ingest.jvm().kill()
    assert ingest.process.wait(10) == 3
    ingest.launch()
    ingest.wanted(skip)
    ingest.start({"0": 0, "1": 2}, skip)
    eventually("rows of a new JVM", lambda: len(serve.rows.rows()) == 9)

    jvm = ingest.jvm()
    ingest.process.send_signal(signal.SIGTERM)
    assert ingest.process.wait(10) == 0
    eventually("the JVM has ended", lambda: not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE)


def test_missing_and_recreated_topics_are_reported(
    kafka: KafkaForTests, new_ingest: Callable[..., Ingest]
) -> None:
    """Ingest reports a missing topic, streams once it exists, and reports the new id of a recreated topic."""
    ingest = new_ingest(
        "late", ingest={"mode": "microbatch"}, transform={"sql": "SELECT key, value FROM records"}
    )
    serve = ingest.serve
    ingest.wanted()
    assert serve.wait_for_type("topic", 60)["id"] is None
    serve.wait_for_state("waiting-for-topic")
    kafka.create_topic("late", PARTITIONS)
    first = ingest.start()
    produce(kafka, "late", (0, b"a", b'{"x":1}'))
    eventually("a row", lambda: len(serve.rows.rows()) == 1)
    assert serve.wait_for_state("streaming")["mode"] == "microbatch"

    skip = ingest.received_count()
    delete_topic(kafka, "late")
    serve.wait_for(lambda m: m["type"] == "topic" and m["id"] is None, 30, skip)
    skip = ingest.received_count()
    kafka.create_topic("late", PARTITIONS)
    assert ingest.start(skip=skip)["id"] != first["id"]
    produce(kafka, "late", (1, b"b", b'{"x":2}'))
    eventually("a row of the new topic", lambda: serve.rows.rows()[-1].disk_key == b"b")


def test_wanted_partitions_may_change_at_any_time(
    kafka: KafkaForTests, new_ingest: Callable[..., Ingest]
) -> None:
    """The old query reads until the new start; closed connections are no failure; an empty assignment works too."""
    kafka.create_topic("moves", PARTITIONS)
    produce(kafka, "moves", (0, b"a", b"1"), (1, b"b", b"2"))
    ingest = new_ingest("moves")
    serve = ingest.serve
    serve.wait_for_type("hello", 60)
    serve.send({"type": "wanted", "topic": "moves", "partitions": [0]})
    assert ingest.start({"0": -2})["latest"] == {"0": 1}
    eventually("the row of the one partition", lambda: len(serve.rows.rows()) == 1)
    serve.wait_for_state("streaming")

    skip = ingest.received_count()
    serve.send({"type": "wanted", "topic": "moves", "partitions": [0, 1]})
    serve.wait_for(lambda m: m["type"] == "topic" and m["latest"] == {"0": 1, "1": 1}, 30, skip)
    produce(kafka, "moves", (0, b"c", b"3"))
    eventually("a row that the old query has read", lambda: len(serve.rows.rows(0)) == 2)
    serve.rows.cut()  # as serve does before it says where to start
    ingest.start({"0": 2, "1": -2}, skip)
    eventually("the row of the other partition", lambda: len(serve.rows.rows(1)) == 1)
    serve.wait_for_state("streaming", 30, skip)
    produce(kafka, "moves", (0, b"d", b"4"))
    eventually("a row of the partition that stayed", lambda: len(serve.rows.rows(0)) == 3)
    assert not [m for m in serve.received[skip:] if m.get("state") == "restarting"]

    skip = ingest.received_count()
    serve.send({"type": "wanted", "topic": "moves", "partitions": []})
    serve.wait_for(lambda m: m["type"] == "topic", 30, skip)
    serve.send({"type": "start", "generation": 3, "positions": {}})
    assert serve.wait_for_state("streaming", 30, skip)["detail"] == "there is no partition to read"
    skip = ingest.received_count()
    serve.send({"type": "wanted", "topic": "moves", "partitions": [1]})
    ingest.generation = 3
    ingest.start({"1": 1}, skip)
    produce(kafka, "moves", (1, b"e", b"5"))
    eventually("the query reads again", lambda: len(serve.rows.rows(1)) == 2)


def test_unreachable_kafka_is_reported_and_does_not_delay_the_stop(new_ingest: Callable[..., Ingest]) -> None:
    """Without a broker ingest waits, reports the reason, and still stops at once."""
    ingest = new_ingest("any", bootstrap="127.0.0.1:1")
    ingest.wanted()
    waiting = ingest.serve.wait_for_state("waiting-for-kafka", 60)
    assert "Timeout" in waiting["detail"]
    ingest.process.send_signal(signal.SIGTERM)
    assert ingest.process.wait(10) == 0


def test_refused_sql_is_reported_without_a_restart(new_ingest: Callable[..., Ingest]) -> None:
    """Ingest reports refused SQL and stays, so that the node does not restart in a loop."""
    ingest = new_ingest("any", transform={"sql": "SELECT nope FROM records"})
    failed = ingest.serve.wait_for_state("failed", 60)
    assert "`nope` cannot be resolved" in failed["detail"]
    assert failed["reason"] == "TransformRefused"
    assert ingest.process.poll() is None


def test_low_descriptor_limit_is_reported_without_a_jvm(tmp_path: Path) -> None:
    """Below the descriptor limit ingest starts no JVM, and reports the limit and the requirement."""
    node = settings(tmp_path, "nowhere:1", "any")
    command = ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", sys.executable, "-m", "queryable_app.ingest"]
    with FakeServe(Path(node.run_dir)) as serve:
        process = subprocess.Popen(command, env={**os.environ, **node.to_env()})
        try:
            failed = serve.wait_for_state("failed", 60)
            assert failed["reason"] == "DescriptorLimitTooLow"
            assert "RLIMIT_NOFILE) is 256" in failed["detail"]
            assert process.poll() is None
            assert not psutil.Process(process.pid).children()
        finally:
            process.terminate()
            assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("sql", "code", "sentence"), [("SELECT key FROM records", 0, ""), ("SELEC", 2, "SELEC")]
)
def test_sql_is_checked_without_a_node(tmp_path: Path, sql: str, code: int, sentence: str) -> None:
    """`queryable_app.ingest.check` needs neither Kafka nor serve, prints only the reason, and reports it to the operator."""
    done, report = check(settings(tmp_path, "nowhere:1", "any", transform={"sql": sql}), tmp_path)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "WARN" not in done.stderr
    failure = parse_failure(report)
    assert (failure and failure.reason) == ("TransformRefused" if code else None)
    assert reported_format(report) is None


def test_check_with_a_known_format_starts_no_spark(tmp_path: Path) -> None:
    """A check that has the format of group keys from an earlier one reports it again, without a look at the view."""
    node = replace(
        settings(tmp_path, "nowhere:1", "any", transform={"sql": "SELEC"}), group_key_format="long"
    )
    done, report = check(node, tmp_path)
    assert (done.returncode, reported_format(report)) == (0, "long")


def check(node: NodeSettings, directory: Path) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Check a view, and return the end of the process and its report."""
    report = directory / "report"
    command = [sys.executable, "-m", "queryable_app.ingest.check", "--report", str(report)]
    environ = {**os.environ, **node.to_env()}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    return done, json.loads(report.read_text())


def delete_topic(kafka: KafkaForTests, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(20)
