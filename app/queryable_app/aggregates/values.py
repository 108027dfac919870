"""Order, encode and render the values that aggregates keep, by the type character of a contribution.

Strategy: a value is what `wire/contributions.py` decodes. Its bytes are canonical: equal values of a column have equal bytes.
JSON is that of Spark's `to_json`: timestamps in ISO 8601 and UTC, decimals with their scale, binary as base64, and what is no
finite number as a string.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any, Final

from queryable_app.wire.contributions import Decimal, twos_complement

FIXED: Final = {"l": "q", "t": "q", "D": "q", "d": "d", "f": "d", "b": "B"}
"""The `struct` character of each type whose values have one length."""

_DOUBLE: Final = struct.Struct(">d")
_FLOAT: Final = struct.Struct(">f")
_NAN: Final = _DOUBLE.pack(math.nan)
_FLOAT_DIGITS: Final = range(1, 10)  # nine digits tell all floats apart
_DAY_SECONDS: Final = 86_400
_to_json: Final = json.JSONEncoder(ensure_ascii=False).encode


def to_bytes(value: Any, type: str) -> bytes:
    """Return the canonical bytes of a value."""
    if type in "sx":
        return bytes(value)
    if type == "n":
        return bytes((value.scale,)) + twos_complement(value.unscaled)
    if type in "df":
        return _NAN if value != value else _DOUBLE.pack(value + 0.0)  # -0.0 equals 0.0
    if type == "b":
        return bytes((value,))
    return int(value).to_bytes(8, "big", signed=True)


def from_bytes(raw: bytes, type: str) -> Any:
    """Return the value of canonical bytes."""
    if type in "sx":
        return raw
    if type == "n":
        return Decimal(int.from_bytes(raw[1:], "big", signed=True), raw[0])
    if type in "df":
        return _DOUBLE.unpack(raw)[0]
    if type == "b":
        return raw[0]
    return int.from_bytes(raw, "big", signed=True)


def is_less(left: Any, right: Any, type: str) -> bool:
    """Compare two values as Spark does: NaN is the greatest number, and strings compare by their UTF-8 bytes."""
    if type == "n":
        return is_less_decimal(left, right)
    is_double: bool = type in "df"
    return bool(left < right or (is_double and right != right and left == left))


def is_less_decimal(left: Decimal, right: Decimal) -> bool:
    if left.scale == right.scale:
        return left.unscaled < right.unscaled
    return bool(left.unscaled * 10**right.scale < right.unscaled * 10**left.scale)


def value_json(value: Any, type: str) -> str:
    """Return the JSON of a value."""
    if type in "l":
        return str(value)
    if type == "s":
        return _to_json(value.decode(errors="replace"))
    if type == "d":
        return double_json(value)
    if type == "f":
        return _float_json(value)
    if type == "n":
        return decimal_json(value)
    if type == "b":
        return "true" if value else "false"
    if type == "t":
        return f'"{timestamp_text(value)}"'
    if type == "D":
        return f'"{_date_text(value)}"'
    return f'"{base64.b64encode(value).decode()}"'


def double_json(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'


def _float_json(value: float) -> str:
    """Return the shortest number that no other float is nearer to."""
    if not math.isfinite(value):
        return double_json(value)
    for digits in _FLOAT_DIGITS:
        shown = float(f"{value:.{digits}g}")
        if abs(shown) <= 3.4028235677973362e38 and _FLOAT.unpack(_FLOAT.pack(shown))[0] == value:
            return repr(shown)
    return repr(value)


def decimal_json(value: Decimal) -> str:
    """Return a plain number with all digits of the scale."""
    unscaled, scale = value
    if scale == 0:
        return str(unscaled)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def timestamp_text(micros: int) -> str:
    """Return a timestamp in UTC. Years before 1 and after 9999 have a sign, which no datetime can express."""
    seconds, fraction = divmod(micros, 1_000_000)
    days, second = divmod(seconds, _DAY_SECONDS)
    return (
        f"{_date_text(days)}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        f".{fraction // 1000:03}Z"
    )


def _date_text(days: int) -> str:
    """Return the proleptic Gregorian date of a day since 1970."""
    # Years begin in March here, so that a leap day ends one; an era has 400 years and 146 097 days.
    era, day = divmod(days + 719_468, 146_097)
    year_of_era = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year_of_era + year_of_era // 4 - year_of_era // 100
    month = (5 * day + 2) // 153
    day_of_month = day - (153 * month + 2) // 5 + 1
    year = year_of_era + 400 * era + (month >= 10)
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04}-{(month + 2) % 12 + 1:02}-{day_of_month:02}"
