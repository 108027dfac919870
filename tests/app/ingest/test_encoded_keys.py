"""Test the JVM's reading of Avro and Protobuf keys: the same keys as a node's, in the writer and in SQL."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, get_args

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from queryable_app.config.key_schema import PROTOBUF_TYPES, KeySchema, TypedKey, parse_key_schema
from queryable_app.config.protobuf_key import ProtobufField
from queryable_app.errors import Failure
from queryable_app.ingest.decoded_records import View, key_encoding
from queryable_app.ingest.transform import project
from queryable_app.wire import row_frames
from queryable_app.wire.encoded_keys import EncodedKeyCodec, key_codec_of
from tests.app.ingest.test_writer import sink as sink
from tests.app.ingest.test_writer import write
from tests.support.decoders import decoded_or_bad
from tests.support.fake_serve import RowSink
from tests.support.protobuf import indexed, of_library
from tests.support.schema_registry import framed

SCHEMAS = {
    **{f"avro {type_}": KeySchema(type_) for type_ in get_args(TypedKey)},
    **{
        f"protobuf {kind}{' always' * always}": KeySchema(type_, field=ProtobufField(kind, 20, always))
        for kind, type_ in PROTOBUF_TYPES.items()
        for always in (False, True)
    },
}


def decoder(spark: SparkSession, schema: KeySchema) -> Any:
    jvm: Any = spark._jvm
    return jvm.io.queryabletopics.KeyDecoders.of(key_encoding(schema))


def spoilt(chance: Random, keys: Sequence[bytes]) -> bytes:
    """Return a key with some bytes changed or cut, or random bytes."""
    if chance.random() < 0.2:
        return chance.randbytes(chance.randrange(14))
    raw = bytearray(chance.choice(keys))
    for _ in range(chance.randrange(3) if raw else 0):
        raw[chance.randrange(len(raw))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    return bytes(raw[: chance.randrange(len(raw) + 1)] if chance.random() < 0.3 else raw)


@pytest.mark.parametrize("schema_id", [None, 7])
@pytest.mark.parametrize("name", SCHEMAS)
def test_jvm_and_node_agree_on_every_key(spark: SparkSession, name: str, schema_id: int | None) -> None:
    """A record key that the JVM stores is one that a node finds, with the same bytes; all others are bad on both sides."""
    schema = replace(SCHEMAS[name], schema_id=schema_id)
    of, codec = decoder(spark, schema), key_codec_of("avro", schema)
    assert isinstance(codec, EncodedKeyCodec)
    texts = (
        ["0", "7", "-1", "2147483647", "-2147483648"]
        if schema.type not in ("string", "bytes")
        else ["", "a", "grün" * 40]
    )
    keys, chance, good = [codec.from_text(text) for text in texts], Random(name), 0
    for raw in [*keys, *(spoilt(chance, keys) for _ in range(300))]:
        try:
            stored = codec.inner.to_record(codec.to_disk(raw))
            if schema.type == "string":
                stored.decode()
        except (Failure, UnicodeDecodeError):
            assert decoded_or_bad(of, raw) is None
        else:
            assert decoded_or_bad(of, raw) == stored
            good += 1
    assert good >= len(keys)


def test_writer_stores_keys_in_order_and_reports_bad_ones(spark: SparkSession, sink: RowSink) -> None:
    """A stored key is that of the key format with the same name; a bad row keeps the bytes of its record key."""
    rows = write(
        spark,
        sink,
        [(0, framed(7, b"\x0d"), b"v"), (1, framed(8, b"\x0d"), b"v"), (2, framed(7, b"\x80\x00"), None)],
        key="long",
        key_decoder=decoder(spark, KeySchema("long", 7)),
    )
    assert [row.kind for row in rows] == [row_frames.ROW, row_frames.BAD, row_frames.BAD]
    assert rows[0].disk_key == struct.pack(">Q", 2**63 - 7)
    assert rows[1].disk_key == framed(8, b"\x0d")
    assert b"key: its schema has the id 8, and not 7 of spec.key.schemaFrom.schemaId" in rows[1].stored
    assert b"key: no Avro long that a producer writes: it has a number with needless bytes" in rows[2].stored


def test_keys_of_googles_library_are_read(spark: SparkSession) -> None:
    """A key that Google's serializer writes is the number that a node finds."""
    text = 'syntax = "proto3"; package shop; message Key { sint64 id = 3; }'
    schema = parse_key_schema({"format": "protobuf", "schemaFrom": {"inline": text, "schemaId": 7}})
    assert schema is not None
    of, codec = decoder(spark, schema), key_codec_of("protobuf", schema)
    for number in (0, 1, -1, 300, -(2**63)):
        written = indexed(7, [0], of_library(spark, text, "Key", f"id: {number}"))
        assert codec.from_json(number) == written
        assert bytes(of.decode(written)) == struct.pack(">q", number)


def test_protobuf_key_that_no_serializer_writes_is_bad(spark: SparkSession) -> None:
    """The reason of a bad key says what it lacks."""
    of = decoder(spark, KeySchema("int", 7, ProtobufField("int32", 1)))
    for raw, said in (
        (framed(8, b"\0\x08\1"), "its schema has the id 8, and not 7"),
        (framed(7, b""), "it is not the first message of its schema"),
        (framed(7, b"\2\x08\1"), "it is not the first message of its schema"),
        (framed(7, b"\0\x10\1"), "it does not begin with field 1, int32"),
        (framed(7, b"\0\x08\0"), "not the bytes that a serializer writes for a message with field 1, int32"),
    ):
        with pytest.raises(Py4JJavaError, match=said):
            of.decode(raw)


@pytest.mark.parametrize(
    ("schema", "record_keys"),
    [
        (KeySchema("long", 7), [framed(7, b"\x0d"), framed(7, b"\x63"), b"\x0d"]),
        (KeySchema("long"), [b"\x0d", b"\x63", b"\x0d\0"]),
        (
            KeySchema("long", field=ProtobufField("sint64", 1)),
            [b"\x08\x0d", b"\x08\x63", b"\x0d"],
        ),
    ],
    ids=["with an id", "bare", "Protobuf"],
)
def test_sql_reads_typed_keys(spark: SparkSession, schema: KeySchema, record_keys: list[bytes]) -> None:
    """The column `key` has the type of the schema, and a row keeps the bytes of its record key."""
    view = View(
        "avro",
        "string",
        sql="SELECT key, key + 1 AS n, value AS v FROM records WHERE key > -10",
        key_schema=schema,
    )
    source = spark.createDataFrame(
        [(0, offset, None, key, b"a") for offset, key in enumerate([*record_keys, None])],
        "partition int, offset bigint, timestamp timestamp, key binary, value binary",
    )
    rows = project(spark, source, view).frame.collect()
    assert bytes(rows[0].key) == record_keys[0]
    assert bytes(rows[0].value) == b'{"n":-6,"v":"a"}'
    assert [row.dropped for row in rows[:2]] == [False, True]
    assert rows[2].problem.startswith("key: ")
