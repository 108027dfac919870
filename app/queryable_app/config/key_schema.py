"""Parse `spec.key.schemaFrom`: the type of Avro or Protobuf keys, and the id of their schema in a registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from queryable_app.config.avro_schema import SchemaTextError, parse_avro_schema
from queryable_app.config.protobuf_key import (
    ProtobufField,
    ProtobufKeyType,
    ProtoTextError,
    parse_protobuf_key,
)
from queryable_app.config.spec_fields import SpecError, whole

TypedKey = Literal["string", "bytes", "int", "long", "double"]
"""The key formats that keys with a schema have without their encoding. The Avro types have the same names."""

PROTOBUF_TYPES: Final[Mapping[ProtobufKeyType, TypedKey]] = {
    "string": "string",
    "bytes": "bytes",
    "int32": "int",
    "sint32": "int",
    "sfixed32": "int",
    "int64": "long",
    "sint64": "long",
    "sfixed64": "long",
    "double": "double",
}
SCHEMA_ID_MAX: Final = 2**31 - 1
_PATH: Final = "spec.key.schemaFrom"


@dataclass(frozen=True, slots=True)
class KeySchema:
    type: TypedKey
    """A key is written in requests, and sorts, as one of this key format."""

    schema_id: int | None = None
    """The id that each key begins with, after a zero byte. None: keys are the bare encoding."""

    field: ProtobufField | None = None
    """The field of the message that a Protobuf key is. None: keys are Avro's."""


def parse_key_schema(key: Mapping[str, Any]) -> KeySchema | None:
    """Return the schema of Avro and Protobuf keys; None for other formats."""
    given, format = key.get("schemaFrom"), key.get("format", "string")
    if format not in ("avro", "protobuf"):
        if given:
            raise SpecError(
                f"{_PATH}: only avro and protobuf keys have one, and spec.key.format is {format!r}; leave it out"
            )
        return None
    if not given:
        raise SpecError(
            f"{_PATH}: {format} keys need one; give inline, and schemaId if a registry has the schema"
        )
    text, schema_id = given.get("inline", ""), given.get("schemaId")
    if schema_id is not None:
        schema_id = whole(schema_id, SCHEMA_ID_MAX, f"{_PATH}.schemaId")
    if format == "avro":
        return KeySchema(_avro_type(text), schema_id)
    try:
        field = parse_protobuf_key(text)
    except ProtoTextError as error:
        raise SpecError(f"{_PATH}.inline: no Protobuf schema of a key: {error}") from None
    return KeySchema(PROTOBUF_TYPES[field.type], schema_id, field)


def _avro_type(text: str) -> TypedKey:
    try:
        kind = parse_avro_schema(text).kind
    except SchemaTextError as error:
        raise SpecError(f"{_PATH}.inline: no Avro schema: {error}") from None
    known: Mapping[str, TypedKey] = {each: each for each in get_args(TypedKey)}
    if kind not in known:
        raise SpecError(
            f"{_PATH}.inline: keys of the Avro type {kind} are not in this version; only {', '.join(known)} "
            "are; use key.format: bytes"
        )
    return known[kind]
