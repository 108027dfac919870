"""Parse `spec.read.writes`: the bounds of what clients write over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from queryable_app.config.spec_fields import SpecError, duration_ms, whole

_BYTES_PER_SECOND_MIN: Final = 1024
_BYTES_PER_SECOND_MAX: Final = 1 << 40
_RECORD_BYTES_MAX: Final = 64 << 20
_WINDOW_MS_MAX: Final = 86_400_000
_FIELDS: Final = ("maxBytesPerSecond", "maxRecordBytes", "idempotencyWindow")


@dataclass(frozen=True, slots=True)
class Writes:
    bytes_per_second_max: int | None = None
    """The bytes that one caller may send to one node in a second."""
    record_bytes_max: int | None = None
    """The bytes that a key and its value may have together."""
    window_ms: int = 600_000
    """For how long a node remembers a request with an Idempotency-Key."""


def parse_writes(writes: object) -> Writes:
    path = "spec.read.writes"
    if not isinstance(writes, Mapping):
        raise SpecError(f"{path}: write an object with {', '.join(_FIELDS)}")
    rate, record = writes.get("maxBytesPerSecond"), writes.get("maxRecordBytes")
    if (
        rate is not None
        and whole(rate, _BYTES_PER_SECOND_MAX, f"{path}.maxBytesPerSecond") < _BYTES_PER_SECOND_MIN
    ):
        raise SpecError(f"{path}.maxBytesPerSecond: write {_BYTES_PER_SECOND_MIN} or more")
    return Writes(
        rate,
        None if record is None else whole(record, _RECORD_BYTES_MAX, f"{path}.maxRecordBytes"),
        _window_ms(writes, f"{path}.idempotencyWindow"),
    )


def _window_ms(writes: Mapping[str, Any], path: str) -> int:
    given = writes.get("idempotencyWindow", "10m")
    if not isinstance(given, str):
        raise SpecError(f"{path}: write a duration, such as 10m")
    window = duration_ms(given, path)
    if not 1000 <= window <= _WINDOW_MS_MAX:
        raise SpecError(f"{path}: write a duration of 1s to 1d")
    return window
