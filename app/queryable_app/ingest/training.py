"""Make the class archive with a short training run: `python -m queryable_app.ingest.training`.

The run has the lowest priority until SIGTERM or Ctrl-C ends it. It ends at once if the archive exists or another process makes
it; with `--wait` it waits for that process. Exit code 0: there is an archive now.

The run needs no Kafka. A rate stream goes through an example of SQL and the writer into a sink, once as a view of latest values
and once as an aggregate. Kafka's clients are made but find no broker, and the classes that only a broker's response needs are
loaded by name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from pyspark import SparkContext
from pyspark.sql import SparkSession

from queryable_app.config.topic_spec import parse_spec
from queryable_app.ingest.class_archive import archive_path, remove_old_archives
from queryable_app.ingest.gateway import connect
from queryable_app.ingest.java_classes import java_class, java_list, java_map, own_class
from queryable_app.ingest.jvm import class_path
from queryable_app.ingest.kafka_admin import KafkaAdmin
from queryable_app.ingest.launch import FIRST_COMPILER_ONLY, Profile, launch
from queryable_app.ingest.process import children
from queryable_app.ingest.session import start_session
from queryable_app.ingest.sink import Sink
from queryable_app.ingest.stream import QueryStart, row_writer, view_of
from queryable_app.ingest.transform import project
from queryable_app.platform.file_lock import locked
from queryable_app.platform.jars import JarsError, cache_dir, connector_jars
from queryable_app.platform.kafka_clients import KafkaUnavailable
from queryable_app.platform.log import event
from queryable_app.platform.priority import take_idle_time_only, take_usual_time
from queryable_app.wire import row_frames

_UNREACHABLE_BROKER: Final = "127.0.0.1:1"
_BATCHES: Final = 4
_STREAM_SECONDS_MAX: Final = 300
_EXIT_SECONDS_MAX: Final = 1800  # on a busy machine the run gets little CPU
_SCHEMA: Final = "a STRING, b DOUBLE"
_AGGREGATE: Final = {
    "kind": "aggregate",
    "aggregate": {
        "columns": [
            {"name": "n", "op": "count"},
            {"name": "total", "op": "sum", "of": "CAST(b AS DECIMAL(9, 2))", "filter": "b > 1"},
            {"name": "last", "op": "last", "of": "a"},
        ]
    },
}
_SQL: Final = "SELECT key, upper(value.a) AS a, value.b AS b FROM records WHERE value.b > 0"


def main() -> int:
    take_idle_time_only()  # the JVM too
    cache = cache_dir(os.environ.get("QT_CACHE_DIR", ""))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, partial(_end, cache))
    try:
        wait_seconds = _EXIT_SECONDS_MAX if "--wait" in sys.argv[1:] else 0
        return 0 if make_archive(cache, class_path(cache), wait_seconds) else 1
    except (JarsError, OSError) as error:
        event("class-archive", failed=str(error))
        return 1


def _end(cache: Path, *_: object) -> NoReturn:
    """End at once. An exception could be lost: the interpreter ignores those in finalizers, in which Py4J waits for the JVM."""
    take_usual_time()
    for jvm in children():
        take_usual_time(jvm)
        os.kill(jvm, signal.SIGKILL)
        os.waitpid(jvm, 0)
    for scratch in cache.glob(f"{_own_prefix()}*"):
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


def _own_prefix() -> str:
    """Return how the names of this process's scratch directories begin."""
    return f"training-{os.getpid()}-"


def make_archive(cache: Path, jars: Sequence[Path], wait_seconds: float = 0) -> bool:
    """Make the archive of these jars if there is none. Wait so long for another process that makes one.

    Return False if there is still none: another process makes it, or it cannot be made.
    """
    archive = archive_path(cache, jars)
    failed = archive.with_suffix(".failed")
    with (cache / ".classes.lock").open("w") as lock:
        needed = not archive.exists() and not failed.exists() and locked(lock, wait_seconds)
        if needed and not archive.exists():
            for left in cache.glob("training-*"):  # left by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            event("class-archive", making=str(archive))
            with tempfile.TemporaryDirectory(
                dir=cache, prefix=_own_prefix(), ignore_cleanup_errors=True
            ) as scratch:
                new = Path(scratch) / "classes.jsa"
                _train(new, Path(scratch), cache)
                if new.exists():
                    new.rename(archive)
                    event("class-archive", made=str(archive))
                else:
                    failed.touch()  # this Java cannot do it
                    event("class-archive", failed="Java has written no archive")
            remove_old_archives(cache)
    return archive.exists()


