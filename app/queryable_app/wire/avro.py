"""Encode JSON as Avro, in Avro's binary or its own JSON encoding, by the mapping of docs/formats.md.

Strategy: JSON becomes a datum first, in which the branch of each union is known, and the datum is written. A union takes the
first branch that fits. The number of attempts is bounded, since unions inside unions could take exponential time.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from queryable_app.config.avro_schema import AvroField, AvroType
from queryable_app.errors import shown
from queryable_app.wire.varints import varint, zigzag

_WIDTHS: Final = {"int": 32, "long": 64}
_REALS: Final = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DIGITS: Final = {"millis": 3, "micros": 6, "nanos": 9}
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?")
_DATE: Final = re.compile(r"([+-]?[0-9]{4,10})-([0-9]{2})-([0-9]{2})")
_MONTH_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_STEPS_MIN: Final = 10_000
_DEPTH_MAX: Final = 100


class AvroMismatch(ValueError):
    """Report a value that the schema cannot have; the message continues a sentence about it."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """Hold the datum of a union: the index of the branch, and its own datum."""

    index: int
    datum: Any


def avro_bytes(schema: AvroType, value_json: bytes) -> bytes:
    """Return a JSON text in Avro's binary encoding. Raises AvroMismatch."""
    out = bytearray()
    _write(schema, _datum(schema, value_json), out)
    return bytes(out)


def avro_json(schema: AvroType, value_json: bytes) -> bytes:
    """Return a JSON text in Avro's JSON encoding: unions name their branch, bytes are characters. Raises AvroMismatch."""
    datum = _shown(schema, _datum(schema, value_json))
    return json.dumps(datum, ensure_ascii=False, separators=(",", ":")).encode()


def _datum(schema: AvroType, value_json: bytes) -> Any:
    try:
        value = json.loads(value_json, parse_float=Decimal)
    except (ValueError, RecursionError):
        raise AvroMismatch("is not JSON") from None
    return _Encoding(_STEPS_MIN + 4 * len(value_json)).datum(schema, value, 0)


class _Encoding:
    """Turn the parsed JSON of one value into a datum."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def datum(self, schema: AvroType, value: Any, depth: int) -> Any:
        self._steps -= 1
        if self._steps < 0:
            raise AvroMismatch("has too many unions in which no branch fits")
        if depth > _DEPTH_MAX:
            raise AvroMismatch(f"is nested deeper than {_DEPTH_MAX}")
        if schema.kind == "union":
            return self._branch(schema, value, depth)
        if schema.kind == "record":
            return self._record(schema, value, depth)
        if schema.kind == "array":
            if not isinstance(value, list):
                raise _no(value, "array")
            assert schema.items is not None
            return [self.datum(schema.items, each, depth + 1) for each in value]
        if schema.kind == "map":
            if not isinstance(value, dict):
                raise _no(value, "map")
            assert schema.items is not None
            return {name: self.datum(schema.items, each, depth + 1) for name, each in value.items()}
        return _scalar(schema, value)

    def _branch(self, schema: AvroType, value: Any, depth: int) -> _Branch:
        failed = None
        for index, branch in enumerate(schema.branches):
            try:
                return _Branch(index, self.datum(branch, value, depth))
            except AvroMismatch as mismatch:
                failed = mismatch if branch.kind != "null" else failed
                if self._steps < 0:
                    raise
        raise failed or _no(value, "null")

    def _record(self, schema: AvroType, value: Any, depth: int) -> list[Any]:
        if not isinstance(value, dict):
            raise _no(value, f"record {schema.name}")
        if unknown := value.keys() - {field.name for field in schema.fields}:
            raise AvroMismatch(f"has the member {shown(min(unknown))}, and {schema.name} has no such field")
        return [self._field(field, value, depth) for field in schema.fields]

    def _field(self, field: AvroField, members: Mapping[str, Any], depth: int) -> Any:
        if field.name not in members:
            if not field.has_default:
                raise AvroMismatch(f"lacks the member {field.name}")
            return _default(field.type, field.default)
        try:
            return self.datum(field.type, members[field.name], depth + 1)
        except AvroMismatch as mismatch:
            raise AvroMismatch(f"{field.name}: {mismatch}") from None


def _default(schema: AvroType, default: Any) -> Any:
    """Return the datum of a default, which is in Avro's own JSON; that of a union is of its first branch, or of one that fits."""
    if schema.kind == "union":
        for index, branch in enumerate(schema.branches):
            if (branch.kind == "null") == (default is None):
                return _Branch(index, _default(branch, default))
        raise _no(default, "default")
    if schema.kind == "record":
        return [_default(field.type, default.get(field.name, field.default)) for field in schema.fields]
    if schema.kind == "array":
        return [_default(schema.items, each) for each in default]  # type: ignore[arg-type]
    if schema.kind == "map":
        return {name: _default(schema.items, each) for name, each in default.items()}  # type: ignore[arg-type]
    if schema.kind in ("bytes", "fixed"):
        return str(default).encode("latin-1")
    return _plain(schema, default)


