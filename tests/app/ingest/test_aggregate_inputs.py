"""Test what an aggregate view computes of each record, and which expressions it refuses, with Spark's own analysis."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from queryable_app.config.aggregate_spec import AggregateColumn, AggregateOp, AggregateSpec, WindowSpec
from queryable_app.ingest.catalyst import SqlError
from queryable_app.ingest.decoded_records import View
from queryable_app.ingest.stream import contribution_of
from queryable_app.ingest.transform import Projection, check_view, project
from queryable_app.wire import contributions, row_frames
from queryable_app.wire.contributions import ABSENT
from tests.support.fake_serve import RowSink
from tests.support.spark_rows import spark_rows

SCHEMA = (
    "user STRING, amount DECIMAL(10,2), n INT, big BIGINT, price DOUBLE, rate FLOAT, paid BOOLEAN, "
    "at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, tags ARRAY<STRING>, who STRUCT<city: STRING>, m MAP<STRING, INT>"
)
SOURCE = (
    "partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>"
)
AT = dt.datetime(2026, 11, 22, 10, tzinfo=dt.UTC)
AT_MS = 1_795_341_600_000
COUNT = AggregateColumn("n", "count")


def column(op: AggregateOp, of: str, filter: str | None = None) -> AggregateColumn:
    return AggregateColumn("c", op, of, filter)


def view(*columns: AggregateColumn, sql: str | None = None, **fields: Any) -> View:
    window = WindowSpec(60_000, 60_000, time_column=fields.pop("time")) if "time" in fields else None
    given = {"key_format": "string", "value_format": "json", "value_schema": SCHEMA, **fields}
    return View(**given, sql=sql, aggregate=AggregateSpec(tuple(columns), window=window))


def projected(spark: SparkSession, of: View, *records: tuple[bytes | None, bytes | None]) -> Projection:
    source = spark.createDataFrame(
        [(0, offset, AT, key, value, [("h", b"x")]) for offset, (key, value) in enumerate(records)], SOURCE
    )
    return project(spark, source, of)


def rows(spark: SparkSession, of: View, *values: object) -> list[Row]:
    """Return the writer's rows of JSON values with the key `k`; None is a tombstone, bytes are raw."""
    raw = [v if v is None or isinstance(v, bytes) else json.dumps(v).encode() for v in values]
    return projected(spark, of, *((b"k", value) for value in raw)).frame.collect()


def inputs(spark: SparkSession, of: View, value: object) -> list[Any]:
    (row,) = rows(spark, of, value)
    assert (row.problem, row.dropped) == (None, False)
    return list(row[8:])


def refusal(spark: SparkSession, of: View) -> str:
    with pytest.raises(SqlError) as refused:
        check_view(spark, of)
    message = str(refused.value)
    assert "Project [" not in message
    assert "\tat " not in message
    return message


@pytest.mark.parametrize(
    ("of", "json_value", "type_", "carried"),
    [
        ("value.n", {"n": 5}, "l", 5),
        ("CAST(value.n AS TINYINT)", {"n": 5}, "l", 5),
        ("value.big * 2", {"big": -4}, "l", -8),
        ("value.price", {"price": 1.5}, "d", 1.5),
        ("value.rate", {"rate": 0.1}, "f", 0.10000000149011612),
        ("value.amount", {"amount": 1.5}, "n", decimal.Decimal("1.50")),
        ("value.paid", {"paid": True}, "b", True),
        ("value.user", {"user": "é"}, "s", "é".encode()),
        ("CAST(value.user AS BINARY)", {"user": "é"}, "x", "é".encode()),
        ("value.at", {"at": "2026-11-22T10:00:00.000001Z"}, "t", AT_MS * 1000 + 1),
        ("value.local", {"local": "2026-11-22T10:00:00"}, "t", AT_MS * 1000),
        ("value.day", {"day": "0001-01-01"}, "D", -719_162),
        ("timestamp", {}, "t", AT_MS * 1000),
        ("upper(key)", {}, "s", b"K"),
        ("offset", {}, "l", 0),
        ("headers[0].value", {}, "x", b"x"),
        ("value.who.city", {"who": {"city": "B"}}, "s", b"B"),
    ],
    ids=str,
)
def test_value_is_carried_by_its_type(
    spark: SparkSession, of: str, json_value: dict[str, Any], type_: str, carried: object
) -> None:
    """Each type of Spark becomes one of the types of a contribution."""
    wanted = view(column("max", of))
    projection = projected(spark, wanted, (b"k", json.dumps(json_value).encode()))

    assert [each.type for each in projection.inputs] == [type_]
    assert list(projection.frame.collect()[0][8:]) == [carried]


