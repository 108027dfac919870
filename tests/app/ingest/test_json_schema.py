"""Test the check of JSON values against a JSON Schema: what fits, sentences, drafts, and schemas that would not end."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queryable_app.config.value_schema import SchemaSource
from queryable_app.ingest.catalyst import SqlError
from queryable_app.ingest.decoded_records import View
from queryable_app.ingest.transform import check_view
from queryable_app.ingest.value_decoders import value_decoder
from queryable_app.wire import row_frames
from queryable_app.wire.disk_format import decode_row
from tests.app.ingest.test_avro import transformed
from tests.app.ingest.test_writer import sink as sink
from tests.app.ingest.test_writer import write
from tests.support.decoders import problem
from tests.support.fake_serve import RowSink

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["number"],
    "properties": {
        "number": {"type": "integer", "minimum": 1},
        "state": {"enum": ["OPEN", "PAID"]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
    },
    "$defs": {"line": {"type": "object", "properties": {"sku": {"pattern": "^[A-Z]{2}[0-9]+$"}}}},
}


def source(schema: Any) -> SchemaSource:
    return SchemaSource(schema if isinstance(schema, str) else json.dumps(schema), format="json")


def decoder(spark: SparkSession, schema: Any) -> Any:
    return value_decoder(spark, source(schema), {})


@pytest.mark.parametrize(
    "value",
    [
        b' {"number": 1, "more": [0.10, 1e2]} ',
        b'{"number": 123456789012345678901234567890}',
        b'{"number":7,"lines":[{"sku":"AB1"}]}',
    ],
)
def test_value_that_fits_is_stored_unchanged(spark: SparkSession, value: bytes) -> None:
    """Spaces, the order of names and every digit stay as the producer wrote them."""
    assert bytes(decoder(spark, ORDER).decode(value)) == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{}", "required property 'number' not found"),
        (b'{"number": "7"}', "at /number: string found, integer expected"),
        (b'{"number": 0}', "at /number: must have a minimum value of 1"),
        (
            b'{"number": 7, "state": "X"}',
            'at /state: does not have a value in the enumeration ["OPEN", "PAID"]',
        ),
        (
            b'{"number": 7, "lines": [{"sku": "AB1"}, {"sku": "x"}]}',
            "at /lines/1/sku: does not match the regex pattern ^[A-Z]{2}[0-9]+$",
        ),
        (b"[]", "array found, object expected"),
        (b'{"number": 7', "not JSON at byte 12"),
        (b"", "empty, which is not JSON"),
        (b"\xff", "not UTF-8 at byte 0"),
    ],
)
def test_value_that_does_not_fit_names_the_place(spark: SparkSession, value: bytes, reason: str) -> None:
    """The reason has the path to the first part that does not fit, and the rule of the schema."""
    assert problem(decoder(spark, ORDER), value) == reason


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}, b"2", b"1"),
        ({"$schema": "http://json-schema.org/draft-06/schema#", "const": 1}, b"1", b"2"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "if": {"type": "string"}, "then": {"maxLength": 1}},
         b"5", b'"ab"'),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "dependentRequired": {"a": ["b"]}}, b"{}", b'{"a":1}'),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [{"type": "null"}]}, b"[null]", b"[1]"),
        ({"format": "date-time"}, b'"2026-11-23T01:02:03Z"', b'"yesterday"'),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "unevaluatedProperties": False,
          "allOf": [{"properties": {"a": True}}]}, b'{"a":1}', b'{"b":1}'),
        ({"type": "integer"}, b"1.0", b"1.5"),
        ({"multipleOf": 0.01}, b"19.99", b"19.999"),
        ({"uniqueItems": True}, b"[1,[1]]", b"[1,1]"),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, b"null", b"1"),
        ({"not": {}}, b"", b"1"),
        (False, b"", b"1"),
    ],
    ids=[str(n) for n in range(13)],
)  # fmt: skip
def test_drafts(spark: SparkSession, schema: Any, good: bytes, bad: bytes) -> None:
    """A schema is read by the draft that its $schema names, and without one by draft 7, as registries do."""
    of = decoder(spark, schema)
    if good:
        assert bytes(of.decode(good)) == good
    assert problem(of, bad)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strng"}, "at /type: "),
        ({"properties": []}, "at /properties: array found, object expected"),
        ({"pattern": "("}, r"at /pattern: the regular expression \( cannot be read: Unclosed group"),
        ({"$schema": "https://example.com/mine"}, r"\$schema names https://example.com/mine, which is none of the drafts"),
        ({"$ref": "https://example.com/other.json"},
         "it refers to https://example.com/other.json, which is not there; nothing is fetched"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:1/a"}}}, "it refers to http://127.0.0.1:1/a, which is not there"),
        ({"$ref": "file:///etc/passwd"}, "it refers to file:///etc/passwd, which is not there"),
        ({"$ref": "classpath:draft-07/schema"}, "it refers to classpath:draft-07/schema, which is not there"),
        ({"$ref": "other.json"}, "it refers to other.json, which is not there"),
        ({"$ref": "#/definitions/none"}, "definitions/none cannot be resolved"),
        ({"properties": {"a": {"$ref": "#/definitions/none"}}}, "definitions/none cannot be resolved"),
        ({"$ref": "#"}, "it refers to itself without end"),
        ({"allOf": [{"$ref": "#/definitions/a"}], "definitions": {"a": {"anyOf": [{"$ref": "#"}]}}},
         "it refers to itself without end"),
    ],
    ids=[str(n) for n in range(13)],
)  # fmt: skip
def test_schema_that_cannot_be_used_names_the_field(spark: SparkSession, schema: Any, reason: str) -> None:
    """A schema that is wrong, or refers to what is not in it, is refused before the start. Nothing is fetched."""
    with pytest.raises(
        SqlError, match=r"spec\.value\.schemaFrom\.inline: no JSON Schema: .*(" + reason + ")"
    ):
        check_view(spark, View("string", "json", schema_source=source(schema)))


def test_references_that_multiply_are_refused(spark: SparkSession) -> None:
    """Thirty definitions that each refer twice to the next would take a billion steps."""
    each = {f"d{n}": {"allOf": [{"$ref": f"#/definitions/d{n + 1}"}] * 2} for n in range(30)}
    schema = {"$ref": "#/definitions/d0", "definitions": {**each, "d30": {}}}
    with pytest.raises(SqlError, match="its references take more than 1000000 steps to follow"):
        decoder(spark, schema)


def test_recursive_schema_checks_to_the_depth_of_json(spark: SparkSession) -> None:
    """A schema may refer to itself below a property."""
    of = decoder(spark, {"type": "object", "properties": {"next": {"$ref": "#"}}})
    assert of.decode(b'{"next":' * 99 + b"{}" + b"}" * 99)
    assert problem(of, b'{"next":' * 50 + b"1" + b"}" * 50).endswith("/next: integer found, object expected")
    assert problem(of, b'{"next":' * 100 + b"{}" + b"}" * 100) == "nested deeper than 100"


@pytest.mark.parametrize("pattern", ["^(a+)+$", r"^(?=(a+)+b)\w*$", "(a*)*b"])
def test_regular_expression_that_blows_up_is_bounded(spark: SparkSession, pattern: str) -> None:
    """An expression that would take longer than the sun makes the record bad after a bounded number of steps."""
    of = decoder(spark, {"pattern": pattern})
    since = time.monotonic()
    assert problem(of, b'"' + b"a" * 5000 + b'!"').startswith("it takes too many steps to check")
    assert time.monotonic() - since < 60


@pytest.mark.parametrize(
    "pattern", ["(((^){1000}){1000}){1000}x", "(){1000000}", "(?:(){400}){400}(?!)", "a{9}{9}{9}{9}{9}{9}"]
)
def test_regular_expression_that_repeats_too_much_is_refused(spark: SparkSession, pattern: str) -> None:
    """Repetitions of nothing look at no character, so they are bounded before the start."""
    with pytest.raises(
        SqlError, match=r"at /properties/a/pattern: the regular expression .* repeats more than 100000 parts"
    ):
        decoder(spark, {"properties": {"a": {"pattern": pattern}}})


def test_regular_expression_in_a_value_has_its_own_reason(spark: SparkSession) -> None:
    """A value of the format `regex` is refused with what is wrong in it, and the next value with its own reason."""
    of = decoder(spark, {"properties": {"a": {"format": "regex"}, "n": {"type": "integer"}}})
    assert problem(of, b'{"a": "("}') == "at /a: the regular expression ( cannot be read: Unclosed group"
    assert problem(of, b'{"n": "x"}') == "at /n: string found, integer expected"


def test_empty_repetitions_at_every_place_are_bounded(spark: SparkSession) -> None:
    """An expression that tries ninety thousand empty parts at each of a million places is not run."""
    of = decoder(spark, {"pattern": "(?:(){300}){300}(?!)"})
    since = time.monotonic()
    assert problem(of, b'"' + b"a" * 1_000_000 + b'"').startswith("it takes too many steps to check")
    assert time.monotonic() - since < 60


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T.{1,64}$", "2026-11-23T01:02:03Z"),
        (r"^(?=.{1,254}$)[^@\s]{1,64}@(?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,63}$", "ann@mail.example.com"),
        (r"^[[]{2}\{{1}[)}]{2}\(?$", "[[{)}("),
        (r"^\w{1,2000}$", "a" * 2000),
    ],
    ids=["date", "address", "brackets", "long"],
)
def test_ordinary_expressions_are_not_in_the_way(spark: SparkSession, pattern: str, value: str) -> None:
    """Counted repetitions as schemas have them stay far from the bounds."""
    assert decoder(spark, {"pattern": pattern}).decode(json.dumps(value).encode())


def test_long_values_have_steps_for_their_length(spark: SparkSession) -> None:
    """An array of two hundred thousand objects is checked whole."""
    item = {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/definitions/n"}}}
    of = decoder(spark, {"items": item, "definitions": {"n": {"type": "integer", "minimum": 1}}})
    many = b"[" + b",".join([b'{"a":1}'] * 200_000)
    assert len(of.decode(many + b"]")) == len(many) + 1
    assert problem(of, many + b',{"a":0}]') == "at /200000/a: must have a minimum value of 1"


def test_reasons_are_bounded(spark: SparkSession) -> None:
    """A name or an enumeration of a thousand characters is shortened in the reason."""
    long = "x" * 1000
    assert (
        len(problem(decoder(spark, {"additionalProperties": {"enum": [long]}}), f'{{"{long}":1}}'.encode()))
        < 310
    )


def test_sql_reads_values_as_text_or_by_their_columns(spark: SparkSession) -> None:
    """Beside the JSON Schema, `schema` gives SQL typed columns; without it a value is the text of its JSON."""
    values = (b'{"number": 7, "state": "OPEN"}', b'{"number": 0}', None)

    def of(expression: str, columns: str | None) -> View:
        sql = f"SELECT key, {expression} AS n FROM records"
        return View("string", "json", columns, sql, schema_source=source(ORDER))

    rows = transformed(spark, of("get_json_object(value, '$.number')", None), *values)
    assert [row.value and bytes(row.value) for row in rows] == [b'{"n":"7"}', values[1], None]
    assert [row.problem for row in rows] == [None, "value: at /number: must have a minimum value of 1", None]
    rows = transformed(spark, of("value.number + 1", "number INT, state STRING"), *values)
    assert bytes(rows[0].value) == b'{"n":8}'
    rows = transformed(spark, of("value.number", "number BOOLEAN"), *values)
    assert rows[0].problem == "value: not as spec.value.schema has it"


def test_writer_stores_values_and_reports_bad_records(spark: SparkSession, sink: RowSink) -> None:
    """Without SQL the writer stores the JSON of a record, and leaves the bytes of a bad one for its dead letter."""
    rows = write(
        spark,
        sink,
        [(0, b"a", b'{"number": 7}'), (1, b"b", b"{}"), (2, b"c", None)],
        value="bytes",
        decoder=decoder(spark, ORDER),
    )
    assert [row.kind for row in rows] == [row_frames.ROW, row_frames.BAD, row_frames.ROW]
    assert decode_row(rows[0].stored).value == b'{"number": 7}'
    assert re.search(rb"value: required property 'number' not found\{\}$", rows[1].stored)
    assert decode_row(rows[2].stored).value is None
