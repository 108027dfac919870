"""Test how the JVM's decoder asks a schema registry: by id, with references, and when the registry answers wrongly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from queryable_app.config.avro_schema import parse_avro_schema
from queryable_app.config.value_schema import BASIC, SchemaSource
from queryable_app.ingest.value_decoders import value_decoder
from queryable_app.wire.avro import avro_bytes
from tests.app.ingest.test_avro import SLOW, typed
from tests.support.decoders import decoded_or_bad
from tests.support.protobuf import USER, descriptor_set, indexed, tagged
from tests.support.schema_registry import V1, V2, Registry, framed, schema_registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with schema_registry() as opened:
        yield opened


def decoder(spark: SparkSession, registry: Registry, text: str = "", **settings: str) -> Any:
    return value_decoder(spark, SchemaSource(text, registry.url), settings)


def decoded(of: Any, record: bytes) -> Any:
    return json.loads(bytes(of.decode(record)))


def failure(of: Any, record: bytes) -> tuple[str, str]:
    """Return the class and the message of the exception."""
    with pytest.raises(Py4JJavaError) as raised:
        of.decode(record)
    cause = raised.value.java_exception
    return str(cause.getClass().getSimpleName()), str(cause.getMessage())


def test_records_are_read_as_they_were_written(spark: SparkSession, registry: Registry) -> None:
    """Without a schema in the resource, each record has the fields of its own schema, which is asked for once."""
    first, second = registry.register("u-value", V1), registry.register("u-value", V2)
    of = decoder(spark, registry)
    for _ in range(3):
        assert decoded(of, framed(first, b"\x0e\x02a")) == {"id": 7, "old": "a"}
        assert decoded(of, framed(second, b"\x10\x02b")) == {"id": 8, "city": "b"}
    assert decoded(decoder(spark, registry), framed(first, b"\x0e\x02a")) == {"id": 7, "old": "a"}
    assert registry.requests == [f"/schemas/ids/{first}", f"/schemas/ids/{second}"]


def test_readers_schema_resolves_every_record(spark: SparkSession, registry: Registry) -> None:
    """With a schema in the resource, Avro's resolution applies: promotion, a default, a field that is left out; and a record
    that it cannot resolve is bad."""
    first, second = registry.register("u-value", V1), registry.register("u-value", V2)
    other = registry.register("u-value", {**V1, "fields": [{"name": "id", "type": "string"}]})
    of = decoder(spark, registry, json.dumps(V2))
    assert decoded(of, framed(first, b"\x0e\x02a")) == {"id": 7, "city": "none"}
    assert decoded(of, framed(second, b"\x10\x02b")) == {"id": 8, "city": "b"}
    assert failure(of, framed(other, b"\x02x")) == ("Undecodable", "Found string, expecting long")
    assert decoded(of, framed(first, b"\x0e\x02a")) == {"id": 7, "city": "none"}


def test_references_are_fetched(spark: SparkSession, registry: Registry) -> None:
    """A schema may refer to types of other subjects, and those to others again, one of them twice."""
    registry.register("zip code", {"type": "fixed", "name": "a.Zip", "size": 1})
    zip_, city = ("a.Zip", "zip code", 1), ("a.City", "city", 1)
    fields = [{"name": "zip", "type": "a.Zip"}]
    registry.register("city", {"type": "record", "name": "a.City", "fields": fields}, [zip_])
    fields = [{"name": "city", "type": "a.City"}, {"name": "zip", "type": "a.Zip"}]
    user = registry.register("user", {"type": "record", "name": "User", "fields": fields}, [zip_, city])
    assert decoded(decoder(spark, registry), framed(user, b"ab")) == {"city": {"zip": "YQ=="}, "zip": "Yg=="}
    missing = registry.register("user", '"a.Zip"', [("a.Zip", "nowhere", 1)])
    assert (
        "refers to a.Zip, which the registry does not have"
        in failure(decoder(spark, registry), framed(missing, b"a"))[1]
    )


def proto(spark: SparkSession, registry: Registry, text: str = "", message: str = "") -> Any:
    return value_decoder(spark, SchemaSource(text, registry.url, "protobuf", message), {})


LINE = tagged(1, 0, b"\x05")
ANN = tagged(1, 0, b"\x07") + tagged(2, 2, b"ann")


def test_protobuf_records_name_their_message(spark: SparkSession, registry: Registry) -> None:
    """The indexes after the id say which message of the schema a record is, also one within another."""
    id_ = registry.register("shop", USER, type_="PROTOBUF")
    of = proto(spark, registry)
    assert decoded(of, indexed(id_, [0], ANN)) == {"id": 7, "name": "ann", "city": ""}
    assert decoded(of, framed(id_, b"\x02\x00" + ANN)) == {
        "id": 7,
        "name": "ann",
        "city": "",
    }  # the long form
    assert decoded(of, indexed(id_, [1], tagged(1, 2, b"n"))) == {"number": "n"}
    assert decoded(of, indexed(id_, [1, 0], LINE)) == {"count": 5}
    assert registry.requests == [f"/schemas/ids/{id_}"]


def test_protobuf_references_are_the_imports(spark: SparkSession, registry: Registry) -> None:
    """A schema imports those that it refers to, by name; the well-known ones need no reference."""
    stamp = 'import "google/protobuf/timestamp.proto"; message Stamp { google.protobuf.Timestamp at = 1; }'
    registry.register("stamp", f'syntax = "proto3"; package a; {stamp}', type_="PROTOBUF")
    body = 'import "a/stamp.proto"; message M { a.Stamp stamp = 1; }'
    id_ = registry.register(
        "m", f'syntax = "proto3"; {body}', [("a/stamp.proto", "stamp", 1)], type_="PROTOBUF"
    )
    record = tagged(1, 2, tagged(1, 2, tagged(1, 0, b"\x01")))
    assert decoded(proto(spark, registry), indexed(id_, [0], record)) == {
        "stamp": {"at": "1970-01-01T00:00:01.000000000Z"}
    }
    alone = registry.register("n", f'syntax = "proto3"; {body}', type_="PROTOBUF")
    assert (
        "it imports a/stamp.proto, which is not there"
        in failure(proto(spark, registry), indexed(alone, [0], record))[1]
    )


def test_protobuf_message_of_the_resource_reads_every_record(spark: SparkSession, registry: Registry) -> None:
    """With a schema in the resource, the record's own fields are matched by number; a record of another message is bad."""
    id_ = registry.register("shop", USER, type_="PROTOBUF")
    mine = 'syntax = "proto3"; package shop; message User { int64 id = 1; bool vip = 9; }'
    for text in (mine, descriptor_set(spark, mine)):
        of = proto(spark, registry, text)
        assert decoded(of, indexed(id_, [0], ANN)) == {"id": 7, "vip": False}
        assert failure(of, indexed(id_, [1], b"")) == (
            "Undecodable",
            "its message is shop.Order, and not shop.User",
        )


