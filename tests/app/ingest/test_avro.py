"""Test the JVM's decoder of Avro: its JSON for each type, resolution, and bytes that no schema has.

The records come from Avro's own library, from `wire/avro.py`, or from a random generator.
"""

from __future__ import annotations

import base64
import json
import random
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row, SparkSession

from queryable_app.config.avro_schema import parse_avro_schema
from queryable_app.config.value_schema import SchemaSource
from queryable_app.ingest.catalyst import SqlError
from queryable_app.ingest.decoded_records import View
from queryable_app.ingest.transform import check_view, project
from queryable_app.ingest.value_decoders import value_decoder
from queryable_app.wire import row_frames
from queryable_app.wire.avro import avro_bytes
from queryable_app.wire.disk_format import decode_row
from tests.app.ingest.test_writer import sink as sink
from tests.app.ingest.test_writer import write
from tests.support.decoders import decoded_or_bad, problem
from tests.support.fake_serve import RowSink

SLOW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


def schema(*fields: tuple[str, Any]) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": type_} for name, type_ in fields]}
    )


def decoder(spark: SparkSession, text: str) -> Any:
    return value_decoder(spark, SchemaSource(text), {})


def of_library(spark: SparkSession, text: str, avro_json: object) -> bytes:
    """Return the bytes that Avro's library writes for a value in Avro's own JSON encoding."""
    avro: Any = spark._jvm.org.apache.avro  # type: ignore[union-attr]
    of = avro.Schema.Parser().parse(text)
    datum = avro.generic.GenericDatumReader(of).read(
        None, avro.io.DecoderFactory.get().jsonDecoder(of, json.dumps(avro_json))
    )
    out = spark._jvm.java.io.ByteArrayOutputStream()  # type: ignore[union-attr]
    encoder = avro.io.EncoderFactory.get().binaryEncoder(out, None)
    avro.generic.GenericDatumWriter(of).write(datum, encoder)
    encoder.flush()
    return bytes(out.toByteArray())


MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}
UUID = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
CASES: list[tuple[Any, Any, str]] = [
    ("null", None, "null"),
    ("boolean", True, "true"),
    ("int", -(2**31), "-2147483648"),
    ("long", 2**63 - 1, "9223372036854775807"),
    ("float", 0.5, "0.5"),
    ("double", 1e-300, "1.0E-300"),
    ("string", 'ä "\\\u0000\u2028😀', '"ä \\"\\\\\\u0000\u2028😀"'),
    ("bytes", "\u0000ÿ", '"AP8="'),
    ({"type": "fixed", "name": "F", "size": 3}, "abc", '"YWJj"'),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", '"B"'),
    ({"type": "array", "items": "int"}, [1, 2], "[1,2]"),
    ({"type": "map", "values": ["null", "int"]}, {"a": {"int": 1}}, '{"a":1}'),
    (["null", "string", "long"], {"long": 5}, "5"),
    (MONEY, "\u007b", "1.23"),
    (MONEY, "\u0085", "-1.23"),
    ({"type": "int", "logicalType": "date"}, 20_000, '"2024-10-04"'),
    ({"type": "int", "logicalType": "time-millis"}, 3_723_004, '"01:02:03.004"'),
    ({"type": "long", "logicalType": "time-micros"}, 1, '"00:00:00.000001"'),
    ({"type": "long", "logicalType": "timestamp-millis"}, -1, '"1969-12-31T23:59:59.999Z"'),
    ({"type": "long", "logicalType": "timestamp-micros"}, 1_700_000_000_000_001, '"2023-11-14T22:13:20.000001Z"'),
    ({"type": "long", "logicalType": "timestamp-nanos"}, 1, '"1970-01-01T00:00:00.000000001Z"'),
    ({"type": "long", "logicalType": "timestamp-millis"}, 2**63 - 1, '"+292278994-08-17T07:12:55.807Z"'),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, 0, '"1970-01-01T00:00:00.000"'),
    (UUID, "\u0000" * 15 + "\u0001", '"00000000-0000-0000-0000-000000000001"'),
    ({"type": "long", "logicalType": "unheard-of"}, 7, "7"),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "written", "expected"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_json_of_each_type(spark: SparkSession, type_: Any, written: Any, expected: str) -> None:
    """What Avro's library writes becomes the JSON of the documented mapping, and that JSON the same bytes again."""
    text = schema(("f", type_))
    record = of_library(spark, text, {"f": written})
    made = bytes(decoder(spark, text).decode(record)).decode()
    assert made == f'{{"f":{expected}}}'
    if (
        not isinstance(type_, dict) or type_.get("type") != "map"
    ):  # Java's library orders maps by their hashes
        assert avro_bytes(parse_avro_schema(text), made.encode()) == record