def _train(archive: Path, scratch: Path, cache: Path) -> None:
    profile = Profile(2, "512m", scratch, cache, options=(FIRST_COMPILER_ONLY,))
    started = launch(profile, [f"-XX:ArchiveClassesAtExit={archive}"])
    jvm = started.process
    try:
        connect(started)
        session = start_session(profile)
        for view in ({}, _AGGREGATE):
            _stream(session, scratch, view)
        _look_for_kafka(session)
        _load_classes(session, connector_jars(cache))
        _exit(session, jvm)
    finally:
        jvm.kill()
        jvm.wait()


def _stream(session: SparkSession, scratch: Path, view: Mapping[str, Any]) -> None:
    received: list[int] = []
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
    kafka = {"bootstrapServers": _UNREACHABLE_BROKER}
    value = {"format": "json", "schema": _SCHEMA}
    resource = {"kafka": kafka, "topic": "none", "value": value, "transform": {"sql": _SQL}, "view": view}
    spec = parse_spec(resource)
    kind = view.get("kind", "latest")
    rows, checkpoint = scratch / f"{kind}.sock", scratch / f"checkpoint-{kind}"
    start = QueryStart(spec, _UNREACHABLE_BROKER, 1, {0: -2}, 1, rows, "microbatch")
    projection = project(session, records, view_of(spec))
    writer = projection.frame.writeStream.outputMode("update")
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer._jwrite = writer._jwrite.foreach(row_writer(session, start, projection))
    with Sink(rows, lambda payload: received.append(payload[0])):
        query = writer.start()
        deadline = time.monotonic() + _STREAM_SECONDS_MAX
        while (
            received.count(row_frames.END) < 2 * _BATCHES and query.isActive and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        query.stop()


def _look_for_kafka(session: SparkSession) -> None:
    with contextlib.suppress(KafkaUnavailable):
        KafkaAdmin(session._jvm, _UNREACHABLE_BROKER, {}).describe("none", [0])
    options = {"kafka.bootstrap.servers": _UNREACHABLE_BROKER, "assign": '{"none":[0]}'}
    session.readStream.format("kafka").options(**options).load().explain()
    jvm: Any = session._jvm
    deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    settings = {
        "bootstrap.servers": _UNREACHABLE_BROKER,
        "key.deserializer": deserializer,
        "value.deserializer": deserializer,
    }
    java_class(jvm, "org.apache.kafka.clients.consumer.KafkaConsumer")(java_map(jvm, settings.items()))
    errors = java_class(jvm, "org.apache.kafka.common.protocol.Errors")
    errors.valueOf("NONE")  # makes a lambda for each error


def _load_classes(session: SparkSession, jars: Sequence[Path]) -> None:
    """Load all classes of these jars, without running any of their code."""
    jvm: Any = session._jvm
    names = java_list(jvm)
    for jar in jars:
        with zipfile.ZipFile(jar) as entries:
            found = (name.removesuffix(".class") for name in entries.namelist() if name.endswith(".class"))
            for name in found:
                if not name.startswith("META-INF/") and not name.endswith("-info"):
                    names.add(name.replace("/", "."))
    own_class(jvm, "Classes").load(names)


def _exit(session: SparkSession, jvm: subprocess.Popen[bytes]) -> None:
    """Disconnect from the JVM, which then ends by itself and writes the archive."""
    gateway: Any = SparkContext._gateway
    session.stop()
    gateway.shutdown()
    assert jvm.stdin is not None
    jvm.stdin.close()
    jvm.wait(_EXIT_SECONDS_MAX)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # the JVM has ended: PySpark need not disconnect
