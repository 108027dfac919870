"""Test what the Java writer sends for each kind of record, and when, with the real class and a real socket."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from queryable_app.ingest.writer_check import WriterBroken, check_writer
from queryable_app.wire import row_frames
from queryable_app.wire.disk_format import KeyOrder, Row, encode_row, to_disk_key
from queryable_app.wire.partitioners import ALGORITHMS, partition_for
from queryable_app.wire.row_frames import SliceHeader, SliceRow
from tests.support.fake_serve import RowSink
from tests.support.spark_rows import spark_rows
from tests.support.waiting import eventually

AT_MS = 1_700_000_000_000
Record = tuple[int, bytes | None, bytes | None]  # offset, key, value

_SCHEMA = "partition int, offset bigint, timestamp_ms bigint, key binary, value binary"


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[RowSink]:
    with RowSink(tmp_path / "rows.sock") as opened:
        yield opened


def jvm(spark: SparkSession) -> Any:
    return spark._jvm


def new_writer(
    spark: SparkSession,
    sink: RowSink,
    key: str = "string",
    value: str = "bytes",
    ttl_ms: int = 0,
    decoded: bool = False,
    generation: int = 5,
    partitions: int = 1,
    decoder: Any = None,
    key_decoder: Any = None,
    time_field: str | None = None,
) -> Any:
    entries = None if time_field is None else jvm(spark).io.queryabletopics.TimeField(time_field)
    return jvm(spark).io.queryabletopics.RowWriter(
        str(sink.path),
        generation,
        partitions,
        key,
        value,
        ttl_ms,
        decoded,
        None,
        decoder,
        key_decoder,
        entries,
    )


def java_rows(spark: SparkSession, records: Sequence[Record], partition: int = 0, at_ms: int = AT_MS) -> Any:
    columns = [(partition, offset, at_ms, key, value) for offset, key, value in records]
    return spark_rows(spark.createDataFrame(columns, _SCHEMA))


def write(spark: SparkSession, sink: RowSink, records: Sequence[Record], **options: Any) -> list[SliceRow]:
    """Return the rows that arrive for these records, all of one task."""
    writer = new_writer(spark, sink, **options)
    writer.open(3, 9)
    process_all(writer, java_rows(spark, records))
    return sink.rows()


def process_all(writer: Any, rows: Sequence[Any]) -> None:
    for row in rows:
        writer.process(row)
    writer.close(None)


def header(sink: RowSink) -> SliceHeader:
    """Return one header that combines all slices."""
    headers = [found for found, _ in sink.slices]
    sums = [sum(column) for column in zip(*(found[4:] for found in headers), strict=True)]
    first, last = headers[0], headers[-1]
    return SliceHeader(first.partition, first.first_offset, last.last_offset, last.last_timestamp_ms, *sums)


def test_start_up_check_passes(spark: SparkSession, tmp_path: Path) -> None:
    """The start-up check of a node passes with this Spark."""
    check_writer(spark, tmp_path)


def test_start_up_check_refuses_a_changed_row(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start-up check refuses a row that differs from the expected one."""
    monkeypatch.setattr("queryable_app.ingest.writer_check._TIMESTAMP_MS", 1)
    with pytest.raises(WriterBroken, match="the row writer sent"):
        check_writer(spark, tmp_path)


def test_row_equals_that_of_disk_format(spark: SparkSession, sink: RowSink) -> None:
    """A record's row equals that of disk_format, also with an empty key or value."""
    got = write(spark, sink, [(4, b"k", b"v"), (5, b"", b""), (9, b"\xff\x00", b"\x00")])
    assert got == [
        SliceRow(b"k", encode_row(Row(4, AT_MS, 0, b"v")), row_frames.ROW, 4),
        SliceRow(b"", encode_row(Row(5, AT_MS, 0, b"")), row_frames.ROW, 5),
        SliceRow(b"\xff\x00", encode_row(Row(9, AT_MS, 0, b"\x00")), row_frames.ROW, 9),
    ]


def test_connection_begins_with_hello_and_ends_with_an_acknowledgement(
    spark: SparkSession, sink: RowSink
) -> None:
    """The first frame has generation, task and epoch; closing waits for the last acknowledgement."""
    write(spark, sink, [(0, b"k", b"v")])
    assert sink.hellos == [row_frames.Hello(5, 3, 9)]
    assert sink.ends == 1


def test_tombstone_has_no_value(spark: SparkSession, sink: RowSink) -> None:
    """A null value becomes a tombstone, which does not expire."""
    (row,) = write(spark, sink, [(0, b"k", None)], ttl_ms=1000)
    assert row.stored == encode_row(Row(0, AT_MS, 0, None))


