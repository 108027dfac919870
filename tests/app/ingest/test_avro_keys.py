"""Test the JVM's reading of Avro keys: the same keys as a node's, in the writer and in SQL."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Any, get_args

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from queryable_app.config.key_schema import AvroKeyType, KeySchema
from queryable_app.errors import Failure
from queryable_app.ingest.decoded_records import View, avro_key_arguments
from queryable_app.ingest.transform import project
from queryable_app.wire import row_frames
from queryable_app.wire.avro_keys import AvroKeyCodec, key_codec_of
from tests.app.ingest.test_writer import sink as sink
from tests.app.ingest.test_writer import write
from tests.support.fake_serve import RowSink
from tests.support.schema_registry import framed


def avro_key(spark: SparkSession, schema: KeySchema) -> Any:
    jvm: Any = spark._jvm
    return jvm.io.queryabletopics.AvroKey(*avro_key_arguments(schema))


def spoilt(chance: Random, keys: Sequence[bytes]) -> bytes:
    """Return a key with some bytes changed or cut, or random bytes."""
    if chance.random() < 0.2:
        return chance.randbytes(chance.randrange(14))
    raw = bytearray(chance.choice(keys))
    for _ in range(chance.randrange(3) if raw else 0):
        raw[chance.randrange(len(raw))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    return bytes(raw[: chance.randrange(len(raw) + 1)] if chance.random() < 0.3 else raw)


@pytest.mark.parametrize("schema_id", [None, 7])
@pytest.mark.parametrize("type_", get_args(AvroKeyType))
def test_jvm_and_node_agree_on_every_key(
    spark: SparkSession, type_: AvroKeyType, schema_id: int | None
) -> None:
    """A record key that the JVM stores is one that a node finds, with the same bytes; all others are bad on both sides."""
    schema = KeySchema(type_, schema_id)
    of, codec = avro_key(spark, schema), key_codec_of("avro", schema)
    assert isinstance(codec, AvroKeyCodec)
    texts = (
        ["0", "7", "-1", "2147483647", "-2147483648"]
        if type_ not in ("string", "bytes")
        else ["", "a", "grün" * 40]
    )
    keys, chance, good = [codec.from_text(text) for text in texts], Random(type_), 0
    for raw in [*keys, *(spoilt(chance, keys) for _ in range(300))]:
        try:
            stored = codec.inner.to_record(codec.to_disk(raw))
            if type_ == "string":
                stored.decode()
        except (Failure, UnicodeDecodeError):
            with pytest.raises(Py4JJavaError) as raised:
                of.decode(raw)
            assert raised.value.java_exception.getClass().getSimpleName() == "Undecodable"
        else:
            assert bytes(of.decode(raw)) == stored
            good += 1
    assert good >= len(keys)


def test_writer_stores_keys_in_order_and_reports_bad_ones(spark: SparkSession, sink: RowSink) -> None:
    """A stored key is that of the key format with the same name; a bad row keeps the bytes of its record key."""
    rows = write(
        spark,
        sink,
        [(0, framed(7, b"\x0d"), b"v"), (1, framed(8, b"\x0d"), b"v"), (2, framed(7, b"\x80\x00"), None)],
        key="long",
        avro_key=avro_key(spark, KeySchema("long", 7)),
    )
    assert [row.kind for row in rows] == [row_frames.ROW, row_frames.BAD, row_frames.BAD]
    assert rows[0].disk_key == struct.pack(">Q", 2**63 - 7)
    assert rows[1].disk_key == framed(8, b"\x0d")
    assert b"key: its schema has the id 8, and not 7 of spec.key.schemaFrom.schemaId" in rows[1].stored
    assert b"key: no Avro long that a producer writes: it has a number with needless bytes" in rows[2].stored


def test_sql_reads_typed_keys(spark: SparkSession) -> None:
    """The column `key` has the type of the schema, and a row keeps the bytes of its record key."""
    view = View(
        "avro",
        "string",
        sql="SELECT key, key + 1 AS n, value AS v FROM records WHERE key > -10",
        key_schema=KeySchema("long", 7),
    )
    records = [(framed(7, b"\x0d"), b"a"), (framed(7, b"\x63"), b"b"), (b"\x0d", b"c"), (None, b"d")]
    source = spark.createDataFrame(
        [(0, offset, None, *record) for offset, record in enumerate(records)],
        "partition int, offset bigint, timestamp timestamp, key binary, value binary",
    )
    rows = project(spark, source, view).frame.collect()
    assert bytes(rows[0].key) == framed(7, b"\x0d")
    assert bytes(rows[0].value) == b'{"n":-6,"v":"a"}'
    assert [row.dropped for row in rows[:2]] == [False, True]
    assert rows[2].problem.startswith("key: it does not begin with a zero byte and the id of a schema")