def test_text_that_is_no_text_is_carried_as_text(spark: SparkSession) -> None:
    """Bytes that are not UTF-8, which a key may have, become the replacement character."""
    projection = projected(spark, view(column("max", "key")), (b"\xff", b"{}"))

    assert projection.frame.collect()[0][8] == "\ufffd".encode()


def test_missing_value_is_null(spark: SparkSession) -> None:
    """A record that lacks the field adds null, as in SQL."""
    assert inputs(spark, view(column("sum", "value.n")), {}) == [None]


def test_filter_stands_before_its_value(spark: SparkSession) -> None:
    """A condition that is false or null keeps the value out; one that is true lets null in."""
    of = view(column("sum", "value.n", "value.paid"))

    assert [
        inputs(spark, of, value) for value in ({"n": 1, "paid": True}, {"n": 1, "paid": False}, {"n": 1})
    ] == [[True, 1], [False, None], [False, None]]
    assert inputs(spark, of, {"paid": True}) == [True, None]


def test_count_carries_no_value(spark: SparkSession) -> None:
    """A count needs to know only whether there is a value, of any type; a count of records always has one."""
    of = view(COUNT, column("count", "value.tags"), AggregateColumn("d", "count", "value.who", "value.n > 0"))
    projection = projected(spark, of, (b"k", b'{"tags": [], "n": 1}'), (b"k", b'{"n": 0}'))

    assert [each.type for each in projection.inputs] == ["-", "-", "-"]
    assert [list(row[8:]) for row in projection.frame.collect()] == [
        [True, True, True, None],
        [True, None, False, None],
    ]


def test_equal_inputs_are_computed_once(spark: SparkSession) -> None:
    """Columns of the same expression and filter share an input, in the order in which columns first name them."""
    of = view(
        AggregateColumn("a", "sum", "value.n"),
        AggregateColumn("b", "count", "value.n"),
        AggregateColumn("c", "sum", "value.n", "value.paid"),
    )

    assert [(each.input.filter, each.type) for each in check_view(spark, of).inputs] == [
        (None, "l"),
        ("value.paid", "l"),
    ]


def test_inputs_are_computed_from_the_transform(spark: SparkSession) -> None:
    """With SQL, an expression reads its columns, and a record that it drops, a tombstone and a bad record add nothing."""
    of = view(
        column("sum", "twice + 1", "name <> 'x'"),
        sql="SELECT key, value.n * 2 AS twice, upper(value.user) AS name FROM records WHERE value.paid",
    )
    got = rows(
        spark, of, {"n": 2, "user": "u", "paid": True}, {"n": 9, "paid": False}, None, b"no json", {"n": 9}
    )

    assert [(row.problem is not None, row.dropped, *row[8:]) for row in got] == [
        (False, False, True, 5),
        (False, True, False, None),
        (False, True, False, None),
        (True, False, False, None),
        (False, True, False, None),
    ]
    assert [row.value for row in got] == [None, None, None, b"no json", None]


def test_columns_may_have_the_names_of_our_own(spark: SparkSession) -> None:
    """A column of the transform is found under any name, also one that the projection uses itself."""
    of = view(
        column("sum", "_kept + _problem"),
        sql="SELECT value.n AS _kept, value.big AS _problem, true AS partition FROM records",
    )

    assert inputs(spark, of, {"n": 1, "big": 2}) == [3]


def test_tombstone_of_a_count_is_dropped(spark: SparkSession) -> None:
    """Without SQL, too, a tombstone adds nothing, and a bad record has its reason."""
    got = rows(spark, view(COUNT, value_schema=None), {"a": 1}, None, b"{")

    assert [(row.dropped, row.problem is not None) for row in got] == [
        (False, False),
        (True, False),
        (False, True),
    ]


