"""Write Protobuf records for tests: with Google's library in the JVM, and by hand from the documented encoding."""

from __future__ import annotations

import base64
import struct
from typing import Any

from pyspark.sql import SparkSession

USER = """
syntax = "proto3";
package shop;
message User {
  int64 id = 1;
  optional string name = 2;
  string city = 3;
}
message Order { string number = 1; message Line { int32 count = 1; } }
"""


def of_library(spark: SparkSession, text: str, message: str, value: str) -> bytes:
    """Return the bytes that Google's library writes for a value in Protobuf's text format."""
    google: Any = spark._jvm.com.google.protobuf  # type: ignore[union-attr]
    builder = google.DynamicMessage.newBuilder(descriptor(spark, text, message))
    google.TextFormat.merge(value, builder)
    return bytes(builder.build().toByteArray())


def descriptor(spark: SparkSession, text: str, message: str) -> Any:
    """Return the library's descriptor, by way of the node's parser of .proto text."""
    return _files(spark, text).findMessageTypeByName(message)


def descriptor_set(spark: SparkSession, text: str) -> str:
    """Return what `protoc --include_imports --descriptor_set_out` writes for a text, in base64."""
    google: Any = spark._jvm.com.google.protobuf  # type: ignore[union-attr]
    made = getattr(google, "DescriptorProtos$FileDescriptorSet").newBuilder()
    added: set[str] = set()

    def add(file: Any) -> None:
        if file.getName() not in added:
            added.add(file.getName())
            for dependency in file.getDependencies():
                add(dependency)
            made.addFile(file.toProto())

    add(_files(spark, text))
    return base64.b64encode(bytes(made.build().toByteArray())).decode()


def _files(spark: SparkSession, text: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.io.queryabletopics.ProtobufFiles.texts(text, jvm.java.util.HashMap()).get(0)


def varint(number: int) -> bytes:
    number &= 0xFFFF_FFFF_FFFF_FFFF
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def zigzag(number: int) -> int:
    return (number << 1) ^ (number >> 63)


def tagged(number: int, wire_type: int, payload: bytes) -> bytes:
    """Return a field. With the wire type 2, the payload gets its length."""
    length = varint(len(payload)) if wire_type == 2 else b""
    return varint(number << 3 | wire_type) + length + payload


def indexed(schema_id: int, indexes: list[int], record: bytes) -> bytes:
    """Return a record as the serializers of a registry write it. The first message of a file is a single zero."""
    path = b"\0" if indexes == [0] else b"".join(varint(zigzag(n)) for n in (len(indexes), *indexes))
    return b"\0" + struct.pack(">I", schema_id) + path + record
