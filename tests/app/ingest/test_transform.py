"""Test the transformation of Kafka records to rows: the accepted SQL, and the result for each kind of record."""

from __future__ import annotations

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from queryable_app.ingest.catalyst import SqlError
from queryable_app.ingest.decoded_records import View
from queryable_app.ingest.transform import check_view, project

SCHEMA = "user STRING, page STRING, bot BOOLEAN, at STRUCT<city: STRING>"
SOURCE = (
    "partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>"
)


def view(sql: str | None, key: str = "string", value: str = "json", schema: str | None = SCHEMA) -> View:
    return View(key, value, schema if value == "json" else None, sql)


def transformed(spark: SparkSession, of: View, *records: tuple[bytes | None, bytes | None]) -> list[Row]:
    """Return the rows of records with offsets 0, 1, 2, …, each with one header."""
    source = spark.createDataFrame(
        [(0, offset, None, key, value, [("h", b"x")]) for offset, (key, value) in enumerate(records)], SOURCE
    )
    return project(spark, source, of).frame.collect()


def value_of(spark: SparkSession, of: View, value: bytes, key: bytes = b"k") -> Any:
    (row,) = transformed(spark, of, (key, value))
    assert row.problem is None
    return json.loads(bytes(row.value))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM records",
        "SELECT key, value.user AS user FROM records WHERE value.bot = false",
        "SELECT r.key, r.value.* FROM records AS r WHERE r.partition = 0;",
        "SELECT * EXCEPT (headers) FROM records",
        "select key as KEY, upper(value.user) u from RECORDS",
        "SELECT value.user AS name, name || '!' AS shout FROM records",
        "SELECT key FROM records",
        "SELECT CAST(value.user AS INT) AS n, CASE WHEN value.bot THEN 1 END AS b, value.at.city FROM records",
        "SELECT filter(headers, h -> h.key = 'h')[0].value AS h FROM records",
    ],
)
def test_projection_with_a_filter_is_accepted(spark: SparkSession, sql: str) -> None:
    """One SELECT over records with an optional WHERE is accepted, whatever its expressions."""
    check_view(spark, view(sql))


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELEC key FROM records", "Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)"),
        ("SELECT key FROM records; DROP TABLE t", "(line 1, pos 25)"),
        ("SELECT nope FROM records", "`nope` cannot be resolved"),
        ("SELECT key,\n nope FROM records", "line 2 pos 1"),
        ("SELECT value.nope FROM records", "No such struct field `nope`"),
        ("SELECT key FROM other", "`other` cannot be found"),
        ("SELECT key FROM records WHERE 5", "not a boolean"),
        ("DROP TABLE records", "anything but a SELECT"),
        ("SET spark.sql.ansi.enabled = true", "anything but a SELECT"),
        ("SELECT 1", "anything but a SELECT"),
        ("SELECT key FROM records ORDER BY key", "ORDER BY cannot be used here"),
        ("SELECT key FROM records LIMIT 1", "LIMIT cannot"),
        ("SELECT DISTINCT key FROM records", "DISTINCT cannot"),
        ("SELECT key, count(*) FROM records GROUP BY key", "view.aggregate"),
        ("SELECT count(*) FROM records", "view.aggregate"),
        ("SELECT row_number() OVER (ORDER BY key) n FROM records", "window functions"),
        ("SELECT a.key FROM records a JOIN records b", "joins"),
        ("SELECT key FROM records UNION ALL SELECT key FROM records", "UNION"),
        ("WITH r AS (SELECT * FROM records) SELECT * FROM r", "WITH"),
        ("SELECT * FROM (SELECT * FROM records)", "a SELECT within a SELECT"),
        ("SELECT key FROM records WHERE key IN (SELECT key FROM records)", "a SELECT within a SELECT"),
        ("SELECT explode(headers) FROM records", "explode"),
        ("SELECT key FROM records LATERAL VIEW explode(headers) t AS h", "explode"),
        ("SELECT value.user AS key FROM records", "view.keyBy"),
        ("SELECT upper(key) AS Key FROM records", "view.keyBy"),
        ("SELECT value.user AS a, value.page AS a FROM records", "two columns are called a"),
        ("SELECT rand() AS r FROM records", "rand gives another value each time"),
        ("SELECT key FROM records WHERE timestamp < now()", "use the column timestamp"),
        ("SELECT java_method('java.lang.System', 'exit', 1) AS x FROM records", "every replica"),
    ],
)
def test_other_sql_is_refused_with_a_reason(spark: SparkSession, sql: str, reason: str) -> None:
    """The refusal has Spark's own words with the position, or advice; never the plan or a stack trace."""
    with pytest.raises(SqlError) as refused:
        check_view(spark, view(sql))
    message = str(refused.value)
    assert message.startswith("spec.transform.sql: ")
    assert reason in message
    assert "Project [" not in message
    assert "\tat " not in message


