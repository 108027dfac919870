"""Test the keys of groups, and records that give several rows, with Spark's own analysis."""

from __future__ import annotations

import datetime as dt
import json
import struct
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from queryable_app.config.aggregate_spec import AggregateColumn, AggregateSpec, WindowSpec
from queryable_app.ingest.catalyst import SqlError
from queryable_app.ingest.decoded_records import View
from queryable_app.ingest.transform import Projection, check_view, project

SCHEMA = "page STRING, shop INT, paid BOOLEAN, tags ARRAY<STRING>, price DOUBLE"
SOURCE = (
    "partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>"
)
AT = dt.datetime(2026, 11, 22, 10, tzinfo=dt.UTC)
COLUMNS = "value.page AS page, value.shop AS shop, value.paid AS paid, value.price AS price"


def view(*group_by: str, sql: str = f"SELECT {COLUMNS} FROM records") -> View:
    return View(
        "string", "json", SCHEMA, sql, AggregateSpec((AggregateColumn("n", "count"),), tuple(group_by))
    )


def projected(spark: SparkSession, of: View, *values: Any) -> Projection:
    raw = [None if value is None else json.dumps(value).encode() for value in values]
    records: list[Any] = [(0, offset, AT, None, value, []) for offset, value in enumerate(raw)]
    return project(spark, spark.createDataFrame(records, SOURCE), of)


def rows(spark: SparkSession, of: View, *values: Any) -> list[Row]:
    return projected(spark, of, *values).frame.collect()


@pytest.mark.parametrize(
    ("group_by", "value", "key", "format"),
    [
        (["page"], {"page": "ä/b"}, "ä/b".encode(), "string"),
        (["page"], {"page": None}, None, "string"),
        (["shop"], {"shop": -3}, struct.pack(">q", -3), "long"),
        (["paid"], {"paid": True}, b"[true]", "json"),
        (["shop", "PAGE"], {"shop": 1, "page": 'a"b'}, b'[1,"a\\"b"]', "json"),
        (["shop", "page"], {"shop": 1, "page": None}, b"[1,null]", "json"),
    ],
)
def test_key_of_a_group(
    spark: SparkSession, group_by: list[str], value: dict[str, Any], key: bytes | None, format: str
) -> None:
    """Text is a string key, integers are long keys, and anything else is a JSON array."""
    of = view(*group_by)
    assert check_view(spark, of).group_key_format == format
    (row,) = rows(spark, of, value)
    assert (row.key, row.dropped, row.problem) == (key, False, None)


@pytest.mark.parametrize(
    ("name", "sentence"), [("nope", "there is no column nope"), ("price", "price is double")]
)
def test_columns_that_form_no_group_are_refused(spark: SparkSession, name: str, sentence: str) -> None:
    """An unknown column, and one of a type without exact equality, are refused with the field's path."""
    with pytest.raises(SqlError, match=rf"^spec.view.aggregate.groupBy: {sentence}"):
        check_view(spark, view(name))


def keyed(
    *key_by: str, sql: str | None = "SELECT key, value.page AS page FROM records WHERE value.shop > 0"
) -> View:
    return View("string", "json", SCHEMA, sql, key_by=key_by)


def test_rows_of_a_view_under_another_key(spark: SparkSession) -> None:
    """A row has its new key, its JSON with the record key among the columns, and the record key for moves; a tombstone, a
    dropped record and one without the new key have no row."""
    of = keyed("page")
    assert check_view(spark, of).group_key_format == "string"
    values = [{"page": "/a", "shop": 1}, None, {"page": "/a", "shop": 0}, {"shop": 1}]
    records: list[Any] = [
        (0, offset, AT, f"u{offset}".encode(), None if value is None else json.dumps(value).encode(), [])
        for offset, value in enumerate(values)
    ]
    records.append((0, 4, AT, b"u4", b"no json", []))
    frame = project(spark, spark.createDataFrame(records, SOURCE), of).frame
    got = [(row.key, row.value, row.dropped, bytes(row.record_key)) for row in frame.collect()[:4]]
    assert got == [
        (b"/a", b'{"key":"u0","page":"/a"}', False, b"u0"),
        (None, None, False, b"u1"),
        (None, None, True, b"u2"),
        (None, b'{"key":"u3","page":null}', False, b"u3"),
    ]
    assert frame.collect()[4].problem is not None


def test_new_key_without_sql_keeps_the_value(spark: SparkSession) -> None:
    """Without a transform the columns are those of the record, and the value is stored as it is."""
    of = View("string", "long", key_by=("value",))
    raw = struct.pack(">q", 7)
    records: list[Any] = [(0, 0, AT, b"u", raw, [])]
    projection = project(spark, spark.createDataFrame(records, SOURCE), of)
    (row,) = projection.frame.collect()
    assert (row.key, row.value, projection.group_key_format) == (raw, raw, "long")


