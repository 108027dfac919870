"""`python -m queryable_app.ingest.training ARCHIVE CACHE`: one short life of a node, for class_archive.

It does without Kafka: a stream of Spark's own goes through the user's SQL and the writer into a socket, Kafka's clients are made
but find no broker, and the classes that only an answer of a broker would need are loaded by their names.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from queryable_app import frames
from queryable_app.ingest.jvm import jvm_process
from queryable_app.ingest.kafka_admin import KafkaAdmin
from queryable_app.ingest.session import Profile, start_session
from queryable_app.ingest.sink import Sink
from queryable_app.ingest.stream import Start, row_writer, view_of
from queryable_app.ingest.transform import rows
from queryable_app.jars import connector_jars
from queryable_app.kafka_clients import KafkaAway
from queryable_app.topic_spec import parse_spec

_NOBODY: Final = "127.0.0.1:1"
_BATCHES: Final = 4
_SECONDS_MAX: Final = 60
_SCHEMA: Final = "a STRING, b DOUBLE"
_SQL: Final = "SELECT key, upper(value.a) AS a, value.b AS b FROM records WHERE value.b > 0"


def main() -> None:
    archive, cache = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        options = [f"-XX:ArchiveClassesAtExit={archive}"]
        session = start_session(Profile(2, "512m", Path(scratch), cache), options)
        _stream(session, Path(scratch))
        _look_for_kafka(session)
        _load_classes(session, connector_jars(cache))
        _exit(session)


def _stream(session: SparkSession, scratch: Path) -> None:
    heard: list[int] = []
    records = (
        session.readStream.format("rate")
        .option("rowsPerSecond", 100)
        .load()
        .selectExpr(
            "CAST(CAST(value AS STRING) AS BINARY) AS key",
            """CAST('{"a":"x","b":1.5}' AS BINARY) AS value""",
            "timestamp",
            "0 AS partition",
            "value AS offset",
        )
    )
    kafka = {"bootstrapServers": _NOBODY}
    value = {"format": "json", "schema": _SCHEMA}
    spec = parse_spec({"kafka": kafka, "topic": "none", "value": value, "transform": {"sql": _SQL}})
    start = Start(spec, _NOBODY, 1, {0: -2}, 1, scratch / "rows.sock", "microbatch")
    writer = rows(session, records, view_of(spec)).writeStream.outputMode("update")
    writer = writer.option("checkpointLocation", str(scratch / "checkpoint"))
    writer._jwrite = writer._jwrite.foreach(row_writer(session, start))
    with Sink(scratch / "rows.sock", lambda payload: heard.append(payload[0])):
        query = writer.start()
        deadline = time.monotonic() + _SECONDS_MAX
        while heard.count(frames.END) < 2 * _BATCHES and query.isActive and time.monotonic() < deadline:
            time.sleep(0.05)
        query.stop()


def _look_for_kafka(session: SparkSession) -> None:
    with contextlib.suppress(KafkaAway):
        KafkaAdmin(session._jvm, _NOBODY, {}).look("none", [0])
    options = {"kafka.bootstrap.servers": _NOBODY, "assign": '{"none":[0]}'}
    session.readStream.format("kafka").options(**options).load().explain()
    jvm: Any = session._jvm
    settings = jvm.java.util.HashMap()
    settings.put("bootstrap.servers", _NOBODY)
    deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    settings.put("key.deserializer", deserializer)
    settings.put("value.deserializer", deserializer)
    jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)


def _load_classes(session: SparkSession, jars: Sequence[Path]) -> None:
    """Load all classes of these jars, without running any of their code."""
    jvm: Any = session._jvm
    names = jvm.java.util.ArrayList()
    for jar in jars:
        with zipfile.ZipFile(jar) as entries:
            found = (name.removesuffix(".class") for name in entries.namelist() if name.endswith(".class"))
            for name in found:
                if not name.startswith("META-INF/") and not name.endswith("-info"):
                    names.add(name.replace("/", "."))
    jvm.io.queryabletopics.Classes.load(names)


def _exit(session: SparkSession) -> None:
    """The JVM ends by itself when nobody speaks to it any more, and then writes the archive."""
    jvm = jvm_process()
    gateway: Any = SparkContext._gateway
    session.stop()
    gateway.shutdown()
    assert jvm.stdin is not None
    jvm.stdin.close()
    jvm.wait(_SECONDS_MAX)


if __name__ == "__main__":
    main()
