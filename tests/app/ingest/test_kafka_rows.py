"""Tests of the rows that the Kafka source makes of records: those of Spark's own connector, made in another way."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

AT_MS = 1_700_000_000_123
Header = tuple[str, bytes | None]


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    topic: str = "orders"
    partition: int = 3
    offset: int = 7
    timestamp_ms: int = AT_MS
    log_append_time: bool = False
    headers: tuple[Header, ...] = ()


def consumed(jvm: Any, record: Record) -> Any:
    """Return the record as Kafka's client gives it."""
    kafka = jvm.org.apache.kafka
    types, headers = kafka.common.record.TimestampType, kafka.common.header.internals.RecordHeaders()
    for name, content in record.headers:
        headers.add(name, content)
    return kafka.clients.consumer.ConsumerRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        types.LOG_APPEND_TIME if record.log_append_time else types.CREATE_TIME,
        -1,
        -1,
        record.key,
        record.value,
        headers,
        jvm.java.util.Optional.empty(),
    )


def projector(spark: SparkSession, with_headers: bool = False) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.kafka010.KafkaRecordToRowConverter().toUnsafeRowProjector(with_headers)


def read(row: Any) -> Record:
    """Return the record that a row tells of, without its headers."""
    return Record(
        None if row.isNullAt(0) else bytes(row.getBinary(0)),
        None if row.isNullAt(1) else bytes(row.getBinary(1)),
        row.getUTF8String(2).toString(),
        row.getInt(3),
        row.getLong(4),
        row.getLong(5) // 1000,
        {0: False, 1: True}[row.getInt(6)],
    )


@pytest.mark.parametrize("with_headers", [False, True])
def test_rows_have_what_records_have(spark: SparkSession, with_headers: bool) -> None:
    """A row has every field of its record, whatever the sizes of those before it were."""
    jvm: Any = spark._jvm
    convert, chosen = projector(spark, with_headers), random.Random(4)
    sizes = [None, 0, 1, 7, 8, 9, 100, 3000, 0, 5, None]
    for number in range(120):
        key, value = (None if size is None else chosen.randbytes(size) for size in chosen.choices(sizes, k=2))
        topic = "orders" if number < 60 else "a-topic.with_other-name"
        record = Record(key, value, topic, number, 2**40 + number, AT_MS + number, number % 2 == 1)

        assert read(convert.apply(consumed(jvm, record))) == record


def test_rows_are_in_sparks_own_layout(spark: SparkSession) -> None:
    """The bytes of a row are those that Spark's projection writes, also where a longer row was before."""
    jvm: Any = spark._jvm
    own = jvm.org.apache.spark.sql.catalyst.expressions.UnsafeProjection.create(
        jvm.org.apache.spark.sql.types.StructType.fromDDL(
            "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, type INT"
        )
    )
    convert = projector(spark)
    convert.apply(consumed(jvm, Record(b"\xff" * 50, b"\xff" * 50)))
    for record in (Record(b"k", b"value"), Record(None, b""), Record(b"12345678", None, "t")):
        row = convert.apply(consumed(jvm, record))
        assert bytes(row.getBytes()) == bytes(own.apply(row).getBytes())


@pytest.mark.parametrize("year", [1, 1500, 1890, 1969, 1970, 2026, 9999])
def test_times_are_those_of_the_calendar(spark: SparkSession, year: int) -> None:
    """A row has the time of its record, also where old calendars counted otherwise."""
    jvm: Any = spark._jvm
    at_ms = int(datetime(year, 3, 1, tzinfo=UTC).timestamp() * 1000)
    wanted = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils.fromJavaTimestamp(
        jvm.java.sql.Timestamp(at_ms)
    )

    row = projector(spark).apply(consumed(jvm, Record(b"k", b"v", timestamp_ms=at_ms)))

    assert row.getLong(5) == wanted


def test_impossible_time_names_the_record(spark: SparkSession) -> None:
    """A time that Spark cannot represent ends the task with the place of the record."""
    jvm: Any = spark._jvm
    with pytest.raises(Py4JJavaError, match=r"orders.*3|3.*orders"):
        projector(spark).apply(consumed(jvm, Record(b"k", b"v", timestamp_ms=2**63 - 1)))


def test_headers_are_in_their_order(spark: SparkSession) -> None:
    """A row with headers has them in order, the same name twice, and null contents; a record without any has null."""
    jvm: Any = spark._jvm
    convert = projector(spark, with_headers=True)
    headers: tuple[Header, ...] = (("a", b"1"), ("b", None), ("a", b""))

    found = convert.apply(consumed(jvm, Record(b"k", b"v", headers=headers))).getArray(7)

    each = [found.getStruct(place, 2) for place in range(found.numElements())]
    assert [
        (one.getUTF8String(0).toString(), None if one.isNullAt(1) else bytes(one.getBinary(1)))
        for one in each
    ] == list(headers)
    assert convert.apply(consumed(jvm, Record(b"k", b"v"))).isNullAt(7)