def test_recursive_schema_is_decoded_to_a_depth(spark: SparkSession) -> None:
    """A recursive value is JSON as deep as JSON may be, and a deeper one is a bad record."""
    text = json.dumps(
        {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"], "default": None}]}
    )
    assert bytes(decoder(spark, text).decode(b"\x02" * 99 + b"\x00")).count(b"next") == 100
    assert problem(decoder(spark, text), b"\x02" * 100 + b"\x00") == "nested deeper than 100"
    assert problem(decoder(spark, text), b"\x02" * 1_000_000) == "nested deeper than 100"


@pytest.mark.parametrize(
    ("type_", "record", "reason"),
    [
        ("string", b"\xfe\xff\xff\xff\x0f", "a length of 2147483647"),
        ("bytes", b"\x01", "a length of -1"),
        ("string", b"\x04\xff\xff", "not UTF-8"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\x01\x00", "more items than bytes"),
        ({"type": "array", "items": "int"}, b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "no int|ends at byte|items"),
        ({"type": "map", "values": "null"}, b"\x04\x02a\x02a\x00", "a map has a key twice"),
        (["null", "int"], b"\x04", "has no branch 2"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "not Avro of this schema"),
        ("boolean", b"\x02", "no boolean"),
        ("int", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", "no number"),
        ("int", b"\x80\x80\x80\x80\x80\x01", "no int"),
        ("double", b"\x00", "it ends at byte 1"),
        ("null", b"\x00", "1 bytes are left over"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "a time that no day has"),
        ({**MONEY, "precision": 3000, "scale": 2000}, b"\x02\x01", "a number of more than 1000 characters"),
        (MONEY, b"\x00", "a decimal without digits"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_bytes_that_the_schema_has_not_are_a_bad_record(
    spark: SparkSession, type_: Any, record: bytes, reason: str
) -> None:
    """A record that does not follow its schema is named as bad, whatever lengths its bytes announce."""
    assert re.search(reason, problem(decoder(spark, schema(("f", type_))), record))


RICH = schema(
    ("id", "long"),
    ("name", ["null", "string"]),
    ("tags", {"type": "array", "items": {"type": "map", "values": ["null", "double", "string"]}}),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("price", MONEY),
    ("kind", {"type": "enum", "name": "K", "symbols": ["A", "B"]}),
    ("raw", {"type": "fixed", "name": "X", "size": 4}),
    ("more", ["null", "R"]),
)


def names() -> st.SearchStrategy[str]:
    return st.sampled_from(("a", "b", "c", "d"))


@st.composite
def typed(draw: st.DrawFn, depth: int = 0) -> tuple[Any, Any]:
    """Draw a type, and a value of it as JSON by the documented mapping. Each record has a name of its own."""
    scalars: list[tuple[Any, st.SearchStrategy[Any]]] = [
        ("null", st.none()),
        ("boolean", st.booleans()),
        ("int", st.integers(-(2**31), 2**31 - 1)),
        ("long", st.integers(-(2**63), 2**63 - 1)),
        ("double", st.floats(allow_nan=False, allow_infinity=False)),
        ("string", st.text(st.characters(codec="utf-8"), max_size=20)),
        ("bytes", st.binary(max_size=20).map(lambda raw: base64.b64encode(raw).decode())),
        ({"type": "bytes", "logicalType": "decimal", "precision": 30}, st.integers(-(10**29), 10**29)),
        ({"type": "int", "logicalType": "date"}, st.dates().map(str)),
    ]
    kind = draw(st.integers(0, 2 if depth > 2 else 6))
    if kind < 3:
        type_, values = draw(st.sampled_from(scalars))
        return type_, draw(values)
    if kind == 3:
        fields = draw(st.lists(names(), unique=True, max_size=4))
        inner = {name: draw(typed(depth + 1)) for name in fields}
        name = f"R{draw(st.uuids()).hex}"
        fields_ = [{"name": field, "type": type_} for field, (type_, _) in inner.items()]
        return {"type": "record", "name": name, "fields": fields_}, {k: v for k, (_, v) in inner.items()}
    type_, value = draw(typed(depth + 1))
    if kind == 4:
        return {"type": "array", "items": type_}, draw(st.sampled_from(([], [value], [value] * 3)))
    if kind == 5:
        return {"type": "map", "values": type_}, {key: value for key in draw(st.sets(names()))}
    if type_ == "null" or isinstance(type_, list):
        return type_, value
    return ["null", type_], draw(st.sampled_from((None, value)))


@SLOW
@given(made=typed())
def test_random_schemas_and_values(spark: SparkSession, made: tuple[Any, Any]) -> None:
    """A record of any schema becomes the JSON of its value."""
    text = json.dumps(made[0])
    record = avro_bytes(parse_avro_schema(text), json.dumps(made[1]).encode())
    assert json.loads(bytes(decoder(spark, text).decode(record))) == made[1]


@SLOW
@given(made=typed(), spoiling=st.data())
def test_spoilt_records_end_no_decoder(
    spark: SparkSession, made: tuple[Any, Any], spoiling: st.DataObject
) -> None:
    """Random bytes, and good records with flipped bits, cut or with bytes behind, are JSON or a bad record with a reason. What is
    JSON has the value that its own encoding has."""
    text = json.dumps(made[0])
    parsed, of = parse_avro_schema(text), decoder(spark, text)
    good = avro_bytes(parsed, json.dumps(made[1]).encode())
    chance = random.Random(spoiling.draw(st.integers(0, 2**32)))
    for _ in range(10):
        spoilt = bytearray(good if chance.random() < 0.8 else chance.randbytes(chance.randrange(60)))
        for _ in range(chance.randrange(3) if spoilt else 0):
            spoilt[chance.randrange(len(spoilt))] ^= 1 << chance.randrange(8)
        end = chance.randrange(len(spoilt) + 1) if chance.random() < 0.3 else len(spoilt)
        record = bytes(spoilt[:end]) + chance.randbytes(chance.choice((0, 0, 0, 1, 9)))
        if (shown := decoded_or_bad(of, record)) is not None:
            json.loads(shown)
            assert decoded_or_bad(of, avro_bytes(parsed, shown)) == shown


def transformed(spark: SparkSession, view: View, *values: bytes | None) -> list[Row]:
    source = spark.createDataFrame(
        [(0, offset, None, b"k", value) for offset, value in enumerate(values)],
        "partition int, offset bigint, timestamp timestamp, key binary, value binary",
    )
    return project(spark, source, view).frame.collect()


def test_sql_reads_the_fields_of_the_schema(spark: SparkSession) -> None:
    """The user's SQL has a column for each field, typed; what has no SQL type is the text of its JSON."""
    view = View(
        "string",
        "avro",
        sql="SELECT value.id + 1 AS n, year(value.at) AS y, value.price * 2 AS p, value.tags[0]['a'] AS a, "
        "value.more AS m, value.raw AS r FROM records WHERE value.kind = 'B'",
        schema_source=SchemaSource(RICH),
    )
    checked = check_view(spark, view)
    assert dict(checked.columns)["m"] == "string"
    record = (
        '{"id":9007199254740993,"name":null,"tags":[{"a":"1"}],"at":"2026-01-02T03:04:05.000006Z","price":12.5,'
        '"kind":"B","raw":"AAECAw==","more":%s}'
    )
    inner = record % "null"
    parsed = parse_avro_schema(RICH)
    rows = transformed(spark, view, avro_bytes(parsed, (record % inner).encode()), None, b"\x01")
    value = json.loads(bytes(rows[0].value), parse_float=Decimal)
    assert (value["n"], value["y"], value["p"], value["a"], value["r"]) == (
        9007199254740994, 2026, Decimal("25.00"), "1", "AAECAw==",
    )  # fmt: skip
    assert json.loads(value["m"])["price"] == 12.5
    assert (rows[1].problem, rows[1].value) == (None, None)
    assert rows[2].problem.startswith("value: not Avro")
    assert bytes(rows[2].value) == b"\x01"


def test_whole_value_of_a_filter_keeps_its_json(spark: SparkSession) -> None:
    """SQL that stores the whole value stores the JSON of the mapping, with every digit."""
    view = View(
        "string",
        "avro",
        sql="SELECT key, value FROM records WHERE value.id > 1",
        schema_source=SchemaSource(RICH),
    )
    text = (
        b'{"id":2,"name":null,"tags":[],"at":"2026-01-02T03:04:05.000006Z","price":12345678901234567890.12,'
        b'"kind":"A","raw":"AAECAw==","more":null}'
    )
    (row,) = transformed(spark, view, avro_bytes(parse_avro_schema(RICH), text))
    assert (bytes(row.value), row.problem) == (text, None)


def test_writer_stores_json_and_reports_bad_records(spark: SparkSession, sink: RowSink) -> None:
    """Without SQL the writer stores the JSON of a record, and leaves the bytes of a bad one for its dead letter."""
    text = schema(("n", "long"))
    rows = write(
        spark,
        sink,
        [(0, b"a", b"\x0e"), (1, b"b", b""), (2, b"c", None)],
        value="avro",
        decoder=decoder(spark, text),
    )
    assert [row.kind for row in rows] == [row_frames.ROW, row_frames.BAD, row_frames.ROW]
    assert decode_row(rows[0].stored).value == b'{"n":7}'
    assert b"value: not Avro of this schema: it ends at byte 0" in rows[1].stored
    assert decode_row(rows[2].stored).value is None


def test_schema_that_avro_refuses_names_the_field(spark: SparkSession) -> None:
    """A schema that only Avro's library finds wrong is refused before the start, with its sentence."""
    wrong = json.dumps({"type": "record", "name": "9", "fields": []})
    with pytest.raises(SqlError, match=r"spec\.value\.schemaFrom\.inline: no Avro schema: .*9"):
        check_view(spark, View("string", "avro", schema_source=SchemaSource(wrong)))
