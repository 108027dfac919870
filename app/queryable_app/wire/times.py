"""Convert times between text and milliseconds since the epoch, UTC, also before the year 1 and after 9999.

Strategy: the calendar repeats every 400 years, so a year that `datetime` does not have is moved by whole cycles. Such a year is
written with a sign and six digits, as ISO 8601 extends it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_FIRST_MS: Final = -62_135_596_800_000  # of the year 1
_LAST_MS: Final = 253_402_300_799_999  # of the year 9999
_CYCLE_YEARS: Final = 400
_CYCLE_MS: Final = 146_097 * 86_400_000
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_EXTENDED: Final = re.compile(r"([+-][0-9]{6,9})(-.{1,40})")
_TEXT_MAX: Final = 50


def to_iso(time_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, with milliseconds."""
    if _FIRST_MS <= time_ms <= _LAST_MS:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")[:-6] + "Z"
    cycles, within = divmod(time_ms, _CYCLE_MS)
    moved = _EPOCH + timedelta(milliseconds=within)
    text = moved.isoformat(timespec="milliseconds")[4:-6]
    return f"{moved.year + cycles * _CYCLE_YEARS:+07d}{text}Z"


def parse_time(text: str) -> int | None:
    """Return the milliseconds of a time that is ISO 8601 or a whole number of milliseconds; None for any other text.

    A time without a zone is UTC. The `+` of a zone may have become a space, as in a URL.
    """
    if _NUMBER.fullmatch(text):
        number = int(text)
        return number if -(1 << 63) <= number < 1 << 63 else None
    if len(text) > _TEXT_MAX or not text.isascii():
        return None
    if "T" in text:
        text = text.replace(" ", "+")
    cycles = 0
    if extended := _EXTENDED.fullmatch(text):
        cycles, year = divmod(int(extended[1]) - 2000, _CYCLE_YEARS)
        text = f"{2000 + year}{extended[2]}"
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    time_ms = (parsed - _EPOCH) // _MILLISECOND + cycles * _CYCLE_MS
    return time_ms if -(1 << 63) <= time_ms < 1 << 63 else None