def test_protobuf_records_that_the_registry_contradicts_are_bad(
    spark: SparkSession, registry: Registry
) -> None:
    """Wrong indexes, another message than the one named, and a field that the writer's own schema lacks are faults of the
    record."""
    id_ = registry.register("shop", USER, type_="PROTOBUF")
    avro = registry.register("avro", V1)
    for of, record, reason in (
        (proto(spark, registry), indexed(id_, [2], b""), "its schema has no message with the index 2"),
        (proto(spark, registry), indexed(id_, [-1], b""), "its schema has no message with the index -1"),
        (proto(spark, registry), framed(id_, b""), "it has no indexes of a message after the id of its schema"),
        (proto(spark, registry), framed(id_, b"\xff" * 5), "it has no indexes of a message"),
        (proto(spark, registry), framed(id_, b"\xfe\xff\x03"), "it has no indexes of a message"),
        (proto(spark, registry), indexed(id_, [0], b"\x50\x01"), "it has a field 10, and shop.User has none"),
        (proto(spark, registry), indexed(avro, [0], b""), f"schema {avro} of the registry is of the type AVRO, and not PROTOBUF"),
        (proto(spark, registry, message="shop.User"), indexed(id_, [1], b""), "its message is shop.Order, and not shop.User"),
    ):  # fmt: skip
        name, message = failure(of, record)
        assert (name, message.startswith(reason)) == ("Undecodable", True), message


def checked(spark: SparkSession, registry: Registry, text: str = "") -> Any:
    return value_decoder(spark, SchemaSource(text, registry.url, "json"), {})


def test_json_records_are_checked_against_their_own_schema(spark: SparkSession, registry: Registry) -> None:
    """The document behind the id is stored as it is, if it fits the schema of that id."""
    of = checked(spark, registry)
    first = registry.register("n", {"required": ["a"]}, type_="JSON")
    second = registry.register("n", {"required": ["b"]}, type_="JSON")
    for _ in range(2):
        assert bytes(of.decode(framed(first, b' {"a":1.0}'))) == b' {"a":1.0}'
        assert failure(of, framed(second, b'{"a":1}')) == ("Undecodable", "required property 'b' not found")
    assert failure(of, b'{"a":1}')[1].startswith("it does not begin with a zero byte and the id of a schema")
    assert failure(of, framed(first, b""))[1] == "empty, which is not JSON"
    avro = registry.register("avro", V1)
    said = f"schema {avro} of the registry is of the type AVRO, and not JSON"
    assert failure(of, framed(avro, b"{}")) == ("Undecodable", said)
    assert registry.requests == [f"/schemas/ids/{id_}" for id_ in (first, second, avro)]


