"""Test the JVM's decoder of Protobuf: its JSON for each type, schemas, later schemas, and bytes that no schema has.

The records come from Google's library, from the encoding written by hand, or from a random generator.
"""

from __future__ import annotations

import base64
import json
import math
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from queryable_app.config.value_schema import SchemaSource, parse_schema_source
from queryable_app.ingest.catalyst import SqlError
from queryable_app.ingest.decoded_records import View
from queryable_app.ingest.transform import check_view
from queryable_app.ingest.value_decoders import value_decoder
from tests.app.ingest.test_avro import transformed
from tests.support.decoders import decoded_or_bad, problem
from tests.support.protobuf import USER, descriptor_set, of_library, tagged, varint, zigzag

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"
WELL_KNOWN = "".join(
    f'import "google/protobuf/{name}.proto";\n'
    for name in ("timestamp", "duration", "struct", "wrappers", "any", "empty", "field_mask")
)
SLOW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


def proto(fields: str, others: str = "") -> str:
    return f'syntax = "proto3";\n{WELL_KNOWN}message R {{ {fields} }}\n{others}'


def source(text: str, message: str = "R") -> SchemaSource:
    return SchemaSource(text, "", "protobuf", message)


def decoder(spark: SparkSession, text: str, message: str = "R") -> Any:
    return value_decoder(spark, source(text, message), {})


def decoded(spark: SparkSession, text: str, record: bytes, message: str = "R") -> Any:
    return json.loads(bytes(decoder(spark, text, message).decode(record)))


CASES: list[tuple[str, str, str]] = [
    ("bool f = 1;", "f: true", "true"),
    ("int32 f = 1;", "f: 0", "0"),
    ("float f = 1;", "f: 1.5", "1.5"),
    ("int32 f = 1;", "f: -2147483648", "-2147483648"),
    ("uint32 f = 1;", "f: 4294967295", "4294967295"),
    ("fixed32 f = 1;", "f: 4294967295", "4294967295"),
    ("sint64 f = 1;", "f: -9223372036854775808", "-9223372036854775808"),
    ("int64 f = 1;", "f: 9007199254740993", "9007199254740993"),
    ("uint64 f = 1;", "f: 18446744073709551615", "18446744073709551615"),
    ("fixed64 f = 1;", "f: 18446744073709551615", "18446744073709551615"),
    ("float f = 1;", "f: 0.1", "0.1"),
    ("double f = 1;", "f: 1e-300", "1.0E-300"),
    ("double f = 1;", "f: nan", '"NaN"'),
    ("float f = 1;", "f: -inf", '"-Infinity"'),
    ("string f = 1;", r'f: "\303\244 \"\\\000"', '"ä \\"\\\\\\u0000"'),
    ("bytes f = 1;", r'f: "\000\377"', '"AP8="'),
    ("E f = 1;", "f: B", '"B"'),
    ("E f = 1;", "f: 7", "7"),
    ("repeated int32 f = 1;", "f: 1 f: 2", "[1,2]"),
    ("repeated int32 f = 1 [packed = false];", "f: 1 f: 2", "[1,2]"),
    ("map<string, int32> f = 1;", 'f {key: "a" value: 1}', '{"a":1}'),
    ("map<string, int32> f = 1;", 'f {key: "a" value: 1} f {key: "a" value: 2}', '{"a":2}'),
    ("map<uint64, M> f = 1;", "f {key: 18446744073709551615}", '{"18446744073709551615":{"n":0}}'),
    ("map<int32, bool> f = 1;", "f {key: 1 value: true}", '{"1":true}'),
    ("map<bool, string> f = 1;", "f {key: true}", '{"true":""}'),
    ("M f = 1;", "f {n: 1}", '{"n":1}'),
    ("google.protobuf.Timestamp f = 1;", "f {seconds: 1795406706 nanos: 7000}", '"2026-11-23T04:05:06.000007000Z"'),
    ("google.protobuf.Timestamp f = 1;", "f {seconds: -1}", '"1969-12-31T23:59:59.000000000Z"'),
    ("google.protobuf.Duration f = 1;", "f {seconds: 3 nanos: 500000}", '"3.000500s"'),
    ("google.protobuf.Duration f = 1;", "f {nanos: -1}", '"-0.000000001s"'),
    ("google.protobuf.Duration f = 1;", "f {seconds: 3}", '"3s"'),
    (
        "google.protobuf.Struct f = 1;",
        'f {fields {key: "a" value {list_value {values {number_value: 1.5} values {null_value: NULL_VALUE}}}}}',
        '{"a":[1.5,null]}',
    ),
    ("google.protobuf.Struct f = 1;", 'f {fields {key: "a" value {null_value: NULL_VALUE}}}', '{"a":null}'),
    ("google.protobuf.Value f = 1;", "f {bool_value: false}", "false"),
    ("google.protobuf.ListValue f = 1;", "f {}", "[]"),
    ("google.protobuf.Int64Value f = 1;", "f {value: 5}", "5"),
    ("google.protobuf.BytesValue f = 1;", 'f {value: "a"}', '"YQ=="'),
    ("google.protobuf.StringValue f = 1;", "f {}", '""'),
    ("google.protobuf.Empty f = 1;", "f {}", "{}"),
    ("google.protobuf.FieldMask f = 1;", 'f {paths: "a.b_c"}', '{"paths":["a.b_c"]}'),
    ("google.protobuf.Any f = 1;", r'f {type_url: "x/M" value: "\010\001"}', '{"@type":"x/M","value":"CAE="}'),
]  # fmt: skip