def test_expiry_counts_from_the_record(spark: SparkSession, sink: RowSink) -> None:
    """The expiry of a row counts from the record's timestamp, not from the time of the read."""
    (row,) = write(spark, sink, [(0, b"k", b"v")], ttl_ms=60_000)
    assert row.stored == encode_row(Row(0, AT_MS, AT_MS + 60_000, b"v"))


@pytest.mark.parametrize(
    ("format", "layout", "order", "numbers"),
    [
        ("int", ">i", KeyOrder.SIGNED, [-(2**31), -1, 0, 1, 2**31 - 1]),
        ("long", ">q", KeyOrder.SIGNED, [-(2**63), -256, -1, 0, 1, 2**63 - 1]),
        ("double", ">d", KeyOrder.DOUBLE, [float("-inf"), -1.5, -0.0, 0.0, 5e-324, 2.0, float("inf")]),
    ],
)
def test_number_keys_sort_as_numbers(
    spark: SparkSession, sink: RowSink, format: str, layout: str, order: str, numbers: list[float]
) -> None:
    """The on-disk key equals that of disk_format, so that bytes sort as values do."""
    keys = [struct.pack(layout, number) for number in numbers]
    got = [
        row.disk_key for row in write(spark, sink, [(n, key, b"") for n, key in enumerate(keys)], key=format)
    ]
    assert got == [to_disk_key(key, order, len(key)) for key in keys]
    assert got == sorted(got)


def test_record_without_a_key_leaves_an_empty_row(spark: SparkSession, sink: RowSink) -> None:
    """A record without a key leaves an empty row of its own kind, and causes no partitioner mismatch."""
    got = write(spark, sink, [(7, None, b"v"), (8, None, None)], partitions=4)
    assert got == [SliceRow(b"", b"", row_frames.NULL_KEY, offset) for offset in (7, 8)]
    assert (header(sink).first_offset, header(sink).last_offset, header(sink).null_keys) == (7, 8, 2)
    assert header(sink)[-3:] == (0, 0, 0)


def test_bad_record_has_reason_and_raw_bytes(spark: SparkSession, sink: RowSink) -> None:
    """A bad record becomes a row of its own kind, between the good ones."""
    got = write(spark, sink, [(0, b"a", b"1"), (1, b"b", b"\xff"), (2, b"c", b"2")], value="json")
    assert [row.kind for row in got] == [row_frames.ROW, row_frames.BAD, row_frames.ROW]
    bad = row_frames.decode_bad(got[1].stored)
    assert (got[1].disk_key, bad.value) == (b"b", b"\xff")
    assert bad.reason == "value: not UTF-8 at byte 0"
    assert header(sink).bad == 1


