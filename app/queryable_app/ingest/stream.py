"""Start the streaming query: Kafka source, projection, writer; in Real-Time Mode or in micro-batches.

Strategy: one query over all partitions of the node, from the positions that serve gave. Its checkpoint directory is never read
again, because serve's stores keep the positions in the same write as the rows. Both modes use the same writer; they differ
in the trigger and in the fetch settings.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from queryable_app.config.topic_spec import IngestMode, TopicSpec
from queryable_app.ingest.decoded_records import View, checked_format, decoded_key_format, key_encoding
from queryable_app.ingest.java_classes import own_class
from queryable_app.ingest.kafka_admin import WITHOUT_METRICS
from queryable_app.ingest.transform import Projection, project
from queryable_app.ingest.value_decoders import value_decoder

# In Real-Time Mode a task that waits for records has one fetch request pending at the broker, which costs nothing. In
# micro-batches each task waits for its response, so there the broker must not wait for records.
_REAL_TIME_FETCH: Final = {"kafka.max.poll.records": "5000"}
_MICRO_BATCH_FETCH: Final = {
    "kafka.fetch.max.wait.ms": "0",
    "kafka.fetch.min.bytes": "0",
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
}
EVENT_MS_COLUMN: Final = 7
"""The place of the event time in the rows of an aggregate view. What the record adds follows it."""
_REAL_TIME_REFUSED: Final = "STREAMING_REAL_TIME_MODE"


@dataclass(frozen=True, slots=True)
class QueryStart:
    """Hold all inputs of a query."""

    spec: TopicSpec
    bootstrap_servers: str
    partitions: int  # that keys are hashed to
    positions: Mapping[int, int]  # -2: the earliest record, -1: the next one
    generation: int
    row_socket: Path
    mode: IngestMode
    reads_headers: bool = False


def view_of(spec: TopicSpec) -> View:
    if spec.source_topic:  # envelopes, which serve decodes
        return View(spec.key_format, "bytes")
    return View(
        spec.key_format,
        spec.value_format,
        spec.value_schema,
        spec.sql or None,
        spec.aggregate,
        spec.key_by,
        spec.schema_source,
        spec.registry_config,
        spec.key_schema,
        None if spec.entries is None else spec.entries.time_field,
    )


def start_query(session: SparkSession, start: QueryStart, checkpoints: Path) -> StreamingQuery:
    """Start the query and return at once; whether it runs shows later."""
    shutil.rmtree(checkpoints, ignore_errors=True)
    checkpoint = checkpoints / str(start.generation)
    checkpoint.mkdir(parents=True)
    write_initial_offsets(checkpoint, start)
    projection = project(session, kafka_source(session, start), view_of(start.spec))
    ingest = start.spec.ingest
    writer = projection.frame.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
    if start.mode == "realtime":
        writer = writer.trigger(realTime=f"{ingest.batch_ms} milliseconds")  # type: ignore[call-overload]
    else:
        writer = writer.trigger(processingTime=f"{ingest.trigger_ms} milliseconds")
    # PySpark offers foreach for Python only, so the Java writer is attached to the JVM object below.
    writer._jwrite = writer._jwrite.foreach(row_writer(session, start, projection))
    return writer.start()


def write_initial_offsets(checkpoint: Path, start: QueryStart) -> None:
    """Write the file in which the Kafka source looks for the offsets that it once started at, unless a position is no offset.

    If there is none, the source asks the brokers once more, and reads all of Spark's error texts to say that a file is missing.
    """
    if min(start.positions.values()) >= 0:
        offsets = json.dumps({start.spec.topic: {str(p): o for p, o in start.positions.items()}})
        log = checkpoint / "sources/0"
        log.mkdir(parents=True)
        log.joinpath("0").write_bytes(b"\0v1\n" + offsets.encode())


def row_writer(session: SparkSession, start: QueryStart, projection: Projection) -> Any:
    jvm: Any = session._jvm
    spec = start.spec
    contribution = contribution_of(session, projection)
    # A marker's key is no JSON.
    view, schema = view_of(spec), spec.key_schema
    key_format = "bytes" if spec.source_topic and spec.key_format != "long" else decoded_key_format(view)
    return own_class(jvm, "RowWriter")(
        str(start.row_socket),
        start.generation,
        start.partitions,
        key_format,
        checked_format(view),
        spec.ttl_ms or 0,
        bool(spec.sql or projection.inputs),
        contribution,
        value_decoder(session, spec.schema_source, spec.registry_config),
        None if schema is None else own_class(jvm, "KeyDecoders").of(key_encoding(schema)),
        None if spec.entries is None else own_class(jvm, "TimeField")(spec.entries.time_field),
    )


def contribution_of(session: SparkSession, projection: Projection) -> Any:
    """Return the encoder of an aggregate view's rows, or None for other views."""
    jvm: Any = session._jvm
    inputs = projection.inputs
    if not inputs:
        return None
    types = "".join(each.type for each in inputs)
    filtered = "".join("0" if each.input.filter is None else "1" for each in inputs)
    frame: Any = projection.frame
    return own_class(jvm, "Contribution")(types, filtered, frame._jdf.schema(), EVENT_MS_COLUMN)


def refused_real_time(error: BaseException) -> bool:
    """Tell whether Spark refuses to run this query in Real-Time Mode, as opposed to a failure in it."""
    return _REAL_TIME_REFUSED in str(error)


def kafka_source(session: SparkSession, start: QueryStart) -> DataFrame:
    spec = start.spec
    options = dict(_REAL_TIME_FETCH if start.mode == "realtime" else _MICRO_BATCH_FETCH)
    options |= {f"kafka.{name}": value for name, value in {**WITHOUT_METRICS, **spec.kafka_config}.items()}
    options |= {
        "kafka.bootstrap.servers": start.bootstrap_servers,
        "kafka.isolation.level": "read_committed",  # records of aborted transactions do not exist
        "assign": json.dumps({spec.topic: sorted(start.positions)}),
        "startingOffsets": json.dumps({spec.topic: {str(p): o for p, o in start.positions.items()}}),
        "failOnDataLoss": "true",  # serve decides the consequence, from the offsets of the topic
        "includeHeaders": str(start.reads_headers).lower(),
    }
    if start.mode == "microbatch":
        options["maxOffsetsPerTrigger"] = str(spec.ingest.offsets_per_trigger_max)
    return session.readStream.format("kafka").options(**options).load()
