"""Test the parsing of `spec.read.writes`."""

from __future__ import annotations

from typing import Any

import pytest

from queryable_app.config.spec_fields import SpecError
from queryable_app.config.writes import Writes, parse_writes


def test_bounds_are_read() -> None:
    """Each field has a bound of its own; what is absent has none, and the window is ten minutes."""
    assert parse_writes({}) == Writes(None, None, 600_000)
    given = {"maxBytesPerSecond": 2048, "maxRecordBytes": 100, "idempotencyWindow": "1h"}
    assert parse_writes(given) == Writes(2048, 100, 3_600_000)


@pytest.mark.parametrize(
    ("writes", "message"),
    [
        (True, "spec.read.writes: write an object"),
        ({"maxBytesPerSecond": 10}, "spec.read.writes.maxBytesPerSecond: write 1024 or more"),
        ({"maxBytesPerSecond": "1k"}, "spec.read.writes.maxBytesPerSecond: write a whole number"),
        ({"maxRecordBytes": 0}, "spec.read.writes.maxRecordBytes: write a whole number"),
        ({"maxRecordBytes": True}, "spec.read.writes.maxRecordBytes: write a whole number"),
        ({"idempotencyWindow": 5}, "spec.read.writes.idempotencyWindow: write a duration, such as 10m"),
        ({"idempotencyWindow": "10ms"}, "spec.read.writes.idempotencyWindow: write a duration of 1s to 1d"),
        ({"idempotencyWindow": "2d"}, "spec.read.writes.idempotencyWindow: write a duration of 1s to 1d"),
    ],
)
def test_wrong_bound_names_its_field(writes: Any, message: str) -> None:
    """The message names the field and what to write."""
    with pytest.raises(SpecError, match=message):
        parse_writes(writes)
