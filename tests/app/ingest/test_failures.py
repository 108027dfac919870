"""Test which failures are permanent, with each kind as Spark, the JVM and Kafka's client report it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from queryable_app.config.topic_spec import parse_spec
from queryable_app.ingest import supervisor as supervision
from queryable_app.ingest.control import Superseded
from queryable_app.ingest.decoded_records import View
from queryable_app.ingest.failures import PermanentFailure, permanent_failure
from queryable_app.ingest.kafka_admin import KafkaAdmin
from queryable_app.ingest.stream import QueryStart, start_query
from queryable_app.ingest.supervisor import Supervisor
from queryable_app.ingest.transform import check_view
from queryable_app.ingest.writer_check import WriterBroken, check_writer
from queryable_app.platform.jars import JarsError, JavaMissing
from queryable_app.platform.kafka_clients import KafkaUnavailable
from queryable_app.wire.ingest_failures import IngestFailure
from tests.support.fake_serve import FakeServe
from tests.support.kafka import KafkaForTests

SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
TLS = {"security.protocol": "SSL", "ssl.truststore.type": "PEM"}


def failure_of(call: Callable[[], object]) -> IngestFailure | None:
    try:
        call()
    except KafkaUnavailable as error:
        return permanent_failure(error.__cause__)
    except Exception as error:
        return permanent_failure(error)
    raise AssertionError("the call did not fail")


@pytest.mark.parametrize(
    ("sql", "schema", "reason", "sentence"),
    [
        ("SELEC key FROM records", None, "TransformRefused", "near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)"),
        ("SELECT key,\n nope FROM records", None, "TransformRefused", "line 2 pos 1"),
        ("SELECT key FROM other", None, "TransformRefused", "line 1 pos 16"),
        (
            "SELECT upper(key) AS key FROM records",
            None,
            "TransformRefused",
            "column key is not the record's key",
        ),
        (None, "x y z", "SchemaRefused", "(line 1, pos 4)"),
    ],
    ids=["syntax", "unknown column", "unknown table", "changed key", "schema"],
)
def test_refused_sql_is_permanent(
    spark: SparkSession, sql: str | None, schema: str | None, reason: str, sentence: str
) -> None:
    """Refused SQL is permanent; the message is Spark's own, in one line, with the position."""
    failure = failure_of(lambda: check_view(spark, View("string", "json", schema, sql)))

    assert failure is not None
    assert (failure.reason, failure.caused_by_spec) == (reason, True)
    assert sentence in failure.message
    assert "\n" not in failure.message


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"security.protocol": "NOPE"}, "security.protocol"),
        (SASL, "sasl.jaas.config"),
        ({**SASL, "sasl.jaas.config": "a b=hidden-word"}, "sasl.jaas.config"),
        ({**TLS, "ssl.truststore.certificates": "rubbish"}, "No matching CERTIFICATE"),
        ({"sasl.login.class": "no.such.Class", **SASL}, "no.such.Class"),
    ],
)
def test_settings_that_kafkas_client_refuses_are_permanent(
    spark: SparkSession, config: dict[str, str], sentence: str
) -> None:
    """A setting that Kafka's client refuses is permanent; the message names the setting and hides the password."""
    failure = failure_of(lambda: KafkaAdmin(spark._jvm, "127.0.0.1:1", config))

    assert failure is not None
    assert (failure.reason, failure.caused_by_spec) == ("KafkaSettingsRefused", True)
    assert sentence in failure.message
    assert "hidden-word" not in failure.message


def test_settings_that_spark_refuses_are_permanent(spark: SparkSession, tmp_path: Path) -> None:
    """A deserializer setting is permanent, since Spark's Kafka source accepts only its own."""
    kafka = {"bootstrapServers": "127.0.0.1:1", "config": {"key.deserializer": "x"}}
    spec = parse_spec({"kafka": kafka, "topic": "none"})
    start = QueryStart(spec, "127.0.0.1:1", 1, {0: -2}, 1, tmp_path / "rows.sock", "microbatch")

    failure = failure_of(lambda: start_query(spark, start, tmp_path / "checkpoints"))

    assert failure is not None
    assert failure.reason == "KafkaSettingsRefused"
    assert "'key.deserializer' is not supported" in failure.message


@pytest.mark.parametrize(
    ("bootstrap", "config"),
    [
        ("no-such-host.invalid:9092", {}),
        ("127.0.0.1:1", {**TLS, "ssl.truststore.location": "/no/such/file"}),
    ],
    ids=["a name that cannot be resolved", "a file that this node lacks"],
)
def test_temporary_failure_is_not_permanent(
    spark: SparkSession, bootstrap: str, config: dict[str, str]
) -> None:
    """Failures that another attempt or node may not have are retried, although Kafka's client calls them configuration errors."""
    assert failure_of(lambda: KafkaAdmin(spark._jvm, bootstrap, config)) is None


def test_missing_class_is_permanent_for_this_node(spark: SparkSession) -> None:
    """A class missing from the JVM is permanent for this node, and its message does not blame the spec."""
    jvm: Any = spark._jvm
    for call in (lambda: jvm.java.lang.Class.forName("no.such.Class"), lambda: jvm.io.queryabletopics.Nope()):
        failure = failure_of(call)
        assert failure is not None
        assert (failure.reason, failure.caused_by_spec) == ("ClassMissing", False)


