"""Convert keys and values between text or JSON and the bytes of Kafka's serializers.

Strategy: one pair of functions converts the scalar formats (string, int, long, double, uuid); keys and values differ only in
`bytes` and `json`. A key is text in a URL and a JSON value in a body; a value is JSON. A key that its format cannot express is
base64url of its bytes, and an answer marks it.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from queryable_app.config.topic_spec import KeyFormat, StoredFormat, ValueFormat
from queryable_app.errors import Failure, invalid, shown
from queryable_app.wire.disk_format import KeyOrder, to_disk_key, to_record_key
from queryable_app.wire.json_text import BadJson, JsonText, parse_json

_WHOLE_NUMBERS: Final = {"int": struct.Struct(">i"), "long": struct.Struct(">q")}
_DOUBLE: Final = struct.Struct(">d")
_WIDTHS: Final = {"int": 4, "long": 8, "double": 8}
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

# Bounded, because Python's own parser takes quadratic time for its digits.
_WHOLE_NUMBER_TEXT: Final = re.compile(r"-?[0-9]{1,19}")
_DOUBLE_TEXT: Final = re.compile(
    r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?"
)
_UUID_TEXT: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BASE64URL_TEXT: Final = re.compile(r"[A-Za-z0-9_-]*={0,2}")

_to_json: Final = json.JSONEncoder(
    ensure_ascii=False
).encode  # `json.dumps` would build an encoder for every row

_JSON_KEY_BYTES_MAX: Final = 64 * 1024  # each value in it costs time, and a key is parsed in one step

_RAW_KEY_ADVICE: Final = "write it in its format, or give the key's bytes with key-encoding=base64url"


@dataclass(frozen=True, slots=True)
class KeyCodec:
    """Convert a key between text or JSON, the record's bytes and the on-disk bytes."""

    format: KeyFormat
    order: str
    width: int

    @property
    def text_format(self) -> KeyFormat:
        """Return the format of the key's text and JSON."""
        return self.format

    @property
    def stores_record_keys(self) -> bool:
        """Tell whether on-disk keys are the record keys."""
        return self.order == KeyOrder.PLAIN

    def from_url_bytes(self, raw: bytes) -> bytes:
        """Return the record's key for a percent-decoded piece of a path or query."""
        if self.format in ("string", "bytes"):
            return raw
        try:
            return self.from_text(raw.decode())
        except UnicodeDecodeError:
            raise invalid("key", f"is not UTF-8, and so no {self.format}", _RAW_KEY_ADVICE) from None

    def from_text(self, text: str) -> bytes:
        if self.format in ("json", "bytes"):
            raw = _utf8(text, "key")
            if self.format == "json":
                if len(raw) > _JSON_KEY_BYTES_MAX:
                    raise invalid("key", f"is JSON of more than {_JSON_KEY_BYTES_MAX} bytes", _RAW_KEY_ADVICE)
                _require_json(text, raw)
            return raw
        return _encode_text(text, self.format, "key")

    def from_json(self, value: object) -> bytes:
        """Return the record's key for an element of `keys`: for int, long and double a number or its text, else text."""
        if isinstance(value, str):
            return self.from_text(value)
        if self.format in _WIDTHS:
            return _encode_number(value, self.format, "key")
        raise invalid(
            "key", f"{shown(value)} is not text", "write each key as a JSON string, as it stands in a URL"
        )

    def all_from_json(self, values: Sequence[object]) -> list[bytes]:
        """Return the record's key for each element of `keys`."""
        if self.format == "string":
            try:
                return [str.encode(value) for value in values]  # type: ignore[arg-type]
            except (TypeError, UnicodeEncodeError):
                pass  # `from_json` says which
        return [self.from_json(value) for value in values]

    @staticmethod
    def from_base64url(text: str) -> bytes:
        """Return the record's key, in any format. Padding is optional."""
        bare = text.rstrip("=")
        if not _BASE64URL_TEXT.fullmatch(text) or len(bare) % 4 == 1:
            raise invalid("key", f"{shown(text)} is not base64url", "use A-Z a-z 0-9 - _ without line breaks")
        return base64.urlsafe_b64decode(bare + "=" * (-len(bare) % 4))

    def to_disk(self, record_key: bytes) -> bytes:
        return to_disk_key(record_key, self.order, self.width)

    def to_record(self, disk_key: bytes) -> bytes:
        return to_record_key(disk_key, self.order, self.width)

    def to_json(self, record_key: bytes) -> tuple[bytes, str | None]:
        """Return JSON that `from_json` converts back, or base64url and the name of that encoding."""
        try:
            number = self.format in _WIDTHS
            value = _decode_number(record_key, self.format) if number else record_key.decode()
            if self.from_json(value) == record_key:
                return _to_json(value).encode(), None
        except (UnicodeDecodeError, struct.error, Failure):
            pass
        return base64url_json(record_key), "base64url"