def _scalar(schema: AvroType, value: Any) -> Any:
    logical = schema.logical
    if logical == "decimal":
        return _decimal(schema, value)
    if logical == "uuid" and schema.kind == "fixed":
        return _uuid(value)
    if logical in ("", "uuid"):
        return _bytes(schema, value) if schema.kind in ("bytes", "fixed") else _plain(schema, value)
    if not isinstance(value, str):
        raise _no(value, logical)
    count = _count(logical, value)
    if count is None:
        raise _no(value, logical)
    return _whole(schema.kind, count)


def _plain(schema: AvroType, value: Any) -> Any:
    kind = schema.kind
    if (kind == "null" and value is None) or (kind == "boolean" and isinstance(value, bool)):
        return value
    if kind == "string" and isinstance(value, str):
        return value
    if kind == "enum" and value in schema.symbols:
        return value
    if kind in _WIDTHS:
        return _whole(kind, value)
    if kind in _REALS:
        return _real(kind, value)
    raise _no(value, kind if kind != "enum" else f"symbol of {schema.name}")


def _whole(kind: str, value: Any) -> int:
    top = 1 << (_WIDTHS[kind] - 1)
    if not isinstance(value, int) or isinstance(value, bool) or not -top <= value < top:
        raise _no(value, kind)
    return value


def _real(kind: str, value: Any) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if not isinstance(value, int | float | Decimal) or isinstance(value, bool):
        raise _no(value, kind)
    try:
        number = float(value)
        _REALS[kind].pack(number)
    except OverflowError:
        raise _no(value, kind) from None
    if not math.isfinite(number):
        raise _no(value, kind)
    return number


def _bytes(schema: AvroType, value: Any) -> bytes:
    try:
        data = base64.b64decode(value, validate=True)
    except (TypeError, binascii.Error, ValueError):
        raise AvroMismatch(f"{shown(value)} is not base64") from None
    return _sized(schema, data, value)


def _sized(schema: AvroType, data: bytes, value: Any) -> bytes:
    if schema.kind == "fixed" and len(data) != schema.size:
        raise AvroMismatch(f"{shown(value)} has {len(data)} bytes, and {schema.name} has {schema.size}")
    return data


def _uuid(value: Any) -> bytes:
    try:
        return uuid.UUID(value).bytes
    except (ValueError, AttributeError, TypeError):
        raise _no(value, "uuid") from None


