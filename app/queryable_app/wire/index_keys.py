"""Encode what an index has for a row: an entry whose bytes sort as the indexed values do.

Strategy: an entry is `index number (1 byte) | value | on-disk key of the row`. A value has a fixed width or an end mark, so
entries of one value are neighbours, in the order of their rows' keys, and no encoded value is the beginning of another one.

A text is its UTF-8 with NUL as 00 FF, and the end mark 00 00. Of a text of more than 1 KiB, the first KiB counts, then 00 01 and
a digest of the whole text: equality is exact, and texts that differ behind the first KiB have no meaningful order.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

from queryable_app.config.indexes import IndexType
from queryable_app.wire.times import parse_time, to_iso

TEXT_BYTES_MAX: Final = 1024
"""Longer texts have no order among those with the same beginning."""

TEXT_END: Final = b"\0\0"

_TEXT_BREAK: Final = b"\xff"  # no UTF-8 has this byte, and no index this number
_LONG: Final = struct.Struct(">Q")
_NUMBERED_LONG: Final = struct.Struct(">BQ")
_DOUBLE: Final = struct.Struct(">d")
_SIGN: Final = 1 << 63
_FLIP_ALL: Final = (1 << 64) - 1
_LONG_MIN: Final = -_SIGN
_LONG_MAX: Final = _SIGN - 1
_DIGEST_BYTES: Final = 16
_TEXT: Final = re.compile(rb"[^\0]*+(?:\0\xff[^\0]*+)*+\0([\0\1])", re.DOTALL)
_WHOLE_TEXT: Final = re.compile(r"-?[0-9]{1,19}")
_NUMBER_TEXT: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_CHARACTERS_MAX: Final = 1000
_BOOLEANS: Final = {"false": b"\0", "true": b"\1"}


class NotOfType(Exception):
    """A value is not of the index's type."""


class TextTooLong(NotOfType):
    """The bound of a range is longer than the part of a text that has an order."""


def encode_string(value: object) -> bytes:
    if type(value) is not str:
        raise NotOfType
    raw = value.encode("utf-8", "surrogatepass")
    if len(raw) > TEXT_BYTES_MAX:
        return (
            raw[:TEXT_BYTES_MAX].replace(b"\0", b"\0\xff")
            + b"\0\1"
            + blake2b(raw, digest_size=_DIGEST_BYTES).digest()
        )
    return raw + TEXT_END if b"\0" not in raw else raw.replace(b"\0", b"\0\xff") + TEXT_END


def encode_long(value: object) -> bytes:
    if type(value) is not int or not _LONG_MIN <= value <= _LONG_MAX:
        raise NotOfType
    return _LONG.pack(value + _SIGN)


def encode_double(value: object) -> bytes:
    if type(value) is not float and type(value) is not int:
        raise NotOfType
    try:
        number = float(value) + 0.0  # -0.0 becomes 0.0
    except OverflowError:
        raise NotOfType from None
    if not math.isfinite(number):
        raise NotOfType
    bits: int = _LONG.unpack(_DOUBLE.pack(number))[0]
    return _LONG.pack(bits ^ (_FLIP_ALL if bits & _SIGN else _SIGN))


def encode_boolean(value: object) -> bytes:
    if type(value) is not bool:
        raise NotOfType
    return b"\1" if value else b"\0"


def encode_timestamp(value: object) -> bytes:
    """Encode a time: ISO 8601, or milliseconds since 1970 as a number or as text."""
    if type(value) is str:
        value = parse_time(value)
    return encode_long(value)


ENCODERS: Final = {
    "string": encode_string,
    "long": encode_long,
    "double": encode_double,
    "boolean": encode_boolean,
    "timestamp": encode_timestamp,
}


ColumnEncoder = Callable[[int, list[Any]], list[bytes]]


def _encode_strings(number: int, values: list[Any]) -> list[bytes]:
    """Encode texts. Raises NotOfType too if one is long or has a NUL, which `encode_string` takes."""
    if not values:
        return []
    try:
        joined = "\0".join(values).encode("utf-8", "surrogatepass")
    except TypeError:
        raise NotOfType from None
    head = bytes((number,))
    whole = head + joined.replace(b"\0", TEXT_END + _TEXT_BREAK + head) + TEXT_END
    encoded = whole.split(_TEXT_BREAK)
    if len(encoded) != len(values) or max(map(len, encoded)) > 1 + TEXT_BYTES_MAX + len(TEXT_END):
        raise NotOfType
    return encoded


