"""Test Protobuf keys: their text, their bytes, bare and in the frame of a registry, their order, and what is no key."""

from __future__ import annotations

import json
import struct
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.config.key_schema import PROTOBUF_TYPES, KeySchema
from queryable_app.config.protobuf_key import FIELD_NUMBER_MAX, ProtobufField, ProtobufKeyType
from queryable_app.errors import Failure
from queryable_app.wire.encoded_keys import key_codec_of
from queryable_app.wire.serde import KeyCodec
from tests.support.protobuf import indexed, tagged, varint, zigzag

INTEGERS = {4: st.integers(-(2**31), 2**31 - 1), 8: st.integers(-(2**63), 2**63 - 1)}
VALUES: dict[ProtobufKeyType, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(codec="utf-8")),
    "bytes": st.binary(max_size=200),
    "double": st.floats(allow_nan=False),
    **{kind: INTEGERS[4] for kind, type_ in PROTOBUF_TYPES.items() if type_ == "int"},
    **{kind: INTEGERS[8] for kind, type_ in PROTOBUF_TYPES.items() if type_ == "long"},
}
FIELDS = st.builds(
    ProtobufField, st.sampled_from(get_args(ProtobufKeyType)), st.integers(1, FIELD_NUMBER_MAX), st.booleans()
)
IDS = st.none() | st.integers(0, 2**31 - 1)


def codec(field: ProtobufField, schema_id: int | None = None) -> KeyCodec:
    return key_codec_of("protobuf", KeySchema(PROTOBUF_TYPES[field.type], schema_id, field))


def made(codec: KeyCodec, value: Any) -> bytes:
    """Return the record key of a value."""
    if isinstance(value, bytes):
        return codec.from_url_bytes(value)
    return codec.from_text(value if isinstance(value, str) else repr(value).replace("inf", "Infinity"))


def by_hand(field: ProtobufField, value: Any) -> bytes:
    """Return the message by the documented encoding."""
    if not field.always_written and (value in ("", b"") or (value == 0 and str(value) != "-0.0")):
        return b""
    packed = {"sfixed32": "<i", "sfixed64": "<q", "double": "<d"}
    if field.type in packed:
        return tagged(
            field.number, 5 if field.type == "sfixed32" else 1, struct.pack(packed[field.type], value)
        )
    if isinstance(value, str | bytes):
        return tagged(field.number, 2, value.encode() if isinstance(value, str) else value)
    return tagged(field.number, 0, varint(zigzag(value) if field.type.startswith("s") else value))


@given(FIELDS, IDS, st.data())
def test_bytes_are_those_of_a_serializer(
    field: ProtobufField, schema_id: int | None, data: st.DataObject
) -> None:
    """A key is the message, behind a zero byte, the id of its schema and the place of the message if it has an id."""
    value = data.draw(VALUES[field.type])
    message = by_hand(field, value)
    assert made(codec(field, schema_id), value) == (
        message if schema_id is None else indexed(schema_id, [0], message)
    )


@given(FIELDS, IDS, st.data())
def test_key_survives_the_disk_and_an_answer(
    field: ProtobufField, schema_id: int | None, data: st.DataObject
) -> None:
    """The on-disk key gives the record key back, and so does the key in an answer."""
    of = codec(field, schema_id)
    record = made(of, data.draw(VALUES[field.type]))
    assert of.to_record(of.to_disk(record)) == record
    shown, encoding = of.to_json(record)
    value = json.loads(shown)
    assert record == (of.from_json(value) if encoding is None else of.from_base64url(value))


@given(FIELDS, IDS, st.data())
def test_keys_sort_by_their_values(field: ProtobufField, schema_id: int | None, data: st.DataObject) -> None:
    """Numbers sort by value, text and bytes by their bytes."""
    of = codec(field, schema_id)
    one, other = (data.draw(VALUES[field.type].filter(lambda each: str(each) != "-0.0")) for _ in range(2))
    sortable = [each.encode() if isinstance(each, str) else each for each in (one, other)]
    on_disk = [of.to_disk(made(of, each)) for each in (one, other)]
    assert (on_disk[0] < on_disk[1], on_disk[0] == on_disk[1]) == (
        sortable[0] < sortable[1],
        sortable[0] == sortable[1],
    )


@given(FIELDS, IDS, st.binary(max_size=20), st.booleans())
def test_any_bytes_are_a_key_or_refused(
    field: ProtobufField, schema_id: int | None, raw: bytes, begun: bool
) -> None:
    """Bytes that a caller gives as base64url are one key, or are refused; an answer shows them either way."""
    of = codec(field, schema_id)
    if begun:
        raw = made(codec(field, schema_id), "7")[:-1] + raw
    assert of.to_json(raw)
    try:
        disk_key = of.to_disk(raw)
    except Failure as failure:
        said = failure.detail
    else:
        assert of.to_record(disk_key) == raw
        return
    assert said.startswith(f"key: the bytes are no Protobuf {PROTOBUF_TYPES[field.type]}")


LONG, TEXT = ProtobufField("int64", 1), ProtobufField("string", 1)


@pytest.mark.parametrize(
    ("field", "raw"),
    [
        (LONG, b"\x08"),
        (LONG, b"\x08\x00"),
        (LONG, b"\x08\x80"),
        (LONG, b"\x08\x87\x00"),
        (LONG, b"\x88\x00\x07"),
        (LONG, b"\x08\x07\x00"),
        (LONG, b"\x08\x07\x08\x07"),
        (LONG, b"\x10\x07"),
        (LONG, b"\x09" + b"\1" * 8),
        (LONG, b"\x08" + b"\xff" * 9 + b"\x03"),
        (ProtobufField("int64", 1, always_written=True), b""),
        (ProtobufField("int32", 1), b"\x08\xff\xff\xff\xff\x0f"),
        (ProtobufField("sint32", 1), b"\x08\xff\xff\xff\xff\x1f"),
        (ProtobufField("sfixed32", 1), b"\x0d\1\1\1"),
        (ProtobufField("double", 1), b"\x09" + b"\1" * 7),
        (TEXT, b"\x0a"),
        (TEXT, b"\x0a\x00"),
        (TEXT, b"\x0a\x02a"),
        (TEXT, b"\x0a\x01ab"),
        (TEXT, b"\x0a\x81\x00a"),
        (TEXT, b"\x12\x01a"),
    ],
)
def test_other_encodings_are_no_keys(field: ProtobufField, raw: bytes) -> None:
    """A key that is cut, has bytes left over, another field or a default, or is out of range, is refused."""
    with pytest.raises(Failure, match="no Protobuf"):
        codec(field).to_disk(raw)


def test_another_schema_is_no_key() -> None:
    """Only the id of the resource, and the first message of its file, is read."""
    of, message = codec(LONG, 7), b"\x08\x02"
    for other in (indexed(8, [0], message), indexed(7, [1], message), message, b""):
        with pytest.raises(Failure, match="no Protobuf long with the schema id 7"):
            of.to_disk(other)
    assert of.to_disk(indexed(7, [0], message)) == struct.pack(">q", 2 - 2**63)
