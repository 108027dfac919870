"""Fold records into entries in the simplest way, record by record: the oracle that tests compare a view of entries with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from queryable_app.aggregates.entry_keys import shifted
from queryable_app.wire.disk_format import Row, encode_row
from queryable_app.wire.row_frames import DROPPED, ROW, SliceRow

HOUR_MS = 3_600_000
AHEAD_RECORDS = 10
MADE_MS = 5  # the timestamp of every record


class Record(NamedTuple):
    """A record with the time that its value has."""

    key: bytes
    time_ms: int
    value: bytes | None = b"{}"
    """None: a tombstone."""
    dropped: bool = False
    """The view's filter drops it."""


class Entry(NamedTuple):
    """What a read must have, in its order."""

    time_ms: int
    offset: int
    value: bytes


def row_of(offset: int, record: Record) -> SliceRow:
    """Return the row of a record as the writer sends it."""
    if record.dropped:
        return SliceRow(record.key, b"", DROPPED, offset)
    expiry = 0 if record.value is None else shifted(record.time_ms)
    return SliceRow(record.key, encode_row(Row(offset, MADE_MS, expiry, record.value)), ROW, offset)


@dataclass
class Fold:
    """The entries of one partition."""

    entries: dict[bytes, list[Entry]] = field(default_factory=dict)
    oldest_ms: int = -(1 << 70)
    late: int = 0

    def between(
        self, key: bytes, first_ms: int | None = None, after_ms: int | None = None, newest_first: bool = False
    ) -> list[Entry]:
        found = [
            entry
            for entry in self.entries.get(key, [])
            if entry.time_ms >= self.oldest_ms
            and (first_ms is None or entry.time_ms >= first_ms)
            and (after_ms is None or entry.time_ms < after_ms)
        ]
        return sorted(found, reverse=newest_first)


def folded(records: Sequence[Record], retention_ms: int | None = None) -> Fold:
    """Return what a partition with these records, which are in offset order, must have."""
    fold = Fold()
    newest: int | None = None
    ahead: list[int] = []
    for offset, (key, time_ms, value, dropped) in enumerate(records):
        if dropped:
            continue
        if value is None:
            fold.entries.pop(key, None)
            continue
        if newest is None or time_ms > newest + HOUR_MS:
            ahead.append(time_ms)
            if len(ahead) == AHEAD_RECORDS:
                newest, ahead = min(ahead), []
        else:
            newest, ahead = max(newest, time_ms), []
        if newest is not None and retention_ms is not None:
            fold.oldest_ms = newest - retention_ms
        if time_ms < fold.oldest_ms:
            fold.late += 1
        else:
            fold.entries.setdefault(key, []).append(Entry(time_ms, offset, value))
    return fold


def view(time_field: str = "at", **entries: Any) -> dict[str, Any]:
    """Return `spec.view` with entries."""
    return {"entries": {"timeField": time_field, **entries}}
