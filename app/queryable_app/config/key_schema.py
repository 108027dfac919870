"""Parse `spec.key.schemaFrom`: the Avro type of record keys, and the id of their schema in a registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from queryable_app.config.avro_schema import SchemaTextError, parse_avro_schema
from queryable_app.config.spec_fields import SpecError, whole

AvroKeyType = Literal["string", "bytes", "int", "long", "double"]
"""The Avro types of keys. A key is written in requests, and sorts, as one of the key format with the same name."""

SCHEMA_ID_MAX: Final = 2**31 - 1
_PATH: Final = "spec.key.schemaFrom"


@dataclass(frozen=True, slots=True)
class KeySchema:
    type: AvroKeyType
    schema_id: int | None = None
    """The id that each key begins with, after a zero byte. None: keys are the bare encoding."""


def parse_key_schema(key: Mapping[str, Any]) -> KeySchema | None:
    """Return the schema of Avro keys; None for other formats."""
    given, format = key.get("schemaFrom"), key.get("format", "string")
    if format != "avro":
        if given:
            raise SpecError(
                f"{_PATH}: only avro keys have one, and spec.key.format is {format!r}; leave it out"
            )
        return None
    if not given:
        raise SpecError(
            f"{_PATH}: avro keys need one; give inline, and schemaId if a registry has the schema"
        )
    try:
        kind = parse_avro_schema(given.get("inline", "")).kind
    except SchemaTextError as error:
        raise SpecError(f"{_PATH}.inline: no Avro schema: {error}") from None
    if kind not in get_args(AvroKeyType):
        raise SpecError(
            f"{_PATH}.inline: keys of the Avro type {kind} are not in this version; only {', '.join(get_args(AvroKeyType))} "
            "are; use key.format: bytes"
        )
    schema_id = given.get("schemaId")
    known: AvroKeyType = kind  # type: ignore[assignment]
    return KeySchema(
        known, None if schema_id is None else whole(schema_id, SCHEMA_ID_MAX, f"{_PATH}.schemaId")
    )