def _encode_longs(number: int, values: list[Any]) -> list[bytes]:
    if not {int}.issuperset(map(type, values)):
        raise NotOfType
    pack = _NUMBERED_LONG.pack
    try:
        return [pack(number, value + _SIGN) for value in values]
    except struct.error:  # beyond 64 bits
        raise NotOfType from None


def _one_by_one(encode: Callable[[object], bytes]) -> ColumnEncoder:
    def encode_column(number: int, values: list[Any]) -> list[bytes]:
        head = bytes((number,))
        return [head + encode(value) for value in values]

    return encode_column


COLUMN_ENCODERS: Final[dict[IndexType, ColumnEncoder]] = {
    "string": _encode_strings,
    "long": _encode_longs,
    "double": _one_by_one(encode_double),
    "boolean": _one_by_one(encode_boolean),
    "timestamp": _one_by_one(encode_timestamp),
}
"""Encode the values of many rows, each behind the number of the index, as `ENCODERS` do. Raise NotOfType if one has to be looked
at alone."""

_WIDTHS: Final[dict[IndexType, int]] = {"long": 8, "double": 8, "boolean": 1, "timestamp": 8}

EXAMPLES: Final[dict[IndexType, str]] = {
    "string": "text",
    "long": "a whole number of 64 bits",
    "double": "a number, like 2.5 or -1e300",
    "boolean": "true or false",
    "timestamp": "a time like 2026-11-22T10:00:00Z, or milliseconds since 1970",
}
"""What a request writes for a value."""


def encode_parameter(text: str, type: IndexType, bound: bool) -> bytes:
    """Encode a value as a request writes it. Raises NotOfType. A `bound` of a range must have an order."""
    match type:
        case "string":
            encoded = encode_string(text)
            length = len(text.encode("utf-8", "surrogatepass"))
            if bound and length > TEXT_BYTES_MAX:
                raise TextTooLong(
                    f"has {length} bytes, and the bounds of a range have at most {TEXT_BYTES_MAX}"
                )
            return encoded
        case "boolean":
            if text not in _BOOLEANS:
                raise NotOfType
            return _BOOLEANS[text]
        case "timestamp":
            return encode_timestamp(text)
        case "long":
            if not _WHOLE_TEXT.fullmatch(text):
                raise NotOfType
            return encode_long(int(text))
        case "double":
            if len(text) > _NUMBER_CHARACTERS_MAX or not _NUMBER_TEXT.fullmatch(text):
                raise NotOfType
            return encode_double(float(text))


def value_end(entry: bytes, type: IndexType) -> int:
    """Return where the value of an entry ends and the row's key begins."""
    width = _WIDTHS.get(type)
    if width is not None:
        return 1 + width
    end = _TEXT.match(entry, 1)
    if end is None:
        raise ValueError("an index entry is malformed")
    return end.end() + (_DIGEST_BYTES if end[1] == b"\1" else 0)


def value_json(encoded: bytes, type: IndexType) -> tuple[bytes, bool]:
    """Return an encoded value, with its index number, as JSON, and whether it is only the beginning of a longer text."""
    raw = encoded[1:]
    match type:
        case "string":
            end = _TEXT.match(raw)
            assert end is not None
            text = raw[: end.end() - 2].replace(b"\0\xff", b"\0")
            cut = end[1] == b"\1"
            return json.dumps(_decoded(text, cut)).encode(), cut
        case "boolean":
            return (b"true" if raw == b"\1" else b"false"), False
        case "double":
            bits: int = _LONG.unpack(raw)[0]
            bits ^= _SIGN if bits & _SIGN else _FLIP_ALL
            return json.dumps(_DOUBLE.unpack(_LONG.pack(bits))[0]).encode(), False
        case "timestamp":
            return b'"%b"' % to_iso(_LONG.unpack(raw)[0] - _SIGN).encode(), False
        case "long":
            return b"%d" % (_LONG.unpack(raw)[0] - _SIGN), False


def _decoded(text: bytes, cut: bool) -> str:
    """Decode a text whose last character may be cut. JSON may have half of a surrogate pair."""
    if cut:
        for dropped in range(4):
            try:
                return text[: len(text) - dropped].decode("utf-8", "surrogatepass")
            except UnicodeDecodeError:
                continue
    return text.decode("utf-8", "surrogatepass")


def after_value(encoded: bytes) -> bytes:
    """Return the first key behind all entries of a value."""
    head = encoded.rstrip(b"\xff")  # never empty: it begins with the number of an index
    return head[:-1] + bytes((head[-1] + 1,))
