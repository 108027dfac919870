"""Name the Avro representations of a view's values, and make them of the stored JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from queryable_app.config.avro_schema import AvroType, parse_avro_schema
from queryable_app.config.topic_spec import TopicSpec
from queryable_app.errors import invalid
from queryable_app.wire.avro import AvroMismatch, avro_bytes, avro_json
from queryable_app.wire.encoded_keys import registry_frame
from queryable_app.wire.http_text import AVRO, AVRO_JSON

_JSON_BYTES_MAX: Final = 64 * 1024
"""Encoding takes Python some microseconds for each field, and other requests wait."""

Encode = Callable[[bytes], bytes]
"""From the JSON of a value to its bytes."""


def avro_forms(spec: TopicSpec) -> Mapping[str, Encode]:
    """Return the encoding for each media type; none unless stored values have one known schema."""
    source = spec.schema_source
    if (
        source is None
        or source.format != "avro"
        or not source.text
        or spec.sql is not None
        or spec.aggregate is not None
    ):
        return {}
    schema = parse_avro_schema(source.text)
    return {AVRO: partial(_form, avro_bytes, schema), AVRO_JSON: partial(_form, avro_json, schema)}


def record_encoding(spec: TopicSpec) -> Encode | None:
    """Return the encoding of values that are written to the topic; None if they have no schema."""
    source = spec.schema_source
    if source is None:
        return None
    if source.format != "avro":
        return partial(
            _refuse_format, "Protobuf" if source.format == "protobuf" else "JSON with a JSON Schema"
        )
    if not source.registry_url:
        return partial(_record, parse_avro_schema(source.text), b"")
    if source.schema_id is None:
        return _refuse
    return partial(_record, parse_avro_schema(source.text), registry_frame(source.schema_id))


def _form(encode: Callable[[AvroType, bytes], bytes], schema: AvroType, value_json: bytes) -> bytes:
    if len(value_json) > _JSON_BYTES_MAX:
        raise invalid(
            "Accept",
            f"the value has {len(value_json)} bytes as JSON, and up to {_JSON_BYTES_MAX} become Avro",
            "read it as application/json",
        )
    try:
        return encode(schema, value_json)
    except AvroMismatch as mismatch:
        raise invalid(
            "Accept", f"this value cannot be written as Avro: it {mismatch}", "read it as application/json"
        ) from None


def _record(schema: AvroType, frame: bytes, value_json: bytes) -> bytes:
    try:
        return frame + avro_bytes(schema, value_json)
    except AvroMismatch as mismatch:
        raise invalid(
            "value", f"does not fit the schema: {mismatch}", "write it as it stands in an answer"
        ) from None


def _refuse_format(format: str, _: bytes) -> bytes:
    raise invalid("value", f"{format} is not written in this version", "write it with your producer")


def _refuse(_: bytes) -> bytes:
    raise invalid(
        "value",
        "a record needs the id of its schema in the registry",
        "give spec.value.schemaFrom.schemaId, or write it with your producer's serializer",
    )