def test_unknown_column_of_a_new_key_is_refused(spark: SparkSession) -> None:
    """The refusal has the field's path and the columns that there are."""
    with pytest.raises(
        SqlError, match=r"^spec.view.keyBy: there is no column nope; name columns of key, page$"
    ):
        check_view(spark, keyed("nope"))


def tags(function: str = "explode", where: str = "") -> View:
    return view("tag", sql=f"SELECT {function}(value.tags) AS tag, value.shop AS shop FROM records {where}")


def test_array_gives_a_row_of_each_element(spark: SparkSession) -> None:
    """The rows of a record are numbered, so that each is counted once."""
    got = rows(spark, tags(), {"tags": ["a", "b", "a"]}, {"tags": ["c"]})
    assert [(row.offset, bytes(row.key), row.row, row.rows, row.dropped) for row in got] == [
        (0, b"a", 0, 3, False),
        (0, b"b", 1, 3, False),
        (0, b"a", 2, 3, False),
        (1, b"c", 0, 1, False),
    ]


def test_record_without_an_element_still_gives_one_dropped_row(spark: SparkSession) -> None:
    """Positions advance over empty arrays, nulls, tombstones and records that the filter drops."""
    of = tags(where="WHERE value.shop > 0")
    got = rows(
        spark, of, {"tags": [], "shop": 1}, {"tags": None, "shop": 1}, None, {"tags": ["a"], "shop": 0}
    )
    assert [(row.offset, row.dropped, row.row, row.rows) for row in got] == [
        (n, True, 0, 1) for n in range(4)
    ]


def test_element_that_is_null_is_in_no_group(spark: SparkSession) -> None:
    """A null within an array has its number, and no key."""
    got = rows(spark, tags(), {"tags": ["a", None]})
    assert [(row.key and bytes(row.key), row.row, row.rows) for row in got] == [(b"a", 0, 2), (None, 1, 2)]


def test_record_with_too_many_rows_is_bad(spark: SparkSession) -> None:
    """A record gives at most as many rows as an envelope can number."""
    of = view("n", sql="SELECT explode(sequence(1, value.shop)) AS n FROM records")
    (row,) = rows(spark, of, {"shop": 65_536})
    assert "65535 rows" in row.problem
    assert (row.row, row.rows) == (0, 1)


def test_columns_are_of_the_rows_that_an_array_gives(spark: SparkSession) -> None:
    """Columns and filters read each element; an explode of their own is refused."""
    sql = "SELECT explode(value.tags) AS tag, value.shop AS shop FROM records"
    longest = AggregateColumn("longest", "max", of="length(tag)", filter="tag <> 'x'")
    got = rows(
        spark,
        View("string", "json", SCHEMA, sql, AggregateSpec((longest,), ("shop",))),
        {"tags": ["abc", "x"]},
    )
    assert [(row[8], row[9]) for row in got] == [(True, 3), (False, None)]
    again = AggregateColumn("n", "max", of="explode(array(shop))")
    with pytest.raises(
        SqlError, match="functions that make several rows, such as explode, cannot be used here"
    ):
        check_view(spark, View("string", "json", SCHEMA, sql, AggregateSpec((again,), ("shop",))))


def test_row_without_a_time_is_bad_and_the_others_count(spark: SparkSession) -> None:
    """A record with several rows has bad ones only where the event time is null. Every row has its number."""
    sql = "SELECT explode(value.tags) AS tag, try_to_timestamp(tag) AS at FROM records"
    aggregate = AggregateSpec((AggregateColumn("n", "count"),), ("tag",), WindowSpec(1000, time_column="at"))
    got = rows(spark, View("string", "json", SCHEMA, sql, aggregate), {"tags": ["2026-11-22", "x"]})
    assert [(row.problem, row.event_ms, row.row, row.rows) for row in got] == [
        (None, 1_795_305_600_000, 0, 2),
        ("event time is null", 0, 1, 2),
    ]


def test_functions_that_make_several_rows_need_groups(spark: SparkSession) -> None:
    """Where the record key is the group, and for other functions than explode of an array, Spark's rows are refused."""
    for of in (
        view(sql="SELECT explode(value.tags) AS tag FROM records"),
        view("tag", sql="SELECT posexplode(value.tags) AS (place, tag) FROM records"),
    ):
        with pytest.raises(SqlError, match=r"^spec.transform.sql: "):
            check_view(spark, of)