def test_headers_are_requested_only_if_an_input_reads_them(spark: SparkSession) -> None:
    """Headers cost time, so they are read only for an expression, a filter or SQL that has them."""
    reading = "SELECT size(headers) AS h FROM records"

    assert [
        check_view(spark, of).reads_headers
        for of in (
            view(COUNT),
            view(column("max", "size(headers)")),
            view(column("count", "key", "size(headers) > 0")),
            view(COUNT, sql=reading),
            view(column("max", "h"), sql="SELECT value.n AS h FROM records"),
        )
    ] == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("time", "value", "event_ms"),
    [
        ("value.at", {"at": "0001-01-01T00:00:00Z"}, -62_135_596_800_000),
        ("value.at", {"at": "9999-12-31T23:59:59.999Z"}, 253_402_300_799_999),
        ("value.local", {"local": "2026-11-22T10:00:00"}, AT_MS),
        ("value.big", {"big": -5}, -5),
        ("timestamp", {}, AT_MS),
    ],
)
def test_event_time_is_a_timestamp_or_milliseconds(
    spark: SparkSession, time: str, value: object, event_ms: int
) -> None:
    """The time column is a timestamp of any year, or a whole number of milliseconds."""
    (row,) = rows(spark, view(COUNT, time=time), value)

    assert (row.event_ms, row.problem) == (event_ms, None)


def test_record_without_event_time_is_bad(spark: SparkSession) -> None:
    """A kept record whose time is null is a bad record; a dropped one and a tombstone are not."""
    of = view(
        COUNT, time="t", sql="SELECT timestamp_millis(value.big) AS t FROM records WHERE value.n IS NULL"
    )
    got = rows(spark, of, {"user": "u"}, {"n": 1}, None, {"big": 7})

    assert [(row.problem, row.dropped, row.event_ms) for row in got] == [
        ("event time is null", False, 0),
        (None, True, 0),
        (None, True, 0),
        (None, False, 7),
    ]
    assert got[0].value == b'{"user": "u"}'


def test_event_time_without_a_time_column_is_the_records(spark: SparkSession) -> None:
    """A view without windows, or whose window names no column, has the record's timestamp."""
    (row,) = rows(spark, view(COUNT), {})

    assert row.event_ms == AT_MS


@pytest.mark.parametrize(
    ("time", "reason"),
    [
        ("value.user", "has the type string"),
        ("value.n", "timestamp_seconds"),
        ("value.day", "has the type date"),
        ("value.price", "has the type double"),
        ("value.nope", "No such struct field `nope`"),
        ("max(timestamp)", "write one expression"),
        ("now()", "another value each time"),
    ],
)
def test_other_time_column_is_refused(spark: SparkSession, time: str, reason: str) -> None:
    """A column that is no time is refused with the type it has."""
    message = refusal(spark, view(COUNT, time=time))

    assert message.startswith("spec.view.aggregate.window.timeColumn: ")
    assert reason in message