def test_json_schema_of_the_resource_checks_every_record(spark: SparkSession, registry: Registry) -> None:
    """With a schema in the resource, the id of a record is passed over, and the registry is not asked."""
    of = checked(spark, registry, '{"required": ["b"]}')
    assert bytes(of.decode(framed(77, b'{"b":1}'))) == b'{"b":1}'
    assert failure(of, framed(77, b"{}")) == ("Undecodable", "required property 'b' not found")
    assert registry.requests == []


def test_json_schema_refers_to_others_of_the_registry(spark: SparkSession, registry: Registry) -> None:
    """A $ref is resolved among the references, by its text or relative to the schema's own $id; nothing else is fetched."""
    of = checked(spark, registry)
    registry.register("zip", {"type": "string", "maxLength": 5}, type_="JSON")
    registry.register(
        "city", {"properties": {"zip": {"$ref": "zip.json"}}}, [("zip.json", "zip", 1)], type_="JSON"
    )
    city = ("city.json", "city", 1)
    user = {"properties": {"home": {"$ref": "city.json"}, "work": {"$ref": "city.json#/properties/zip"}}}
    for schema in (user, {**user, "$id": "https://example.com/schemas/user.json"}):
        id_ = registry.register("user", schema, [city], type_="JSON")
        assert of.decode(framed(id_, b'{"home":{"zip":"53111"},"work":"5"}'))
        wrong = failure(of, framed(id_, b'{"home":{"zip":"5311100"}}'))
        assert wrong == ("Undecodable", "at /home/zip: must be at most 5 characters long")
        assert failure(of, framed(id_, b'{"work":7}'))[1] == "at /work: integer found, string expected"
    alone = registry.register("alone", {"$ref": f"{registry.url}/schemas/ids/1"}, type_="JSON")
    asked = len(registry.requests)
    for _ in range(2):
        name, said = failure(of, framed(alone, b"{}"))
        assert (name, "which is not there; nothing is fetched" in said) == ("Undecodable", True)
    assert registry.requests[asked:] == [f"/schemas/ids/{alone}"]


def test_unknown_schema_and_wrong_frame_are_bad_records(spark: SparkSession, registry: Registry) -> None:
    """An id that the registry does not have, a schema of another type and bytes without an id are faults of the record."""
    of = decoder(spark, registry)
    proto = registry.register("p", 'syntax = "proto3";', type_="PROTOBUF")
    broken = registry.register("q", '{"type": "recorb"}')
    for record, reason in (
        (framed(4_000_000_000, b""), "its schema has the id 4000000000, which the registry does not have"),
        (framed(proto, b""), f"schema {proto} of the registry is of the type PROTOBUF, and not AVRO"),
        (framed(broken, b""), f"schema {broken} of the registry cannot be read"),
        (b"\0\0\0\0", "it does not begin with a zero byte and the id of a schema"),
        (b"{}...", "it does not begin with a zero byte and the id of a schema"),
    ):
        name, message = failure(of, record)
        assert name == "Undecodable"
        assert message.startswith(reason)
    asked = len(registry.requests)
    failure(of, framed(4_000_000_000, b""))
    assert len(registry.requests) == asked


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("html", "it answers 200 without JSON: check the address"),
        ("html 404", "it answers 404 without JSON: check the address"),
        ("error", "it answers 500: check the address"),
        ("error without JSON", "it answers 503 without JSON: check the address"),
        ("busy", "it answers 429: check the address"),
        ("redirect", "it answers 302: check the address"),
        ("other JSON", "it answers 200: check the address"),
        ("number", "it answers 200: check the address"),
        ("empty", "it answers 200: check the address"),
        ("other 404", "it answers 404: check the address"),
        ("deep", "it answers 200 without JSON: check the address"),
        ("not UTF-8", "it answers 200 without JSON: check the address"),
        ("cut", "it answers 200 without JSON: check the address"),
        ("hangs", "Read timed out"),
        ("drips", "its answer takes longer than 500 ms"),
        ("endless", "its answer has more than 1048576 bytes"),
        ("away", "Unexpected end of file from server"),
    ],
)
def test_registry_that_answers_wrongly_is_no_fault_of_the_record(
    spark: SparkSession, registry: Registry, broken: str, reason: str
) -> None:
    """Ingest stops with an I/O error that names the registry, which is transient, and decodes the record when it can."""
    schema_id = registry.register("u-value", V1)
    registry.broken = broken
    ours: Any = spark._jvm.io.queryabletopics  # type: ignore[union-attr]
    of = ours.AvroDecoder(None, ours.SchemaRegistry(registry.url, "", 300, 500))
    assert failure(of, framed(schema_id, b"\x0e\x02a")) == (
        "IOException",
        f"the schema registry {registry.url} gives no schema: {reason}",
    )
    registry.broken = ""
    assert decoded(of, framed(schema_id, b"\x0e\x02a")) == {"id": 7, "old": "a"}