@pytest.mark.parametrize("schema", ["user STRNG", "ARRAY<INT>", "user STRING,", "map<string,string>"])
def test_invalid_schema_is_refused(spark: SparkSession, schema: str) -> None:
    """A schema that is not a list of columns is refused by the field's name, also without SQL."""
    with pytest.raises(SqlError, match=r"^spec\.value\.schema: "):
        check_view(spark, view(None, schema=schema))


def test_refused_command_is_not_executed(spark: SparkSession) -> None:
    """A command is refused before Spark analyses it, since analysis would execute it."""
    with pytest.raises(SqlError):
        check_view(spark, view("SET spark.sql.session.timeZone = 'Asia/Tokyo'"))
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_headers_are_requested_only_if_read(spark: SparkSession) -> None:
    """A view requests headers only if its columns or its filter read them."""
    assert not check_view(spark, view("SELECT key, value FROM records")).reads_headers
    assert check_view(spark, view("SELECT size(headers) AS n FROM records")).reads_headers
    assert check_view(spark, view("SELECT key FROM records WHERE size(headers) > 0")).reads_headers


def test_columns_become_one_json_object_with_nulls(spark: SparkSession) -> None:
    """Every selected column but the key becomes a field, also when it is null."""
    of = view("SELECT key, value.user AS user, value.page AS page, offset FROM records")
    assert value_of(spark, of, b'{"user":"a"}') == {"user": "a", "page": None, "offset": 0}


def test_only_column_value_is_the_value_itself(spark: SparkSession) -> None:
    """`SELECT key, value` stores the value's own JSON, of any type."""
    assert value_of(spark, view("SELECT key, value.at AS value FROM records"), b'{"at":{"city":"B"}}') == {
        "city": "B"
    }
    assert value_of(spark, view("SELECT key, value.user AS value FROM records"), b'{"user":"a\\"b"}') == 'a"b'
    assert value_of(spark, view("SELECT length(value.user) AS value FROM records"), b'{"user":"abc"}') == 3
    assert value_of(spark, view("SELECT value.page AS value FROM records"), b"{}") is None
    untouched = view("SELECT key, value FROM records WHERE offset >= 0", schema=None)
    assert transformed(spark, untouched, (b"k", b'{ "a" : [1,2] }'))[0].value == b'{ "a" : [1,2] }'


