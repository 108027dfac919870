"""Decide which entries of a key are retained.

Strategy: everything follows from the times of the records of a partition, in offset order. An entry is readable until the
partition's clock is past its time by the retention. The clock passes over times far ahead, as that of windows does, so one wrong
producer does not expire what the others wrote.

A row stores its entry's time in place of its expiry, with the sign bit flipped; no comparison with the machine's clock takes such
a row for expired.
"""

from __future__ import annotations

from queryable_app.aggregates.clock import AHEAD_MS_MIN, NO_TIME_MS, Clock
from queryable_app.aggregates.entry_keys import shifted, time_of
from queryable_app.config.entries import EntriesSpec


class EntryRetention:
    """Retain entries as one view declares it."""

    def __init__(self, spec: EntriesSpec) -> None:
        self.retention_ms = spec.retention_ms

    def take(self, clock: Clock, shifted_time: int) -> bool:
        """Advance the clock by a record, and return whether its entry is retained. If not, it is late, and is counted."""
        time_ms = time_of(shifted_time)
        clock.advance(time_ms, AHEAD_MS_MIN)
        if time_ms >= self.watermark(clock.max_event_ms):
            return True
        clock.late += 1
        return False

    def watermark(self, max_event_ms: int) -> int:
        """Return the time of the oldest entry that is retained, given the time that a partition's clock shows."""
        return NO_TIME_MS if self.retention_ms is None else max(NO_TIME_MS, max_event_ms - self.retention_ms)

    def expired(self, shifted_time: int, watermark: int) -> bool:
        """Return whether an entry is no longer readable."""
        return time_of(shifted_time) < watermark

    def live_from(self, watermark: int) -> int:
        """Return the least time, as a row has it, of an entry that is still readable."""
        return shifted(watermark)