def test_content_type_of_an_answer_is_not_looked_at(spark: SparkSession, registry: Registry) -> None:
    """A proxy that calls JSON text changes nothing."""
    schema_id = registry.register("u-value", V1)
    registry.broken = "plain"
    assert decoded(decoder(spark, registry), framed(schema_id, b"\x0e\x02a")) == {"id": 7, "old": "a"}


def test_recursive_schema_of_the_registry_is_resolved(spark: SparkSession, registry: Registry) -> None:
    """A list whose schema refers to itself is read with a newer version of that schema, to the depth of JSON."""

    def of(*fields: Any) -> Any:
        next_ = {"name": "next", "type": ["null", "L"], "default": None}
        return {"type": "record", "name": "L", "fields": [*fields, next_]}

    number = {"name": "n", "type": "int"}
    schema_id = registry.register("list", of(number))
    reader = of({**number, "type": "long"}, {"name": "added", "type": "string", "default": "?"})
    for text in ("", json.dumps(reader)):
        deep = decoder(spark, registry, text)
        assert decoded(deep, framed(schema_id, b"\x02\x02\x04\x00"))["next"]["n"] == 2
        assert failure(deep, framed(schema_id, b"\x02\x02" * 10_000)) == (
            "Undecodable",
            "nested deeper than 100",
        )


@SLOW
@given(written=typed(), read=typed(), other=st.binary(max_size=40))
def test_schemas_that_do_not_resolve_make_bad_records(
    spark: SparkSession, registry: Registry, written: tuple[Any, Any], read: tuple[Any, Any], other: bytes
) -> None:
    """A reader's schema of any other shape gives JSON, or a bad record with a reason, for good bytes and for random ones."""
    text = json.dumps(written[0])
    schema_id = registry.register("any", text)
    of = decoder(spark, registry, json.dumps(read[0]))
    for record in (avro_bytes(parse_avro_schema(text), json.dumps(written[1]).encode()), other):
        if (shown := decoded_or_bad(of, framed(schema_id, record))) is not None:
            json.loads(shown)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ('{"type": "array", "items": ' * 5000 + '"int"' + "}" * 5000, "cannot be read: "),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Missing"}]}', "cannot be read: "),
        ("<avro>", "cannot be read: "),
        ("", "cannot be read: "),
        ('"Unknown"', "cannot be read: "),
    ],
    ids=["deep", "undefined", "no JSON", "empty", "unknown type"],
)
def test_schema_that_avro_cannot_read_makes_records_bad(
    spark: SparkSession, registry: Registry, schema: str, reason: str
) -> None:
    """A schema that the registry should not have is a fault of the records that name it, and stops nothing."""
    schema_id = registry.register("u-value", schema)
    name, message = failure(decoder(spark, registry), framed(schema_id, b"\x02"))
    assert (name, f"schema {schema_id} of the registry {reason}" in message) == ("Undecodable", True), message


def test_references_are_bounded(spark: SparkSession, registry: Registry) -> None:
    """References that lead back to where they began, and too many of them, end."""
    loop = [{"name": "x", "type": "int"}]
    first = registry.register("a", {"type": "record", "name": "A", "fields": loop}, [("B", "b", 1)])
    registry.register("b", {"type": "record", "name": "B", "fields": loop}, [("A", "a", 1)])
    assert decoded(decoder(spark, registry), framed(first, b"\x02")) == {"x": 1}
    for n in range(102):
        registry.register(f"s{n}", '"int"', [(f"s{n + 1}", f"s{n + 1}", 1)])
    long = registry.register("long", '"int"', [("s0", "s0", 1)])
    assert failure(decoder(spark, registry), framed(long, b"\x02")) == (
        "Undecodable",
        "its schema refers to more than 100 others",
    )


def test_credentials_are_sent_and_never_shown(spark: SparkSession, registry: Registry) -> None:
    """The registry gets the user of the settings; a refusal names the setting and not its value."""
    registry.user_info = "ann:secret"
    schema_id = registry.register("u-value", V1)
    name, message = failure(decoder(spark, registry, **{BASIC: "ann:wrong"}), framed(schema_id, b"\x0e\x02a"))
    assert (name, BASIC in message, "wrong" in message) == ("IOException", True, False)
    assert (
        decoded(decoder(spark, registry, **{BASIC: "ann:secret"}), framed(schema_id, b"\x0e\x02a"))["id"] == 7
    )