def test_writer_passes_on_reasons_and_dropped_rows(spark: SparkSession, sink: RowSink) -> None:
    """After SQL the writer checks nothing itself: it counts dropped rows and passes on reasons."""
    frame = spark.createDataFrame(
        [
            (0, 0, AT_MS, b"a", b'{"x":1}', False, None),
            (0, 1, AT_MS, b"b", None, True, None),
            (0, 2, AT_MS, b"c", b"raw", False, "value: no"),
        ],
        _SCHEMA + ", dropped boolean, problem string",
    )
    writer = new_writer(spark, sink, value="json", decoded=True)
    writer.open(0, 0)
    process_all(writer, spark_rows(frame))
    assert [row.stored[25:] for row in sink.rows()[:2]] == [b'{"x":1}', b""]
    assert [row.kind for row in sink.rows()] == [row_frames.ROW, row_frames.DROPPED, row_frames.BAD]
    assert row_frames.decode_bad(sink.rows()[2].stored) == row_frames.BadRecord("value: no", b"raw")
    assert (header(sink).dropped, header(sink).bad, header(sink).rows) == (1, 1, 3)


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        (
            "json",
            [
                b"{}",
                b" [1, 2.5e3] ",
                b'"text"',
                b"null",
                b"5",
                '{"a":"\u00e9\u20ac\U0001f600"}'.encode(),
                b'"\\ud83d"',
            ],
            [
                b"",
                b" ",
                b"{",
                b'{"a":1}}',
                b"{} {}",
                b"1 2",
                b"{'a':1}",
                b"NaN",
                b"01",
                b"[1,]",
                b'"a\nb"',
                b'"\\x"',
                b'"open',
                b"truex",
                b'"\xff"',
                b'"\xed\xa0\x80"',
                b'"\xc0\xaf"',
                b"\xef\xbb\xbf{}",
                "{}".encode("utf-16-le"),
                "{}".encode("utf-16-be"),
                "{}".encode("utf-16"),
                b"{}\x00",
            ],
        ),
        (
            "string",
            [b"", b"\x00", "h\u00e9 \u20ac \U0010ffff".encode()],
            [
                b"\xff",
                b"\xc3",
                b"\xe2\x82",
                b"\xf4\x90\x80\x80",
                b"\xed\xa0\x80",
                b"\xc1\xbf",
                b"\xe0\x9f\xbf",
                b"\x80",
            ],
        ),
        ("int", [b"\x00" * 4], [b"", b"\x00" * 3, b"\x00" * 8]),
        ("long", [b"\x00" * 8], [b"\x00" * 4, b"\x00" * 9]),
        ("double", [b"\xff" * 8], [b"\x00" * 4]),
        (
            "uuid",
            [b"01234567-89ab-cdef-0123-456789abcdef", b"01234567-89AB-CDEF-0123-456789ABCDEF"],
            [
                b"01234567-89ab-cdef-0123-456789abcde",
                b"01234567-89ab-cdef-0123-456789abcdeg",
                b"0123456789abcdef" * 2 + b"----",
            ],
        ),
        ("bytes", [b"", b"\xff\x00"], []),
    ],
)
def test_value_is_good_if_it_can_be_decoded(
    spark: SparkSession, format: str, good: list[bytes], bad: list[bytes]
) -> None:
    """JSON is one document in strict UTF-8, text is strict UTF-8, numbers have their width, UUIDs their 36 characters."""
    problem = jvm(spark).io.queryabletopics.Checks.problem
    assert [value for value in good if problem("string", b"k", format, value) is not None] == []
    assert [value for value in bad if problem("string", b"k", format, value) is None] == []


def test_invalid_key_is_a_bad_record(spark: SparkSession) -> None:
    """A key must have its format's width; a text key may be any bytes; a null value is always good."""
    problem = jvm(spark).io.queryabletopics.Checks.problem
    assert problem("long", b"123", "json", b"{}") == "key: 3 bytes, but the format long has 8"
    assert problem("json", b"{", "json", b"{}").startswith("key: not JSON")
    assert problem("string", b"\xff", "json", None) is None


def test_hashes_equal_those_of_the_partitioners(spark: SparkSession) -> None:
    """Java and Python send every key, of any length and bytes, to the same partition."""
    chosen = random.Random(7)
    keys = [b"", b"\x80", *(chosen.randbytes(length % 40) for length in range(200))]
    java = jvm(spark).io.queryabletopics.Partitioners
    for partitions in (1, 7, 50):
        for algorithm in ALGORITHMS:
            got = [getattr(java, algorithm)(key, partitions) for key in keys]
            assert got == [partition_for(key, algorithm, partitions) for key in keys]


def test_mismatches_of_each_partitioner_are_counted(spark: SparkSession, sink: RowSink) -> None:
    """The writer counts the mismatches of each partitioner over all records with a key, deleted and bad ones too."""
    keys = [f"key-{n}".encode() for n in range(40)]
    records: list[Record] = [(n, key, (b"1", None, b"{")[n % 3]) for n, key in enumerate(keys)]
    write(spark, sink, [*records, (40, None, b"1")], value="json", partitions=4)
    wanted = tuple(sum(partition_for(key, a, 4) != 0 for key in keys) for a in ALGORITHMS)
    assert header(sink)[-3:] == wanted


def test_single_rows_are_sent_without_delay(spark: SparkSession, sink: RowSink) -> None:
    """The writer delays neither the first row nor one right after it."""
    writer = new_writer(spark, sink)
    writer.open(0, 0)
    rows = java_rows(spark, [(n, b"k", b"v") for n in range(6)])
    for count, row in enumerate(rows, start=1):
        writer.process(row)
        eventually("the rows have come", lambda count=count: len(sink.rows()) == count)  # type: ignore[misc]
    writer.close(None)


def test_rows_that_follow_by_chance_are_sent_at_once(spark: SparkSession, sink: RowSink) -> None:
    """After a rest, three rows that come close together have a slice each: none waits for others."""
    writer = new_writer(spark, sink, partitions=8)
    writer.open(0, 0)
    for row in java_rows(spark, [(n, b"k", b"v") for n in range(3)]):
        writer.process(row)
    writer.close(None)

    assert [found.rows for found, _ in sink.slices] == [1, 1, 1]


