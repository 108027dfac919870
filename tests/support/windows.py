"""Compute windows in the simplest way, record by record: the oracle that tests compare a view with windows with.

The view counts records, and adds up, and keeps the first and the last of, one number of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from queryable_app.wire import contributions
from queryable_app.wire.contributions import ABSENT
from queryable_app.wire.row_frames import ROW, SliceRow

TYPES = "-l"
COLUMNS = [
    {"name": "n", "op": "count"},
    {"name": "total", "op": "sum", "of": "v"},
    {"name": "first", "op": "first", "of": "v"},
    {"name": "last", "op": "last", "of": "v"},
]
PRESENT = 2  # of an input without a value
HOUR_MS = 3_600_000
AHEAD_RECORDS = 10
TIME_MIN_MS = -62_135_596_800_000  # the year 1
TIME_MAX_MS = 253_402_300_799_999  # the year 9999


class Record(NamedTuple):
    key: bytes
    event_ms: int
    value: int | None
    """None: the filter of the number is not true."""


def view(**window: str) -> dict[str, Any]:
    """Return `spec.view` with a window."""
    return {"kind": "aggregate", "aggregate": {"window": window, "columns": COLUMNS}}


def row_of(offset: int, record: Record) -> SliceRow:
    """Return the row of a record as the writer sends it."""
    inputs = [PRESENT, ABSENT if record.value is None else record.value]
    stored = contributions.encode(TYPES, offset, record.event_ms, record.event_ms, inputs)
    return SliceRow(record.key, stored, ROW, offset)


@dataclass(frozen=True)
class Rules:
    """The windows of a view: a size and a slide, or a gap."""

    size: int
    slide: int
    grace: int
    retention: int
    gap: int = 0


@dataclass
class Expected:
    """What a view must have after some records."""

    windows: dict[tuple[bytes, int, int], list[tuple[int, Record]]]
    """Key, start and end → the records, with their offsets."""
    watermark: int | None
    late_of: Counter[bytes]
    """The late rows of each key."""

    @property
    def late(self) -> int:
        return self.late_of.total()

    def items(self, rules: Rules) -> dict[tuple[bytes, int, int], tuple[bool, dict[str, Any]]]:
        """Return what is readable: whether it is final, and its value."""
        mark = self.watermark if self.watermark is not None else -(1 << 70)
        return {
            window: (window[2] + rules.gap <= mark, _value(records))
            for window, records in self.windows.items()
            if mark <= window[2] + max(rules.retention, rules.gap)
        }


def _value(records: list[tuple[int, Record]]) -> dict[str, Any]:
    values = [record.value for _, record in sorted(records) if record.value is not None]
    return {
        "n": len(records),
        "total": sum(values) if values else None,
        "first": values[0] if values else None,
        "last": values[-1] if values else None,
    }


@dataclass
class SourceTime:
    """The event time of a source partition."""

    shown: int | None = None
    ahead: list[int] = field(default_factory=list)

    def advance(self, event_ms: int, far: int) -> None:
        if self.shown is None or event_ms > self.shown + far:
            self.ahead.append(event_ms)
            if len(self.ahead) == AHEAD_RECORDS:
                self.shown, self.ahead = min(self.ahead), []
        else:
            self.shown, self.ahead = max(self.shown, event_ms), []


def expected(records: Sequence[Record | None], rules: Rules) -> Expected:
    """Return what a view of these records, which are in offset order, must have. None: a record that adds nothing."""
    return expected_of_sources([(0, record) for record in records], rules, 1)


def expected_of_sources(
    arrivals: Sequence[tuple[int, Record | None]], rules: Rules, sources: int
) -> Expected:
    """Return what a view must have of records of several source partitions, each with its partition, in the order of the log.

    The order counts for the first and the last value, and otherwise only among the records of one source partition."""
    rows = [(source, [] if record is None else [record]) for source, record in arrivals]
    return expected_of_rows(rows, rules, sources)


def expected_of_rows(
    arrivals: Sequence[tuple[int, Sequence[Record]]], rules: Rules, sources: int
) -> Expected:
    """Return what a view must have of source records that each give several rows, of one event time."""
    far = max(HOUR_MS, (rules.size or rules.gap) + rules.grace)
    times = [SourceTime() for _ in range(sources)]
    late: Counter[bytes] = Counter()
    windows: dict[tuple[bytes, int, int], list[tuple[int, Record]]] = {}
    sessions: dict[bytes, Sessions] = {}
    for offset, (source, rows) in enumerate(arrivals):
        if rows and TIME_MIN_MS <= rows[0].event_ms <= TIME_MAX_MS:
            times[source].advance(rows[0].event_ms, far)
        clock = times[source].shown
        open_after = -(1 << 70) if clock is None else clock - rules.grace
        for row in rows:
            if not TIME_MIN_MS <= row.event_ms <= TIME_MAX_MS:
                late[row.key] += 1
                continue
            if rules.gap:
                joins = _join_session(sessions.setdefault(row.key, {}), offset, row, rules.gap, open_after)
                late[row.key] += not joins
                continue
            latest = row.event_ms // rules.slide * rules.slide
            starts = [
                start
                for start in range(latest, row.event_ms - rules.size, -rules.slide)
                if start + rules.size > open_after
            ]
            late[row.key] += not starts
            for start in starts:
                windows.setdefault((row.key, start, start + rules.size), []).append((offset, row))
    windows |= {(key, *time): joined for key, of_key in sessions.items() for time, joined in of_key.items()}
    shown = [each.shown for each in times if each.shown is not None]
    return Expected(windows, min(shown) - rules.grace if len(shown) == sources else None, late)


Sessions = dict[tuple[int, int], list[tuple[int, Record]]]
"""The sessions of one key: start and end → the records, with their offsets."""


def _join_session(
    sessions: Sessions,
    offset: int,
    record: Record,
    gap: int,
    open_after: int,
) -> bool:
    """Add a record to the sessions of its key, and return whether it was in time."""
    start, end = record.event_ms, record.event_ms + gap
    if end <= open_after:
        return False
    joined = [(offset, record)]
    for time in [each for each in sessions if each[0] <= end and start <= each[1]]:
        joined += sessions.pop(time)
    times = [each.event_ms for _, each in joined]
    sessions[min(times), max(times) + gap] = joined
    return True