@pytest.mark.parametrize(
    ("format", "raw", "seen"),
    [
        ("string", "grün".encode(), "grün"),
        ("int", struct.pack(">i", -5), -5),
        ("long", struct.pack(">q", 2**40), 2**40),
        ("double", struct.pack(">d", -1.5), -1.5),
        ("uuid", b"01234567-89ab-cdef-0123-456789abcdef", "01234567-89ab-cdef-0123-456789abcdef"),
        ("bytes", b"\x00\xff", "AP8="),
    ],
)
def test_sql_sees_the_types_of_the_formats(spark: SparkSession, format: str, raw: bytes, seen: Any) -> None:
    """SQL sees numbers as numbers and text as text, in keys and in values."""
    of = view("SELECT key AS k, value AS v, typeof(key) AS t FROM records", key=format, value=format)
    got = value_of(spark, of, raw, key=raw)
    assert got["k"] == got["v"] == seen
    names = {"int": "int", "long": "bigint", "double": "double", "bytes": "binary"}
    assert got["t"] == names.get(format, "string")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT coalesce(value.user, raise_error('seen')) AS user FROM records",
        "SELECT key, value FROM records WHERE value IS NULL",
        "SELECT key, value FROM records WHERE coalesce(value.user, raise_error('seen')) = 'a'",
    ],
)
def test_tombstone_is_not_transformed(spark: SparkSession, sql: str) -> None:
    """A null value stays null, even where an expression would replace it or the filter would drop it."""
    (row,) = transformed(spark, view(sql), (b"k", None))
    assert (row.value, row.dropped, row.problem) == (None, False, None)


def test_dropped_row_becomes_a_delete(spark: SparkSession) -> None:
    """A dropped row has no value and has its flag; a filter that is NULL drops the row, too."""
    of = view("SELECT value.user AS u FROM records WHERE value.bot = false")
    got = transformed(spark, of, (b"a", b'{"bot":false}'), (b"b", b'{"bot":true}'), (b"c", b"{}"))
    assert [(row.dropped, row.value is None) for row in got] == [(False, False), (True, True), (True, True)]


@pytest.mark.parametrize(
    ("of", "key", "value", "reason"),
    [
        (view("SELECT value FROM records"), b"k", b"{", "value: not JSON"),
        (
            view("SELECT value FROM records"),
            b"k",
            b'{"bot":"maybe"}',
            "value: not as spec.value.schema has it",
        ),
        (view("SELECT value FROM records"), b"k", b"[1]", "value: not as spec.value.schema has it"),
        (view("SELECT value FROM records"), b"k", b'{"a":1} {"b":2}', "value: more than one JSON document"),
        (view("SELECT value FROM records", schema=None), b"k", b"{'a':1}", "value: not JSON"),
        (view("SELECT value FROM records", value="string"), b"k", b"\xff", "value: not UTF-8"),
        (view("SELECT value FROM records", value="int"), b"k", b"123", "value: 3 bytes"),
        (view("SELECT value FROM records", key="long"), b"k", b"{}", "key: 1 bytes"),
    ],
)
def test_undecodable_record_keeps_its_raw_value(
    spark: SparkSession, of: View, key: bytes, value: bytes, reason: str
) -> None:
    """An undecodable record keeps its raw value and a reason, so that it can go to a dead letter topic."""
    (row,) = transformed(spark, of, (key, value))
    assert row.problem.startswith(reason)
    assert (bytes(row.value), row.dropped) == (value, False)


def test_json_is_parsed_once(spark: SparkSession) -> None:
    """The plan parses and checks the value once, however often the SQL refers to it."""
    of = view(
        "SELECT value.user AS a, value.page AS b, value.at.city AS c FROM records WHERE value.bot AND value.user > ''"
    )
    source = spark.createDataFrame([], SOURCE)
    plan = project(spark, source, of).frame._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("from_json") == 1
    assert plan.count("qt_Problem") == 1


def test_queries_of_one_session_are_analysed_side_by_side(spark: SparkSession) -> None:
    """The workers of a pod start their queries in threads of one session, and none sees another one's `records`."""
    of = view("SELECT key, value.user AS user FROM records WHERE value.bot = false")

    def analyse() -> list[str]:
        source = spark.createDataFrame([], SOURCE)
        return [project(spark, source, of).frame.columns[0] for _ in range(10)]

    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(analyse) for _ in range(4)]

    assert [call.result() for call in calls] == [["partition"] * 10] * 4