def test_rows_of_a_single_partition_are_sent_at_once_while_there_are_few(
    spark: SparkSession, sink: RowSink
) -> None:
    """Two rows in a millisecond have a slice each if the topic has one partition."""
    writer = new_writer(spark, sink, partitions=1)
    writer.open(0, 0)
    for row in java_rows(spark, [(n, b"k", b"v") for n in range(60)]):
        writer.process(row)
        _pass_half_a_millisecond()
    writer.close(None)

    assert [found.rows for found, _ in sink.slices] == [1] * 60


def test_rows_that_come_fast_share_slices(spark: SparkSession, sink: RowSink) -> None:
    """With eight partitions the writer sends rows together when they arrive faster than one in a millisecond."""
    stream_5000_rows(spark, sink)

    assert len(sink.slices) < 2500  # even if the machine is so busy that the rows take two seconds


def test_rows_are_sent_in_order_and_in_bounded_slices(spark: SparkSession, sink: RowSink) -> None:
    """Slices follow one another in order, and none is larger than serve accepts in one write."""
    stream_5000_rows(spark, sink)

    assert [row.offset for row in sink.rows()] == list(range(5000))
    assert all(0 < found.rows <= 1000 for found, _ in sink.slices)
    assert all(found.first_offset == rows[0].offset for found, rows in sink.slices)


def _pass_half_a_millisecond() -> None:
    """Wait without sleeping, which would take longer."""
    end = time.perf_counter_ns() + 500_000
    while time.perf_counter_ns() < end:
        pass


def stream_5000_rows(spark: SparkSession, sink: RowSink) -> None:
    """Run a query that writes rows as fast as they are read from a file."""
    frame = spark.range(0, 5000, 1, 1).selectExpr(
        "0 AS partition",
        "id AS offset",
        f"{AT_MS}L AS t",
        "CAST(id AS STRING) AS k",
        "CAST('v' AS BINARY) AS value",
    )
    frame = frame.selectExpr("partition", "offset", "t", "CAST(k AS BINARY) AS key", "value")
    writer = new_writer(spark, sink, partitions=8)
    frame.write.mode("overwrite").parquet(str(sink.path.parent / "rows"))
    source = spark.readStream.schema(_SCHEMA.replace("timestamp_ms", "t")).parquet(
        str(sink.path.parent / "rows")
    )
    stream = source.writeStream.outputMode("update").trigger(availableNow=True)
    stream = stream.option("checkpointLocation", str(sink.path.parent / "checkpoint"))
    stream._jwrite = stream._jwrite.foreach(writer)
    stream.start().awaitTermination(60)


@pytest.mark.parametrize("size", [200_000, 262_144, 5_000_000])
def test_row_larger_than_a_slice_is_sent(spark: SparkSession, sink: RowSink, size: int) -> None:
    """A record may be larger than a slice, and small ones around it stay whole."""
    got = write(spark, sink, [(0, b"a", b"1"), (1, b"b", b"x" * size), (2, b"c", b"2")])
    assert [len(row.stored) - 25 for row in got] == [1, size, 1]


def test_writer_of_a_past_generation_fails(spark: SparkSession, sink: RowSink) -> None:
    """If serve closes the connection, the task fails and does not end as if its rows were stored."""
    sink.generation = 6
    with pytest.raises(Py4JJavaError, match=r"row socket|Broken pipe|reset"):
        write(spark, sink, [(0, b"k", b"v")], generation=5)
    assert sink.rows() == []


def test_unacknowledged_end_fails(spark: SparkSession, sink: RowSink) -> None:
    """A task without the last acknowledgement fails, so that Spark does not count its rows as stored."""
    sink.acknowledges = False
    with pytest.raises(Py4JJavaError, match="serve closed the row socket"):
        write(spark, sink, [(0, b"k", b"v")])


def test_broken_connection_fails_the_next_row(spark: SparkSession, sink: RowSink) -> None:
    """A broken connection ends the task, so that the query restarts at the stored positions."""
    writer = new_writer(spark, sink)
    writer.open(0, 0)
    rows = java_rows(spark, [(n, b"k", b"v") for n in range(3)])
    writer.process(rows[0])
    eventually("the rows have come", sink.rows)
    sink.cut()
    with pytest.raises(Py4JJavaError, match=r"Broken pipe|reset"):
        process_all(writer, rows[1:])


def test_socket_without_a_listener_is_named(spark: SparkSession, sink: RowSink) -> None:
    """The error for a socket without a listener names the socket."""
    sink.close()
    with pytest.raises(Py4JJavaError, match=r"serve cannot be reached at .*rows\.sock"):
        new_writer(spark, sink).open(0, 0)
