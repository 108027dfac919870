"""Test the conversion between text or JSON and the bytes of Kafka's serializers."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queryable_app.config.topic_spec import KeyFormat, ValueFormat
from queryable_app.errors import Failure, Reason
from queryable_app.wire.json_text import JsonText, parse_json
from queryable_app.wire.serde import KeyCodec, key_codec, value_from_json, value_to_json
from tests.support.golden import json_values, shortened

KEY_FORMATS = st.sampled_from([each for each in get_args(KeyFormat) if each not in ("avro", "protobuf")])
UUID = "123e4567-e89b-12d3-a456-426614174000"


def refusal(failure: pytest.ExceptionInfo[Failure], field: str) -> str:
    """Return the detail of a refusal, which must name the field and have advice."""
    assert failure.value.reason is Reason.INVALID_REQUEST
    assert failure.value.detail.startswith(f"{field}: ")
    assert failure.value.advice
    return failure.value.detail


@pytest.mark.parametrize(
    ("format", "text", "record_key"),
    [
        ("string", "", b""),
        ("string", "ALL", b"ALL"),
        ("string", "a/b?%2F#", b"a/b?%2F#"),
        ("string", "🦉", b"\xf0\x9f\xa6\x89"),
        ("string", "\x00", b"\x00"),
        ("bytes", "🦉", b"\xf0\x9f\xa6\x89"),
        ("json", '{"id": 1}', b'{"id": 1}'),
        ("json", '"a"', b'"a"'),
        ("int", "42", b"\x00\x00\x00\x2a"),
        ("int", "-1", b"\xff\xff\xff\xff"),
        ("int", "-2147483648", b"\x80\x00\x00\x00"),
        ("long", "42", b"\x00\x00\x00\x00\x00\x00\x00\x2a"),
        ("long", "9223372036854775807", b"\x7f" + b"\xff" * 7),
        ("double", "1", b"\x3f\xf0\x00\x00\x00\x00\x00\x00"),
        ("double", "-1.5e0", b"\xbf\xf8\x00\x00\x00\x00\x00\x00"),
        ("double", ".5", b"\x3f\xe0\x00\x00\x00\x00\x00\x00"),
        ("double", "-0.0", b"\x80\x00\x00\x00\x00\x00\x00\x00"),
        ("double", "Infinity", b"\x7f\xf0\x00\x00\x00\x00\x00\x00"),
        ("double", "-Infinity", b"\xff\xf0\x00\x00\x00\x00\x00\x00"),
        ("double", "NaN", b"\x7f\xf8\x00\x00\x00\x00\x00\x00"),
        ("uuid", UUID, UUID.encode()),
        ("uuid", UUID.upper(), UUID.encode()),
    ],
)
def test_key_text_is_what_kafkas_serializer_writes(format: KeyFormat, text: str, record_key: bytes) -> None:
    """A key's text becomes the bytes that Kafka's serializer of the format writes."""
    assert key_codec(format).from_text(text) == record_key
    assert key_codec(format).from_url_bytes(text.encode()) == record_key


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("int", ""),
        ("int", "1.0"),
        ("int", " 1"),
        ("int", "1_000"),
        ("int", "٤"),  # a digit, but not an ASCII one
        ("int", "2147483648"),
        ("int", "-2147483649"),
        ("int", "9" * 100_000),
        ("long", "9223372036854775808"),
        ("long", "0x10"),
        ("double", ""),
        ("double", "."),
        ("double", "1e"),
        ("double", "nan"),
        ("double", "inf"),
        ("double", "1_0"),
        ("double", "1e999"),
        ("double", "1" * 1000),
        ("uuid", "123e4567e89b12d3a456426614174000"),
        ("uuid", "{" + UUID + "}"),
        ("uuid", UUID + "\n"),
        ("json", "a"),
        ("json", ""),
        ("json", "[" * 100_000),
        ("string", "\ud800"),
        ("bytes", "\ud800"),
    ],
    ids=lambda text: ascii(text)[:24],
)
def test_text_of_another_format_is_refused(format: KeyFormat, text: str) -> None:
    """Text that is no key of the format is refused with a short message that names `key`."""
    with pytest.raises(Failure) as failure:
        key_codec(format).from_text(text)
    assert len(refusal(failure, "key")) < 250


@given(st.binary(), st.sampled_from(("string", "bytes")))
def test_string_key_may_be_any_bytes(raw: bytes, format: KeyFormat) -> None:
    """A string or bytes key may be any bytes of a URL."""
    assert key_codec(format).from_url_bytes(raw) == raw


@pytest.mark.parametrize("format", ["int", "long", "double", "uuid", "json"])
def test_other_formats_need_utf8(format: KeyFormat) -> None:
    """Bytes that are not UTF-8 are refused in other formats, with the advice to use base64url."""
    with pytest.raises(Failure) as failure:
        key_codec(format).from_url_bytes(b"\xff")
    refusal(failure, "key")
    assert "key-encoding=base64url" in failure.value.advice


@given(KEY_FORMATS, st.binary(max_size=40))
def test_any_bytes_are_a_key_or_invalid(format: KeyFormat, raw: bytes) -> None:
    """Any bytes are a key or an invalid_request."""
    try:
        answer: bytes | Reason = key_codec(format).from_url_bytes(raw)
    except Failure as failure:
        answer = failure.reason
    assert isinstance(answer, bytes) or answer is Reason.INVALID_REQUEST


@given(KEY_FORMATS, st.binary(max_size=40))
@example("double", struct.pack(">Q", 0x7FF8000000000001))  # a NaN that no text gives
@example("double", struct.pack(">d", -math.inf))
@example("uuid", UUID.upper().encode())
@example("json", b'{"id":1}')
@example("string", b'quote " backslash \\ newline \n NUL \x00')
def test_key_of_an_answer_reads_the_same_row(format: KeyFormat, record_key: bytes) -> None:
    """A key in an answer is the same key if a request sends it back in its encoding."""
    codec = key_codec(format)

    text, encoding = codec.to_json(record_key)

    shown = json.loads(text)
    assert encoding in (None, "base64url")
    assert (codec.from_json(shown) if encoding is None else KeyCodec.from_base64url(shown)) == record_key


@pytest.mark.parametrize(
    ("format", "record_key", "shown"),
    [
        ("string", b"caf\xc3\xa9", ('"café"'.encode(), None)),
        ("string", b"\xff\xfe", (b'"__4"', "base64url")),
        ("bytes", b"plain", (b'"plain"', None)),
        ("int", b"\xff\xff\xff\xff", (b"-1", None)),
        ("int", b"abc", (b'"YWJj"', "base64url")),
        ("long", b"\x7f" + b"\xff" * 7, (b"9223372036854775807", None)),
        ("double", struct.pack(">d", 2.5), (b"2.5", None)),
        ("double", struct.pack(">d", math.nan), (b'"NaN"', None)),
        ("uuid", UUID.encode(), (f'"{UUID}"'.encode(), None)),
        ("json", b'{"id":1}', (b'"{\\"id\\":1}"', None)),
        ("json", b"not json", (b'"bm90IGpzb24"', "base64url")),
    ],
)
def test_key_has_the_json_type_of_its_format(
    format: KeyFormat, record_key: bytes, shown: tuple[bytes, str | None]
) -> None:
    """A key has its format's JSON type in an answer, or is base64url if it does not fit."""
    assert key_codec(format).to_json(record_key) == shown