@pytest.mark.parametrize(("field", "written", "expected"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_json_of_each_type(spark: SparkSession, field: str, written: str, expected: str) -> None:
    """What Google's library writes becomes the JSON of the documented mapping, with .proto text and with a descriptor set."""
    text = proto(field, "message M { int32 n = 1; } enum E { A = 0; B = 1; }")
    record = of_library(spark, text, "R", written)
    for schema in (text, descriptor_set(spark, text)):
        assert bytes(decoder(spark, schema).decode(record)).decode() == f'{{"f":{expected}}}'


def test_fields_that_are_not_in_a_record(spark: SparkSession) -> None:
    """A field without presence has its default in the JSON; one with presence is there only if the record has it."""
    text = proto(
        "int32 a = 1; optional int32 b = 2; R c = 3; repeated int32 d = 4; map<string, R> e = 5; "
        "oneof one { string f = 6; int32 g = 7; } E h = 8; string i_j = 9; int32 k = 10 [json_name = 'K!'];",
        "enum E { A = 0; }",
    )
    empty = {"a": 0, "d": [], "e": {}, "h": "A", "iJ": "", "K!": 0}
    assert decoded(spark, text, b"") == empty
    assert decoded(spark, text, of_library(spark, text, "R", "b: 0 c {} g: 0 k: 1")) == {
        **empty, "b": 0, "c": empty, "g": 0, "K!": 1,
    }  # fmt: skip


def test_nested_names_keep_their_json_name(spark: SparkSession) -> None:
    """The option json_name holds in messages within messages."""
    text = proto("M f = 1; message M { int32 a_b = 1 [json_name = 'x']; }")
    assert decoded(spark, text, b"\x0a\x02\x08\x05") == {"f": {"x": 5}}


def test_example_of_the_page(spark: SparkSession) -> None:
    """The schema that docs/formats.md shows reads a record of the message that it names."""
    (block,) = re.findall(r"```yaml\n(value:\n  format: protobuf\n.*?)```", PAGE.read_text(), re.DOTALL)
    given = parse_schema_source(yaml.safe_load(block)["value"], "protobuf")
    record = tagged(1, 0, b"\x07") + tagged(2, 2, b"Bonn")
    assert json.loads(bytes(value_decoder(spark, given, {}).decode(record))) == {"id": 7, "city": "Bonn"}


def test_examples_of_the_page_are_tested(spark: SparkSession) -> None:
    """Every example in the table of types is the JSON of a case above."""
    rows = PAGE.read_text().partition("## The JSON of Protobuf")[2].partition("A parcel")[0].splitlines()
    shown = {row.split("|")[-2].strip().strip("`") for row in rows if row.startswith("|")}
    shown -= {"example", "---", "", '"weightKg"', '"SENT"'}
    written = {expected for _, _, expected in CASES}
    assert shown <= written


def test_recursive_message_is_decoded_to_a_depth(spark: SparkSession) -> None:
    """A recursive value is JSON as deep as JSON may be, and a deeper one is a bad record."""
    of = decoder(spark, proto("R next = 1;"))

    def nested(times: int) -> bytes:
        record = b""
        for _ in range(times):
            record = tagged(1, 2, record)
        return record

    assert bytes(of.decode(nested(99))).count(b"next") == 99
    assert problem(of, nested(100)) == "nested deeper than 100"
    assert re.search("too many levels of nesting", problem(of, nested(5000)))


PROTO2 = 'syntax = "proto2"; message R { required string f = 1; optional E e = 2; enum E { A = 1; } }'


@pytest.mark.parametrize(
    ("text", "record", "reason"),
    [
        (proto("string f = 1;"), b"\x0a\xff\xff\xff\xff\x07", "ended unexpectedly|input has been truncated"),
        (proto("string f = 1;"), b"\x0a\xff\xff\xff\xff\x0f", "negative size"),
        (proto("string f = 1;"), b"\x0a\x01", "ended unexpectedly"),
        (proto("string f = 1;"), b"\x0a\x01\xff", "invalid UTF-8"),
        (PROTO2, b"\x0a\x01\xff", "UTF-8"),
        (PROTO2, b"", "missing required fields: f"),
        (PROTO2, b"\x0a\x00\x10\x05", "the enum of R.e has no such number"),
        (proto("string f = 1;"), b"\x08\x01", "field 1 is not of the type of R.f"),
        (proto("R f = 1;"), b"\x0a\x02\x08\x01", "field 1 is not of the type of R.f"),
        (proto("string f = 1;"), b"\x00\x01", "invalid tag"),
        (proto("string f = 1;"), b"\x0f", "invalid"),
        (proto("string f = 1;"), b"\x0c", "end-group tag"),
        (proto("string f = 1;"), b"\x80" * 11, "malformed varint"),
        (proto("google.protobuf.Timestamp f = 1;"), b"\x0a\x02\x10\xff", "ended|truncated"),
        (proto("google.protobuf.Timestamp f = 1;"), b"\x0a\x06\x10" + varint(10**9), "Timestamp that is none"),
        (proto("google.protobuf.Duration f = 1;"), b"\x0a\x0d\x08\x01\x10" + varint(-1), "Duration that is none"),
        (proto("google.protobuf.Value f = 1;"), b"\x0a\x00", "a google.protobuf.Value without a value"),
        (proto("google.protobuf.Value f = 1;"), b"\x0a\x09\x11" + struct.pack("<d", math.nan), "Value of NaN"),
    ],
    ids=[str(n) for n in range(18)],
)  # fmt: skip
def test_bytes_that_the_schema_has_not_are_a_bad_record(
    spark: SparkSession, text: str, record: bytes, reason: str
) -> None:
    """A record that does not follow its schema is named as bad, whatever lengths its bytes announce."""
    assert re.search(reason, problem(decoder(spark, text), record))


def test_later_and_earlier_schemas(spark: SparkSession) -> None:
    """A field that the schema lacks is left out, at every level; one that the record lacks has its default; an integer that
    became wider, and one that became repeated, are read."""
    written = proto(
        "int32 id = 1; string added = 2; M m = 3; int32 one = 4;",
        "message M { int32 n = 1; int32 added = 2; }",
    )
    read = proto(
        "int64 id = 1; M m = 3; repeated int32 one = 4; bool later = 5;", "message M { int32 n = 1; }"
    )
    record = of_library(spark, written, "R", 'id: -5 added: "x" m {n: 1 added: 2} one: 7')
    assert decoded(spark, read, record) == {"id": -5, "m": {"n": 1}, "one": [7], "later": False}


@pytest.mark.parametrize(
    ("text", "message", "reason"),
    [
        ("message {", "", "Syntax error in schema.proto:1:9"),
        ("!!!!", "", "neither .proto text nor a descriptor set"),
        ("AAAA", "", "neither .proto text nor a descriptor set"),
        (USER, "", "it has 3 messages; name one in spec.value.schemaFrom.message: shop.User, shop.Order, shop.Order.Line"),
        (USER, "shop.Nothing", "it has no message shop.Nothing; name one"),
        ('syntax = "proto3"; import "a/b.proto"; message M {}', "", "it imports a/b.proto, which is not there"),
        ('syntax = "proto3"; message M { N n = 1; }', "", "unable to resolve N"),
        ('syntax = "proto3"; message M { int32 a_b = 1; int32 aB = 2; }', "", "share same JSON name 'aB'"),
        ('syntax = "proto3"; enum E { A = 0; }', "", "it has 0 messages"),
        ('syntax = "proto3";' + "message M {" * 3000 + "}" * 3000, "", "too many levels of nesting|nested too deeply"),
        ('syntax = "proto2"; message M { optional group G = 1 { } }', "", "'group' is not supported"),
    ],
    ids=[str(n) for n in range(11)],
)  # fmt: skip
def test_schema_that_cannot_be_used_names_the_field(
    spark: SparkSession, text: str, message: str, reason: str
) -> None:
    """A schema that is wrong is refused before the start, with what is wrong and what to write."""
    view = View("string", "protobuf", schema_source=source(text, message))
    with pytest.raises(SqlError, match=re.compile("no Protobuf schema: .*(" + reason + ")", re.DOTALL)):
        check_view(spark, view)


def test_two_fields_of_one_json_name_are_refused(spark: SparkSession) -> None:
    """A descriptor set may have what .proto text may not: two fields whose name in JSON is the same."""
    google: Any = spark._jvm.com.google.protobuf  # type: ignore[union-attr]
    made = getattr(google, "DescriptorProtos$FileDescriptorSet").newBuilder()
    field = 'field { name: "%s" number: %d label: LABEL_OPTIONAL type: TYPE_INT32 }'
    fields = field % ("a_b", 1) + field % ("aB", 2)
    google.TextFormat.merge(
        f'file {{ name: "x" syntax: "proto3" message_type {{ name: "M" {fields} }} }}', made
    )
    text = base64.b64encode(bytes(made.build().toByteArray())).decode()
    with pytest.raises(SqlError, match="M has two fields whose name in JSON is aB; give one a json_name"):
        decoder(spark, text, "")


def test_sql_reads_the_fields_of_the_schema(spark: SparkSession) -> None:
    """The user's SQL has a typed column for each field; what has no SQL type is the text of its JSON."""
    text = proto(
        "uint64 id = 1; google.protobuf.Timestamp at = 2; repeated M items = 3; map<string, int64> counts = 4; "
        "bytes raw = 5; R more = 6; google.protobuf.Struct any = 7; google.protobuf.DoubleValue ratio = 8; E kind = 9;",
        "message M { float price = 1; } enum E { A = 0; B = 1; }",
    )
    view = View(
        "string",
        "protobuf",
        sql="SELECT value.id + 1 AS n, year(value.at) AS y, value.items[0].price AS p, value.counts['a'] AS c, "
        "value.more AS m, value.raw AS r, value.any AS o, value.ratio AS q FROM records WHERE value.kind = 'B'",
        schema_source=source(text),
    )
    record = of_library(
        spark, text, "R",
        'id: 18446744073709551614 at {seconds: 1700000000} items {price: 1.5} counts {key: "a" value: 3} raw: "a" '
        'more {id: 9} any {fields {key: "x" value {string_value: "y"}}} ratio {value: nan} kind: B',
    )  # fmt: skip
    good, bad, gone = transformed(spark, view, record, b"\xff", None)
    value = json.loads(bytes(good.value))
    assert (json.loads(value.pop("m"))["id"], json.loads(value.pop("o"))) == (9, {"x": "y"})
    assert value == {"n": 18446744073709551615, "y": 2023, "p": 1.5, "c": 3, "r": "YQ==", "q": "NaN"}
    assert bad.problem.startswith("value: not Protobuf of R: ")
    assert (gone.problem, gone.value) == (None, None)


def test_columns_of_messages_that_multiply_are_bounded(spark: SparkSession) -> None:
    """Twenty messages that have the next one twice have a million columns; they become text at a depth."""
    text = "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}\n" for n in range(20))
    of = decoder(spark, f'syntax = "proto3";\n{text}message M20 {{ int32 n = 1; }}', "M0")
    assert len(of.columns()) < 200_000


Scalar = tuple[str, st.SearchStrategy[Any], Callable[[Any], tuple[int, bytes]], Callable[[Any], Any]]


def _same(value: Any) -> Any:
    return value


SCALARS: list[Scalar] = [
    ("int32", st.integers(-(2**31), 2**31 - 1), lambda v: (0, varint(v)), _same),
    ("sint32", st.integers(-(2**31), 2**31 - 1), lambda v: (0, varint(zigzag(v))), _same),
    ("uint32", st.integers(0, 2**32 - 1), lambda v: (0, varint(v)), _same),
    ("int64", st.integers(-(2**63), 2**63 - 1), lambda v: (0, varint(v)), _same),
    ("sint64", st.integers(-(2**63), 2**63 - 1), lambda v: (0, varint(zigzag(v))), _same),
    ("uint64", st.integers(0, 2**64 - 1), lambda v: (0, varint(v)), _same),
    ("fixed64", st.integers(0, 2**64 - 1), lambda v: (1, struct.pack("<Q", v)), _same),
    ("sfixed32", st.integers(-(2**31), 2**31 - 1), lambda v: (5, struct.pack("<i", v)), _same),
    ("bool", st.booleans(), lambda v: (0, varint(int(v))), _same),
    ("double", st.floats(allow_nan=False, allow_infinity=False), lambda v: (1, struct.pack("<d", v)), _same),
    ("string", st.text(st.characters(codec="utf-8"), max_size=20), lambda v: (2, v.encode()), _same),
    ("bytes", st.binary(max_size=20), lambda v: (2, v), lambda v: base64.b64encode(v).decode()),
]


@st.composite
def messages(draw: st.DrawFn, depth: int = 0) -> tuple[str, bytes, dict[str, Any]]:
    """Draw the body of a message, a record of it, and the JSON of the record."""
    declared, record = [], b""
    expected: dict[str, Any] = {}
    for number in range(1, draw(st.integers(1, 4)) + 1):
        name = f"f{number}"
        if depth < 2 and draw(st.booleans()):
            body, inner, value = draw(messages(depth + 1))
            declared.append(f"message M{number} {{ {body} }} M{number} {name} = {number};")
            record += tagged(number, 2, inner)
            expected[name] = value
            continue
        type_, values, encode, shown = draw(st.sampled_from(SCALARS))
        if draw(st.booleans()):
            items = draw(st.lists(values, max_size=3))
            declared.append(f"repeated {type_} {name} = {number} [packed = false];")
            record += b"".join(tagged(number, *encode(item)) for item in items)
            expected[name] = [shown(item) for item in items]
        else:
            value = draw(values)
            declared.append(f"optional {type_} {name} = {number};")
            record += tagged(number, *encode(value))
            expected[name] = shown(value)
    return " ".join(declared), record, expected


@SLOW
@given(made=messages())
def test_random_schemas_and_values(spark: SparkSession, made: tuple[str, bytes, dict[str, Any]]) -> None:
    """A record of any schema, written by the documented encoding, becomes the JSON of its values."""
    body, record, expected = made
    text = f'syntax = "proto3"; message R {{ {body} }}'
    assert decoded(spark, text, record) == expected


@SLOW
@given(made=messages(), data=st.data())
def test_random_bytes_end_no_decoder(
    spark: SparkSession, made: tuple[str, bytes, dict[str, Any]], data: st.DataObject
) -> None:
    """Every sequence of bytes, also one made of a good record, is JSON that parses or a bad record with a reason."""
    body, record, _ = made
    of = decoder(spark, f'syntax = "proto3"; message R {{ {body} }}')
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    for _ in range(10):
        spoilt = bytearray(record if chance.random() < 0.7 else chance.randbytes(chance.randrange(60)))
        for _ in range(chance.randrange(3) if spoilt else 0):
            spoilt[chance.randrange(len(spoilt))] = chance.choice(
                [0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)]
            )
        cut = bytes(spoilt[: chance.randrange(len(spoilt) + 1)] if chance.random() < 0.3 else spoilt)
        if (shown := decoded_or_bad(of, cut)) is not None:
            json.loads(shown)
