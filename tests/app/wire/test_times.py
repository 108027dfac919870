"""Test times as text: in every year, with every zone, and what is no time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queryable_app.wire.times import parse_time, to_iso

TEN = int(datetime(2026, 11, 22, 10, tzinfo=UTC).timestamp() * 1000)


@given(st.integers(-(10**17), 10**17) | st.integers(-62_135_596_800_000, 253_402_300_799_999))
@example(-62_135_596_800_001)
@example(253_402_300_800_000)
def test_time_survives_as_text(time_ms: int) -> None:
    """A time is the same after it was written as ISO 8601 and parsed, in any year."""
    assert parse_time(to_iso(time_ms)) == time_ms


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (TEN + 1, "2026-11-22T10:00:00.001Z"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (-62_135_596_800_001, "+000000-12-31T23:59:59.999Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "+010000-01-01T00:00:00.000Z"),
    ],
)
def test_time_as_text(time_ms: int, text: str) -> None:
    """A time is written with milliseconds in UTC, and other years than four digits with a sign."""
    assert to_iso(time_ms) == text


@pytest.mark.parametrize(
    "text",
    [
        str(TEN),
        "2026-11-22T10:00:00Z",
        "2026-11-22T10:00",
        "2026-11-22 10:00",
        "2026-11-22T11:30:00+01:30",
        "2026-11-22T11:30:00 01:30",
        "2026-11-22T05:00:00.000-05:00",
    ],
)
def test_ways_to_write_a_time(text: str) -> None:
    """A time is a number of milliseconds or ISO 8601, with a zone or in UTC."""
    assert parse_time(text) == TEN


@pytest.mark.parametrize(
    "text", ["", "now", "1.5", "2026-13-01", "9" * 19, "2026-11-22T25:00", "٣", "1" * 99]
)
def test_text_that_is_no_time(text: str) -> None:
    """Any other text is no time."""
    assert parse_time(text) is None


@given(st.text(max_size=60))
def test_any_text_is_a_time_or_none(text: str) -> None:
    """No text raises."""
    parse_time(text)