def test_large_json_key_is_base64url() -> None:
    """A JSON key that takes long to parse is refused as text, and is base64url in an answer."""
    codec = key_codec("json")
    largest, larger = b"1".rjust(64 * 1024), b"1".rjust(64 * 1024 + 1)

    assert codec.from_json(largest.decode()) == largest
    assert codec.to_json(larger)[1] == "base64url"
    with pytest.raises(Failure, match="more than 65536 bytes") as refused:
        codec.from_json(larger.decode())
    assert "base64url" in refused.value.advice


@pytest.mark.parametrize(
    ("format", "value", "record_key"),
    [
        ("int", 42, b"\x00\x00\x00\x2a"),
        ("int", "42", b"\x00\x00\x00\x2a"),
        ("long", 2**53 + 1, (2**53 + 1).to_bytes(8, "big")),
        ("double", 1, struct.pack(">d", 1.0)),
        ("double", 1.5, struct.pack(">d", 1.5)),
        ("double", "NaN", struct.pack(">d", math.nan)),
        ("string", "42", b"42"),
    ],
)
def test_key_in_a_body_is_a_number_or_text(format: KeyFormat, value: object, record_key: bytes) -> None:
    """In a body, a key of a number's format is a number or its text, and any other key is text."""
    assert key_codec(format).from_json(value) == record_key


@pytest.mark.parametrize(
    ("format", "value"),
    [
        ("int", 1.0),
        ("int", True),
        ("int", None),
        ("int", 2**31),
        ("long", 10**4000),
        ("long", [1]),
        ("double", 10**400),
        ("double", json.loads("1e999")),
        ("double", {}),
        ("double", False),
        ("string", 42),
        ("string", None),
        ("string", ["x"] * 1_000_000),
        ("json", {"id": 1}),
        ("uuid", 7),
        ("bytes", [1, 2]),
    ],
    ids=lambda value: ascii(value)[:24] if not isinstance(value, list | int) else type(value).__name__,
)
def test_json_of_another_type_is_refused(format: KeyFormat, value: object) -> None:
    """JSON of another type or range is refused with a short message that names `key`."""
    with pytest.raises(Failure) as failure:
        key_codec(format).from_json(value)
    assert len(refusal(failure, "key")) < 250


@given(st.binary())
def test_base64url_is_the_record_key(record_key: bytes) -> None:
    """base64url decodes to the record's key, with and without padding."""
    padded = base64.urlsafe_b64encode(record_key).decode()
    assert KeyCodec.from_base64url(padded) == KeyCodec.from_base64url(padded.rstrip("=")) == record_key