def test_sql_error_at_a_record_is_a_failure_of_the_spec(spark: SparkSession) -> None:
    """SQL that raises an error at a record, or has an invalid pattern, is a failure of the spec."""
    for sql in ("raise_error('no such state')", "regexp_count(string(id), '(')"):
        failure = failure_of(lambda sql=sql: spark.range(1).selectExpr(sql).collect())  # type: ignore[misc]
        assert failure is not None, sql
        assert (failure.reason, failure.caused_by_spec) == ("TransformFailed", True)


def test_changed_row_is_a_permanent_failure(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that arrives changed is permanent; a row that could not be sent is retried."""
    monkeypatch.setattr("queryable_app.ingest.writer_check._write", lambda session, path: None)
    broken = failure_of(lambda: check_writer(spark, tmp_path))
    assert broken is not None
    assert (broken.reason, broken.caused_by_spec) == ("WriterBroken", False)

    error = WriterBroken("it does not work")
    error.__cause__ = OSError("No space left on device")
    assert permanent_failure(error) is None


def test_missing_java_is_permanent_and_a_failed_download_is_not() -> None:
    """A missing Java is permanent, and a failed download is retried."""
    missing = permanent_failure(JavaMissing("Java 17 or newer is needed"))
    assert missing is not None
    assert missing.reason == "JavaMissing"
    assert permanent_failure(JarsError("it could not be downloaded")) is None


def test_missing_class_ends_the_process(
    spark: SparkSession, kafka: KafkaForTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing class ends the process, since a JVM that had too few descriptors never finds the class again."""
    monkeypatch.setattr(supervision, "RETRY_SECONDS", 0.01)
    jvm: Any = spark._jvm
    monkeypatch.setattr(supervision, "start_query", lambda *_: jvm.java.lang.Class.forName("no.such.Class"))
    kafka.create_topic("lacks-a-class", 1)
    spec = parse_spec({"kafka": {"bootstrapServers": kafka.bootstrap}, "topic": "lacks-a-class"})
    supervisor = Supervisor(spark, spec, kafka.bootstrap, tmp_path, tmp_path / "scratch", 1, False)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            supervisor.run()
        except (PermanentFailure, Superseded) as error:
            ended.append(error)

    with FakeServe(tmp_path) as serve:
        running = threading.Thread(target=run, daemon=True)
        running.start()
        serve.wait_for_type("hello")
        serve.send({"type": "wanted", "topic": "lacks-a-class", "partitions": [0]})
        skip = 0
        for generation in (1, 2, 3):
            serve.wait_for_type("topic", 60, skip)
            skip = len(serve.received)
            serve.send({"type": "start", "generation": generation, "positions": {"0": -2}})
        running.join(60)
    (error,) = ended
    assert isinstance(error, PermanentFailure)
    assert error.failure.reason == "ClassMissing"


def test_repeated_sql_error_fails_the_query(
    spark: SparkSession, kafka: KafkaForTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the third death of a query ingest reports `failed` with the reason, and before, each attempt shows why the last one
    ended; a running query clears it."""
    topic = "fails-at-a-record"
    kafka.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    producer.produce(topic, b'"v"', b"k")
    assert producer.flush(20) == 0
    spec = parse_spec(
        {
            "kafka": {"bootstrapServers": kafka.bootstrap},
            "topic": topic,
            "ingest": {"mode": "microbatch"},
            "transform": {"sql": "SELECT key, raise_error('no such state') AS state FROM records"},
        }
    )
    supervisor = Supervisor(spark, spec, kafka.bootstrap, tmp_path, tmp_path / "scratch", 1, False)

    def run() -> None:
        with suppress(Superseded):
            supervisor.run()

    with FakeServe(tmp_path) as serve:
        running = threading.Thread(target=run, daemon=True)
        running.start()
        serve.wait_for_type("hello")
        serve.send({"type": "wanted", "topic": topic, "partitions": [0]})
        skip = 0
        for generation, state in enumerate(("restarting", "restarting", "failed"), 1):
            serve.wait_for_type("topic", 60, skip)
            skip = len(serve.received)
            serve.send({"type": "start", "generation": generation, "positions": {"0": -2}})
            if generation == 2:
                assert "no such state" in serve.wait_for_state("starting", 60, skip)["detail"]
            message = serve.wait_for_state(state, 60, skip)
        assert (message["reason"], "no such state" in message["detail"]) == ("TransformFailed", True)

        monkeypatch.setattr(supervision, "HEALTHY_SECONDS", 0.5)
        serve.wait_for_type("topic", 60, skip)
        skip = len(serve.received)
        serve.send({"type": "start", "generation": 4, "positions": {"0": 1}})
        message = serve.wait_for_state("streaming", 60, skip)
        assert ("reason" not in message, message["detail"]) == (True, "")
        serve.send({"type": "superseded"})
        running.join(30)
        assert not running.is_alive()
