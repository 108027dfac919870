"""Test how the writer finds the time of an entry in a value, and which records have none."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from queryable_app.aggregates.clock import TIME_MAX_MS, TIME_MIN_MS
from queryable_app.aggregates.entry_keys import shifted
from queryable_app.ingest.catalyst import SqlError
from queryable_app.ingest.decoded_records import View
from queryable_app.ingest.transform import check_view, project
from queryable_app.wire import row_frames
from queryable_app.wire.disk_format import ROW_HEADER, TOMBSTONE
from queryable_app.wire.times import parse_time
from tests.app.ingest.test_writer import new_writer, process_all, write
from tests.support.fake_serve import RowSink
from tests.support.spark_rows import spark_rows

NOON_MS = 1_795_348_800_000  # 2026-11-22T12:00:00Z


def time_in(spark: SparkSession, value: str, field: str = "at") -> int:
    jvm: Any = spark._jvm
    found: int = jvm.io.queryabletopics.TimeField(field).of(value.encode())
    return found


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-22T12:00:00Z",
        "2026-11-22T12:00:00.123Z",
        "2026-11-22T12:00:00.123999+01:30",
        "2026-11-22T12:00:00-0800",
        "2026-11-22T12:00:00-08:00",
        "2026-11-22T12:00:00+05",
        "2026-11-22T12:00",
        "2026-11-22 12:00:00",
        "2026-11-22",
        "1969-12-31T23:59:59.9995Z",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999Z",
        "1795348800000",
        "-1",
    ],
)
def test_times_as_text_are_those_of_requests(spark: SparkSession, text: str) -> None:
    """A time as text is the same moment in a value as in a parameter of a read."""
    assert time_in(spark, f'{{"at": "{text}"}}') == parse_time(text)


@pytest.mark.parametrize("number", [0, -1, NOON_MS, TIME_MIN_MS, TIME_MAX_MS])
def test_whole_numbers_are_milliseconds(spark: SparkSession, number: int) -> None:
    """A whole number is milliseconds since 1970, from the year 1 to the year 9999."""
    assert time_in(spark, f'{{"x": [1, {{"at": 5}}], "at": {number}}}') == number


def test_nested_and_repeated_names(spark: SparkSession) -> None:
    """A path leads into objects, and of a name that is there twice the last one counts."""
    assert time_in(spark, '{"meta": {"at": 1, "x": {}}, "at": 2}', "meta.at") == 1
    assert time_in(spark, '{"at": 1, "at": 2}') == 2


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("{}", "absent or null"),
        ('{"at": null}', "absent or null"),
        ("7", "absent or null"),
        ('{"at": 1.5}', "no time"),
        ('{"at": 1e3}', "no time"),
        ('{"at": true}', "no time"),
        ('{"at": {"at": 1}}', "no time"),
        ('{"at": [1]}', "no time"),
        ('{"at": ""}', "no time"),
        ('{"at": "-"}', "no time"),
        ('{"at": "soon"}', "no time"),
        ('{"at": "2026-02-30"}', "no time"),
        ('{"at": "2026-11-22T25:00:00Z"}', "no time"),
        ('{"at": "%s"}' % ("1" * 60), "no time"),
        ('{"at": 99999999999999999999999999}', "years 1 to 9999"),
        (f'{{"at": {TIME_MAX_MS + 1}}}', "years 1 to 9999"),
        (f'{{"at": {TIME_MIN_MS - 1}}}', "years 1 to 9999"),
        ('{"at": "+12026-11-22T12:00:00Z"}', "years 1 to 9999"),
    ],
)
def test_values_without_a_time(spark: SparkSession, value: str, why: str) -> None:
    """A value whose time is absent, of another type or outside of the calendar is refused, and the reason names the field."""
    with pytest.raises(Py4JJavaError, match=f"the field at.*{why}"):
        time_in(spark, value)


def test_rows_have_the_time_of_their_entry(spark: SparkSession, tmp_path: Any) -> None:
    """The writer puts the time of an entry into its row; a record without one is bad, and a tombstone needs none."""
    records = [(4, b"k", b'{"at": -5}'), (5, b"k", None), (6, b"k", b'{"at": "x"}'), (7, b"k", b"{")]
    with RowSink(tmp_path / "rows.sock") as sink:
        got = write(spark, sink, records, value="json", time_field="at")
    assert [row.kind for row in got] == [row_frames.ROW, row_frames.ROW, row_frames.BAD, row_frames.BAD]
    assert ROW_HEADER.unpack_from(got[0].stored)[3] == shifted(-5)
    assert ROW_HEADER.unpack_from(got[1].stored)[::3] == (TOMBSTONE, 0)
    bad = row_frames.decode_bad(got[2].stored)
    assert (bad.reason.startswith("value: the field at is no time"), bad.value) == (True, b'{"at": "x"}')


def view(sql: str) -> View:
    return View("string", "json", "v INT, at TIMESTAMP, ok BOOLEAN", sql, time_field="at")


def test_a_transform_keeps_the_records_with_a_time(spark: SparkSession, tmp_path: Any) -> None:
    """After a transform, a record without a time is bad with the value that was sent, and a filtered one adds nothing."""
    values = (
        b'{"v": 1, "at": "2026-11-22T12:00:00Z", "ok": true}',
        b'{"v": 2, "ok": true}',
        b'{"v": 3, "ok": false}',
        None,
    )
    source = spark.createDataFrame(
        [(b"k", value, None, None, 0, offset) for offset, value in enumerate(values)],
        "key binary, value binary, headers array<struct<key:string,value:binary>>, timestamp timestamp, partition int, "
        "offset bigint",
    ).selectExpr("key", "value", "headers", "timestamp_millis(1) AS timestamp", "partition", "offset")
    of = view("SELECT value.v AS v, value.at AS at FROM records WHERE value.ok")
    with RowSink(tmp_path / "rows.sock") as sink:
        writer = new_writer(spark, sink, value="json", decoded=True, time_field="at")
        writer.open(0, 0)
        process_all(writer, spark_rows(project(spark, source, of).frame))
        got = sink.rows()
    assert [row.kind for row in got] == [row_frames.ROW, row_frames.BAD, row_frames.DROPPED, row_frames.ROW]
    assert ROW_HEADER.unpack_from(got[0].stored)[3] == shifted(NOON_MS)
    assert row_frames.decode_bad(got[1].stored).value == values[1]
    assert got[2].stored == b""
    assert ROW_HEADER.unpack_from(got[3].stored)[0] == TOMBSTONE


def test_a_transform_without_the_time_is_refused(spark: SparkSession) -> None:
    """A transform that does not select the time is refused before a query starts, with the columns that there are."""
    with pytest.raises(SqlError, match=r"timeField: at is no column of transform.sql; there are v"):
        check_view(spark, view("SELECT value.v AS v FROM records"))