def _decimal(schema: AvroType, value: Any) -> bytes:
    if not isinstance(value, int | Decimal) or isinstance(value, bool):
        raise _no(value, "decimal")
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    if len(digits) + max(exponent, 0) > 1000 or exponent < -1000:
        raise _no(value, "decimal")
    unscaled: int = int("".join(map(str, digits)))
    shift = exponent + schema.scale
    if shift < 0 and unscaled % 10**-shift:
        raise AvroMismatch(f"{shown(value)} has more than {schema.scale} decimals")
    unscaled = unscaled * 10**shift if shift >= 0 else unscaled // 10**-shift
    if unscaled >= 10**schema.precision:
        raise AvroMismatch(f"{shown(value)} has more than {schema.precision} digits")
    if value < 0:
        unscaled = -unscaled
    width = (
        schema.size
        if schema.kind == "fixed"
        else (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    )
    try:
        encoded: bytes = unscaled.to_bytes(width, "big", signed=True)
    except OverflowError:
        raise AvroMismatch(f"{shown(value)} does not fit into {schema.name}") from None
    return encoded


def _count(logical: str, text: str) -> int | None:
    """Return a date or a time as the number that Avro has for it."""
    if logical == "date":
        return _days(text)
    digits = _DIGITS[logical.rpartition("-")[2]]
    if logical.startswith("time-"):
        return _fraction(text, digits)
    date, _, time = text.partition("T")
    if not logical.startswith("local-"):
        if not time.endswith("Z"):
            return None
        time = time[:-1]
    days, within = _days(date), _fraction(time, digits)
    return None if days is None or within is None else days * 86_400 * 10**digits + within


def _days(text: str) -> int | None:
    """Return the days since 1970, in the calendar of today for all years."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    year, month, day = (int(group) for group in match.groups())
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if (
        not 1 <= month <= 12
        or not 1 <= day <= _MONTH_DAYS[month - 1]
        or (month == 2 and day == 29 and not leap)
    ):
        return None
    year -= month <= 2  # a year that begins in March ends with its leap day
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return 365 * year + year // 4 - year // 100 + year // 400 + of_year - 719_468


def _fraction(text: str, digits: int) -> int | None:
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    hours, minutes, seconds = (int(match[n]) for n in (1, 2, 3))
    fraction = (match[4] or "").ljust(digits, "0")
    unit: int = 10**digits
    if hours > 23 or minutes > 59 or seconds > 59 or fraction[digits:].strip("0"):
        return None
    return (hours * 3600 + minutes * 60 + seconds) * unit + int(fraction[:digits])


def _no(value: Any, what: str) -> AvroMismatch:
    return AvroMismatch(f"{shown(value)} is no {what}")


def _write(schema: AvroType, datum: Any, out: bytearray) -> None:
    kind = schema.kind
    if kind == "union":
        _number(datum.index, out)
        _write(schema.branches[datum.index], datum.datum, out)
    elif kind == "record":
        for field, each in zip(schema.fields, datum, strict=True):
            _write(field.type, each, out)
    elif kind in ("array", "map"):
        _items(schema, datum, out)
    elif kind in _WIDTHS:
        _number(datum, out)
    elif kind in _REALS:
        out += _REALS[kind].pack(datum)
    elif kind == "boolean":
        out.append(datum)
    elif kind == "enum":
        _number(schema.symbols.index(datum), out)
    elif kind == "fixed":
        out += datum
    elif kind != "null":
        data = _utf8(datum) if kind == "string" else datum
        _number(len(data), out)
        out += data


def _items(schema: AvroType, datum: Any, out: bytearray) -> None:
    assert schema.items is not None
    if datum:
        _number(len(datum), out)
    for each in datum:
        if schema.kind == "map":
            name = _utf8(each)
            _number(len(name), out)
            out += name
        _write(schema.items, datum[each] if schema.kind == "map" else each, out)
    out.append(0)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise AvroMismatch(f"{shown(text)} has half of a surrogate pair") from None


def _number(number: int, out: bytearray) -> None:
    out += varint(zigzag(number))


def _shown(schema: AvroType, datum: Any) -> Any:
    """Return the datum as Avro's JSON encoding has it."""
    kind = schema.kind
    if kind == "union":
        branch = schema.branches[datum.index]
        return None if branch.kind == "null" else {branch.name or branch.kind: _shown(branch, datum.datum)}
    if kind == "record":
        return {
            field.name: _shown(field.type, each) for field, each in zip(schema.fields, datum, strict=True)
        }
    if kind in ("array", "map"):
        assert schema.items is not None
        if kind == "array":
            return [_shown(schema.items, each) for each in datum]
        return {name: _shown(schema.items, each) for name, each in datum.items()}
    if kind in ("bytes", "fixed"):
        return datum.decode("latin-1")
    if kind in _REALS and not math.isfinite(datum):
        return "NaN" if math.isnan(datum) else "Infinity" if datum > 0 else "-Infinity"
    return datum
