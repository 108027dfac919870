"""Test JSON as Avro: what a schema refuses, unions, defaults, and times. The JVM's tests compare bytes with Avro's library."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queryable_app.config.avro_schema import SchemaTextError, parse_avro_schema
from queryable_app.wire.avro import AvroMismatch, avro_bytes, avro_json


def encoded(type_: Any, value_json: str) -> bytes:
    return avro_bytes(parse_avro_schema(json.dumps(type_)), value_json.encode())


RECORD = {
    "type": "record",
    "name": "a.R",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "next", "type": ["null", "R"], "default": None},
        {"name": "raw", "type": "bytes", "default": "ÿ"},
    ],
}


@pytest.mark.parametrize(
    ("type_", "value_json", "reason"),
    [
        ("int", "2147483648", "2147483648 is no int"),
        ("int", "true", "True is no int"),
        ("long", "1.0", "is no long"),
        ("float", "1e39", "is no float"),
        ("double", '"nan"', "is no double"),
        ("double", "1e999", "is no double"),
        ("string", "5", "5 is no string"),
        ("string", '"\\ud800"', "half of a surrogate pair"),
        ("bytes", '"?"', "is not base64"),
        ({"type": "fixed", "name": "F", "size": 2}, '"AA=="', "has 1 bytes, and F has 2"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, '"B"', "is no symbol of E"),
        ({"type": "array", "items": "int"}, "{}", "is no array"),
        ({"type": "map", "values": "int"}, "[]", "is no map"),
        (["null", "int"], '"a"', "is no int"),
        (RECORD, "{}", "lacks the member n"),
        (RECORD, '{"n":1,"m":2}', "has the member 'm', and a.R has no such field"),
        (RECORD, '{"n":1,"next":{"n":"x"}}', "next: n: 'x' is no int"),
        ({"type": "int", "logicalType": "date"}, '"2026-02-29"', "is no date"),
        ({"type": "int", "logicalType": "time-millis"}, '"24:00:00"', "is no time-millis"),
        ({"type": "long", "logicalType": "timestamp-millis"}, '"2026-01-01T00:00:00"', "is no timestamp-millis"),
        ({"type": "long", "logicalType": "timestamp-millis"}, '"2026-01-01T00:00:00.0001Z"', "is no timestamp-millis"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, "1.25", "more than 1 decimals"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, "100", "more than 3 digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, "1e999999999", "is no decimal"),
        ("int", "{", "is not JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_value_that_the_schema_cannot_have_is_refused(type_: Any, value_json: str, reason: str) -> None:
    """The message names the member and the value."""
    with pytest.raises(AvroMismatch) as refused:
        encoded(type_, value_json)
    assert reason in str(refused.value)


def test_field_with_a_default_may_be_left_out() -> None:
    """A default of bytes is in characters, as Avro has it, and that of a union is of its first branch."""
    assert encoded(RECORD, '{"n":1}') == b"\x02\x00\x02\xff"


def test_union_takes_the_first_branch_that_fits() -> None:
    """A number fits `int` before `long`; a text that is no base64 is no `bytes`."""
    types = ["null", "int", "long", "bytes", "string"]
    schema = parse_avro_schema(json.dumps(types))
    for value, shown in (
        ("5", b'{"int":5}'),
        ("5000000000", b'{"long":5000000000}'),
        ('"a b"', b'{"string":"a b"}'),
    ):
        assert avro_json(schema, value.encode()) == shown


def test_unions_within_unions_take_bounded_time() -> None:
    """A value that fits no branch at any depth is refused, and does not take time that doubles with each level."""
    other = {"type": "record", "name": "B", "fields": [{"name": "x", "type": ["null", "A", "B"]}]}
    schema = {"type": "record", "name": "A", "fields": [{"name": "x", "type": ["null", other, "A"]}]}
    with pytest.raises(AvroMismatch, match="too many unions"):
        encoded(schema, '{"x":' * 60 + "5" + "}" * 60)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "it is not JSON"),
        ("[" * 5000, "it is nested too deeply|it is not JSON"),
        ('"unknown"', "'unknown' is no type"),
        ("[]", "a union has no branches"),
        ('{"type": "record", "name": "R"}', "R has no fields"),
        ('{"type": "record", "fields": []}', "has no name"),
        ('{"type": "fixed", "name": "F", "size": -1}', "F has no size"),
        ('{"type": "enum", "name": "E", "symbols": []}', "E.symbols is no list of names"),
        ('{"type": "array"}', "null is no type"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a"}]}',
            "a field of R lacks its name or its type",
        ),
    ],
)
def test_text_that_is_no_schema_is_refused(text: str, reason: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(SchemaTextError, match=reason):
        parse_avro_schema(text)