@pytest.mark.parametrize("text", ["a", "a+b/", "ab c", "abc\n", "é", "====", "ab=c", "abcde"], ids=ascii)
def test_malformed_base64url_is_refused(text: str) -> None:
    """The codec refuses base64url with other characters or an impossible length."""
    with pytest.raises(Failure) as failure:
        KeyCodec.from_base64url(text)
    refusal(failure, "key")


@given(KEY_FORMATS, st.binary(max_size=12))
def test_key_survives_the_disk(format: KeyFormat, record_key: bytes) -> None:
    """A codec's on-disk form converts back to the record's key."""
    codec = key_codec(format)
    assert codec.to_record(codec.to_disk(record_key)) == record_key


@pytest.mark.parametrize(
    ("format", "low", "high"),
    [
        ("int", "-5", "3"),
        ("long", "-9223372036854775808", "0"),
        ("double", "-1e300", "-0.5"),
        ("string", "A", "a"),
    ],
)
def test_codec_orders_by_value(format: KeyFormat, low: str, high: str) -> None:
    """The codec of a number's format puts negative numbers before positive ones on disk."""
    codec = key_codec(format)
    assert codec.to_disk(codec.from_text(low)) < codec.to_disk(codec.from_text(high))


@pytest.mark.parametrize(
    ("format", "stored", "shown"),
    [
        ("json", b'{"a":  1}', b'{"a":  1}'),
        ("string", b"a\n\xc3\xa9", '"a\\né"'.encode()),
        ("int", b"\xff\xff\xff\xfe", b"-2"),
        ("long", b"\x00\x20\x00\x00\x00\x00\x00\x01", b"9007199254740993"),
        ("double", struct.pack(">d", 0.1), b"0.1"),
        ("double", struct.pack(">d", math.nan), b'"NaN"'),
        ("double", struct.pack(">d", math.inf), b'"Infinity"'),
        ("double", struct.pack(">d", -math.inf), b'"-Infinity"'),
        ("uuid", UUID.encode(), f'"{UUID}"'.encode()),
        ("bytes", b"\xff\x00", b'"/wA="'),
    ],
)
def test_value_has_the_json_type_of_its_format(format: ValueFormat, stored: bytes, shown: bytes) -> None:
    """A stored value has its format's JSON type in an answer; a JSON value is unchanged."""
    assert value_to_json(stored, format) == shown


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
VALUES: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.just("json"), JSON_VALUES),
    st.tuples(st.just("string"), st.text()),
    st.tuples(st.just("int"), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just("long"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("double"), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just("double"), st.sampled_from(("NaN", "Infinity", "-Infinity"))),
    st.tuples(st.just("uuid"), st.uuids().map(str)),
    st.tuples(st.just("bytes"), st.binary().map(lambda raw: base64.b64encode(raw).decode())),
)


def given_as(value: object) -> JsonText:
    """Return the value as a body has it."""
    return parse_json(json.dumps(value).encode())


def test_number_beyond_a_double_is_refused() -> None:
    """A JSON number that no double can hold is refused, and is not stored as infinity."""
    with pytest.raises(Failure) as failure:
        value_from_json(parse_json(b"-1e999"), "double")
    refusal(failure, "value")


@given(VALUES)
def test_written_value_is_read_back(case: tuple[ValueFormat, Any]) -> None:
    """A value that was written is the same JSON value when it is read."""
    format, value = case
    assert json.loads(value_to_json(value_from_json(given_as(value), format), format)) == value


@pytest.mark.parametrize(
    ("format", "value"),
    [
        ("string", 1),
        ("string", "\ud800"),
        ("int", 2**31),
        ("int", None),
        ("int", "x"),
        ("long", 1.5),
        ("double", True),
        ("uuid", "x"),
        ("bytes", "not base64!"),
        ("bytes", "é"),
        ("bytes", [1]),
    ],
    ids=ascii,
)
def test_value_of_another_format_is_refused(format: ValueFormat, value: object) -> None:
    """A value that does not fit the format is refused with a message that names `value`."""
    with pytest.raises(Failure) as failure:
        value_from_json(given_as(value), format)
    refusal(failure, "value")


@pytest.mark.parametrize("raw", json_values("good"), ids=shortened)
def test_json_value_is_written_unchanged(raw: bytes) -> None:
    """A JSON value keeps its numbers, its spaces and the order of its names."""
    assert value_from_json(parse_json(raw), "json") == raw


@pytest.mark.parametrize("raw", json_values("bad"), ids=shortened)
def test_json_key_has_the_rules_of_ingest(raw: bytes) -> None:
    """A key that ingest would skip is refused in reads and writes."""
    with pytest.raises(Failure) as failure:
        key_codec("json").from_url_bytes(raw)
    assert len(refusal(failure, "key")) < 250
