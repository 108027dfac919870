"""Test Avro keys: their text, their bytes with and without the frame of a registry, their order, and bytes that are no key."""

from __future__ import annotations

import json
import struct
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.config.avro_schema import parse_avro_schema
from queryable_app.config.key_schema import KeySchema, TypedKey
from queryable_app.errors import Failure
from queryable_app.wire.avro import avro_bytes
from queryable_app.wire.encoded_keys import key_codec_of
from queryable_app.wire.serde import KeyCodec
from tests.support.schema_registry import framed

VALUES: dict[TypedKey, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(codec="utf-8")),
    "bytes": st.binary(max_size=200),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
}
TYPES = st.sampled_from(get_args(TypedKey))
IDS = st.none() | st.integers(0, 2**31 - 1)


def codec(type_: TypedKey, schema_id: int | None = None) -> KeyCodec:
    return key_codec_of("avro", KeySchema(type_, schema_id))


def made(codec: KeyCodec, value: Any) -> bytes:
    """Return the record key of a value."""
    if isinstance(value, bytes):
        return codec.from_url_bytes(value)
    return codec.from_text(value if isinstance(value, str) else repr(value).replace("inf", "Infinity"))


@given(TYPES, IDS, st.data())
def test_bytes_are_those_of_avro(type_: TypedKey, schema_id: int | None, data: st.DataObject) -> None:
    """A key has Avro's encoding, behind a zero byte and the id of its schema if it has one."""
    value = data.draw(VALUES[type_].filter(lambda each: each not in (float("inf"), float("-inf"))))
    if type_ == "bytes":
        assert made(codec(type_), value)[-len(value) :] == value or not value
        return
    expected = avro_bytes(parse_avro_schema(json.dumps(type_)), json.dumps(value).encode())
    assert (
        made(codec(type_, schema_id), value)
        == (b"" if schema_id is None else framed(schema_id, b"")) + expected
    )


@given(TYPES, IDS, st.data())
def test_key_survives_the_disk_and_an_answer(
    type_: TypedKey, schema_id: int | None, data: st.DataObject
) -> None:
    """The on-disk key gives the record key back, and so does the key in an answer."""
    of = codec(type_, schema_id)
    record = made(of, data.draw(VALUES[type_]))
    assert of.to_record(of.to_disk(record)) == record
    shown, encoding = of.to_json(record)
    value = json.loads(shown)
    assert record == (of.from_json(value) if encoding is None else of.from_base64url(value))


@given(TYPES, IDS, st.data())
def test_keys_sort_by_avros_order(type_: TypedKey, schema_id: int | None, data: st.DataObject) -> None:
    """Numbers sort by value, text and bytes by their bytes."""
    of = codec(type_, schema_id)
    one, other = (data.draw(VALUES[type_].filter(lambda each: each != 0.0)) for _ in range(2))
    sortable = [each.encode() if isinstance(each, str) else each for each in (one, other)]
    on_disk = [of.to_disk(made(of, each)) for each in (one, other)]
    assert (on_disk[0] < on_disk[1], on_disk[0] == on_disk[1]) == (
        sortable[0] < sortable[1],
        sortable[0] == sortable[1],
    )


@given(TYPES, IDS, st.binary(max_size=20))
def test_any_bytes_are_a_key_or_refused(type_: TypedKey, schema_id: int | None, raw: bytes) -> None:
    """Bytes that a caller gives as base64url are one key, or are refused; an answer shows them either way."""
    of = codec(type_, schema_id)
    assert of.to_json(raw)
    try:
        disk_key = of.to_disk(raw)
    except Failure as failure:
        said = failure.detail
    else:
        assert of.to_record(disk_key) == raw
        return
    assert said.startswith(f"key: the bytes are no Avro {type_}")


@pytest.mark.parametrize(
    ("type_", "raw"),
    [
        ("long", b""),
        ("long", b"\x80"),
        ("long", b"\x80\x00"),
        ("long", b"\x0e\x00"),
        ("long", b"\xff" * 9 + b"\x02"),
        ("int", b"\xff\xff\xff\xff\x1f"),
        ("string", b"\x04a"),
        ("string", b"\x02ab"),
        ("string", b"\x82\x00a"),
        ("string", b"\x01"),
        ("bytes", b""),
        ("double", b"\0" * 7),
    ],
)
def test_other_encodings_are_no_keys(type_: TypedKey, raw: bytes) -> None:
    """A key that is cut, has bytes left over, is out of range or is written with needless bytes is refused."""
    with pytest.raises(Failure, match=f"no Avro {type_}"):
        codec(type_).to_disk(raw)


def test_another_id_is_no_key() -> None:
    """Only the id of the resource is read; a key with another one lies where no read looks."""
    with pytest.raises(Failure, match="no Avro long with the schema id 7"):
        codec("long", 7).to_disk(framed(8, b"\x02"))
    assert codec("long", 7).to_disk(framed(7, b"\x02")) == struct.pack(">q", 1 - 2**63)