@pytest.mark.parametrize(
    ("op", "of", "reason"),
    [
        ("sum", "value.user", "sum of value.user, which has the type string; sum needs a number"),
        ("avg", "value.paid", "has the type boolean; avg needs a number"),
        ("sum", "value.at", "has the type timestamp"),
        ("approx_quantiles", "value.day", "has the type date"),
        ("sum", "NULL", "has the type void"),
        ("max", "value.tags", "has the type array<string>"),
        ("first", "value.who", "has the type struct<city:string>"),
        ("top_k", "value.m", "has the type map<string,int>"),
        ("last", "INTERVAL 1 DAY", "has the type interval day"),
        ("min", "value.user COLLATE UTF8_LCASE", "has the type string collate"),
        ("sum", "amont", "`amont` cannot be resolved"),
        ("sum", "value.amont", "No such struct field `amont`"),
        ("sum", "value.n +\n value.nope", "line 2 pos 1"),
        ("sum", "value.n +", "(line 1, pos 9)"),
        ("sum", "value.n, value.big", "(line 1, pos 7)"),
        ("sum", "value.n; DROP TABLE t", "(line 1, pos 7)"),
        ("sum", "nofn(value.n)", "Cannot resolve routine `nofn`"),
        ("sum", "sum(value.n)", "sum is the aggregate"),
        ("sum", "row_number() OVER (ORDER BY key)", "window functions need more than one record"),
        ("collect_set", "explode(value.tags)", "several rows"),
        ("max", "(SELECT max(n) FROM t)", "a SELECT within an expression"),
        ("max", "key IN (SELECT 1)", "a SELECT within an expression"),
        ("max", "rand()", "rand gives another value each time"),
        ("max", "current_date()", "use the column timestamp"),
        ("count", "*", "leave the field out to count records"),
        ("max", "value.*", "is not one value"),
    ],
)
def test_other_input_is_refused_with_a_reason(
    spark: SparkSession, op: AggregateOp, of: str, reason: str
) -> None:
    """The refusal names the column and has Spark's own words with the position, or advice."""
    message = refusal(spark, view(COUNT, column(op, of)))

    assert message.startswith("spec.view.aggregate.columns[c].of: ")
    assert reason in message


@pytest.mark.parametrize(
    ("filter", "reason"),
    [
        ("value.n", "int is no condition"),
        ("value.n >", "(line 1, pos 9)"),
        ("nope = 1", "`nope` cannot be resolved"),
        ("rand() > 0.5", "another value each time"),
        ("max(value.n) > 1", "write one expression over the columns key, value"),
    ],
)
def test_other_filter_is_refused(spark: SparkSession, filter: str, reason: str) -> None:
    """A filter is one condition over the same columns."""
    message = refusal(spark, view(AggregateColumn("c", "count", None, filter)))

    assert message.startswith("spec.view.aggregate.columns[c].filter: ")
    assert reason in message


def test_transform_hides_the_records_columns(spark: SparkSession) -> None:
    """With SQL, an expression reads the columns of the SELECT and no other."""
    message = refusal(spark, view(column("sum", "value.n"), sql="SELECT key, value.n AS n FROM records"))

    assert "`value`" in message
    assert "cannot be resolved" in message


def test_refused_subquery_is_not_looked_up(spark: SparkSession) -> None:
    """A subquery is refused before Spark looks for its tables."""
    assert "cannot be found" not in refusal(spark, view(column("max", "(SELECT 1 FROM no_table)")))


def test_rows_are_written_as_contributions(spark: SparkSession, tmp_path: Path) -> None:
    """The writer sends a contribution for each record that counts, and a dropped row without content for others."""
    of = view(COUNT, column("sum", "value.n", "value.paid"), column("max", "value.user"))
    projection = projected(
        spark,
        of,
        (b"k", b'{"n": 7, "paid": true, "user": "u"}'),
        (b"k", b"{}"),
        (b"k", None),
        (b"k", b"{"),
        (None, b"{}"),
    )
    jvm: Any = spark._jvm
    contribution = contribution_of(spark, projection)
    with RowSink(tmp_path / "rows.sock") as sink:
        writer = jvm.io.queryabletopics.RowWriter(
            str(sink.path), 1, 1, "string", "json", 0, True, contribution, None, None, None
        )
        writer.open(0, 0)
        for row in spark_rows(projection.frame):
            writer.process(row)
        writer.close(None)
        (headers, got) = ([header for header, _ in sink.slices], sink.rows())

    assert [row.kind for row in got] == [
        row_frames.ROW,
        row_frames.ROW,
        row_frames.DROPPED,
        row_frames.BAD,
        row_frames.NULL_KEY,
    ]
    assert [contributions.decode(row.stored) for row in got[:2]] == [
        (0, AT_MS, AT_MS, [2, 7, b"u"]),
        (1, AT_MS, AT_MS, [2, ABSENT, None]),
    ]
    assert (got[2].disk_key, got[2].stored) == (b"k", b"")
    sums = [(header.rows, header.dropped, header.bad, header.null_keys) for header in headers]
    assert tuple(map(sum, zip(*sums, strict=True))) == (5, 1, 1, 1)