def base64url_json(record_key: bytes) -> bytes:
    return b'"' + base64.urlsafe_b64encode(record_key).rstrip(b"=") + b'"'


def key_codec(format: KeyFormat) -> KeyCodec:
    order = {"int": KeyOrder.SIGNED, "long": KeyOrder.SIGNED, "double": KeyOrder.DOUBLE}.get(
        format, KeyOrder.PLAIN
    )
    return KeyCodec(format, order, _WIDTHS.get(format, 0))


def value_to_json(stored_value: bytes, format: StoredFormat) -> bytes:
    """Return the JSON text of a stored value, which ingest has checked."""
    if format == "json":
        return stored_value
    if format == "bytes":
        return b'"' + base64.b64encode(stored_value) + b'"'
    if format in _WIDTHS:
        return _to_json(_decode_number(stored_value, format)).encode()
    return _to_json(stored_value.decode()).encode()


def value_from_json(
    given: JsonText, format: ValueFormat, encode: Callable[[bytes], bytes] | None = None
) -> bytes:
    """Return the bytes that a producer with the format's serializer sends. The caller handles deletions.

    `encode` is that of a format with a schema, and takes the JSON text.
    """
    if encode is not None:
        return encode(given.raw)
    if format == "json":
        return given.raw  # unchanged: no number is rounded, no member sorted
    if format in _WIDTHS and not isinstance(given.value, str):
        return _encode_number(given.value, format, "value")
    if not isinstance(given.value, str):
        raise invalid(
            "value", f"{shown(given.value)} is not text", f"write a {format} value as a JSON string"
        )
    return value_from_text(given.value, format)


def value_from_text(text: str, format: ValueFormat) -> bytes:
    """Return the bytes of a value in any format but `json`."""
    if format == "bytes":
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise invalid(
                "value", f"{shown(text)} is not base64", "write the value's bytes as base64"
            ) from None
    return _encode_text(text, format, "value")


def _encode_text(text: str, format: str, field: str) -> bytes:
    if format == "string":
        return _utf8(text, field)
    if format == "uuid":
        lower = text.lower()
        if not _UUID_TEXT.fullmatch(lower):
            raise invalid(
                field, f"{shown(text)} is not a UUID", "write it like 123e4567-e89b-12d3-a456-426614174000"
            )
        return lower.encode()
    if format == "double":
        if text in _NOT_FINITE:
            return _DOUBLE.pack(_NOT_FINITE[text])
        if _DOUBLE_TEXT.fullmatch(text) and math.isfinite(number := float(text)):
            return _DOUBLE.pack(number)
        raise invalid(
            field, f"{shown(text)} is not a double", "write it like 2.5, -1e300, NaN, Infinity or -Infinity"
        )
    if not _WHOLE_NUMBER_TEXT.fullmatch(text):
        raise invalid(field, f"{shown(text)} is not a whole number", f"write {_range(format)}")
    return _encode_number(int(text), format, field)


def _encode_number(value: object, format: str, field: str) -> bytes:
    try:
        if isinstance(value, bool):
            raise TypeError
        if format == "double":
            raw = _DOUBLE.pack(value)
            if value in (math.inf, -math.inf):  # JSON has no infinity: it was a number like 1e999
                raise OverflowError
            return raw
        return _WHOLE_NUMBERS[format].pack(value)
    except (struct.error, OverflowError, TypeError):
        raise invalid(field, f"{shown(value)} is no {format}", f"write {_range(format)}") from None


def _decode_number(raw: bytes, format: str) -> float | str:
    if format != "double":
        return int(_WHOLE_NUMBERS[format].unpack(raw)[0])
    number: float = _DOUBLE.unpack(raw)[0]
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _range(format: str) -> str:
    if format == "double":
        return 'a number, "NaN", "Infinity" or "-Infinity"'
    top = 2 ** (8 * _WIDTHS[format] - 1)
    return f"a whole number from {-top} to {top - 1}"


def _utf8(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise invalid(
            field, "has half of a surrogate pair, which UTF-8 cannot carry", _RAW_KEY_ADVICE
        ) from None


def _require_json(text: str, raw: bytes) -> None:
    try:
        parse_json(raw)
    except BadJson as bad:
        raise invalid(
            "key",
            f"{shown(text)} {bad}",
            'a JSON key is its exact text, e.g. "a" with the quotes, or {"id":1}',
        ) from None
