"""Decide which windows a record belongs to, and when a window is final and when it expires.

Strategy: everything follows from event times in offset order. The watermark is the partition's clock minus the grace. A window
takes no record once it is final, and is readable until the watermark passes its end by the retention. In a rekeyed view each
record is taken or late by the clock of its source partition, and the watermark is the least one of all source partitions.

A row stores when its window expires, in event time, because a session's end is not in its key. The field of the row header has no
sign, so the time is stored with its sign bit flipped; no comparison with the machine's clock takes such a row for expired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from queryable_app.aggregates.clock import AHEAD_MS_MIN, NO_TIME_MS, TIME_MAX_MS, TIME_MIN_MS, Clock
from queryable_app.config.aggregate_spec import WindowSpec

_SIGN: Final = 1 << 63


class Window(NamedTuple):
    """The interval `[start_ms, end_ms)`, and whether later records can change what it holds."""

    start_ms: int
    end_ms: int
    final: bool


def ahead_ms(spec: WindowSpec) -> int:
    """Return how far ahead of the clock a time is far ahead."""
    return max(AHEAD_MS_MIN, (spec.size_ms or spec.gap_ms) + spec.grace_ms)


class Windows:
    """Assign records to windows as one view declares them."""

    def __init__(self, spec: WindowSpec) -> None:
        self.gap_ms = spec.gap_ms
        """The silence that ends a session; 0: windows have a fixed size."""
        self.size_ms = spec.size_ms
        self.slide_ms = spec.slide_ms or spec.size_ms
        self._grace_ms = spec.grace_ms
        self.ahead_ms = ahead_ms(spec)
        # A session may grow until its end is a gap in the past, so it stays at least as long.
        self._kept_ms = max(spec.retention_ms, spec.gap_ms)

    def watermark(self, max_event_ms: int) -> int:
        """Return the time before which every window is final, given the time that a partition's clock shows."""
        return max_event_ms - self._grace_ms

    def take(self, clock: Clock, event_ms: int) -> Sequence[int]:
        """Advance the clock by a record, and return the starts of the windows that take it. None: it is late, and is counted.

        A session starts at its first record, so the record's own time is returned for it. Times outside of the years 1 to 9999
        move no clock and belong to no window.
        """
        clock.advance(event_ms, self.ahead_ms)
        return self.take_at(clock, event_ms, clock.max_event_ms)

    def take_at(self, clock: Clock, event_ms: int, max_event_ms: int) -> Sequence[int]:
        """Return the starts of the windows that take a record whose source partition shows `max_event_ms`. `clock` counts late
        ones."""
        if TIME_MIN_MS <= event_ms <= TIME_MAX_MS:
            starts = self._open_starts(event_ms, max_event_ms - self._grace_ms)
            if starts:
                return starts
        clock.late += 1
        return ()

    def containing(self, time_ms: int) -> Sequence[int]:
        """Return the starts of the windows of a fixed size that contain a time."""
        return self._open_starts(time_ms, NO_TIME_MS)

    def _open_starts(self, event_ms: int, watermark: int) -> Sequence[int]:
        if self.gap_ms:
            return (event_ms,) if event_ms + self.gap_ms > watermark else ()
        slide, size = self.slide_ms, self.size_ms
        last = event_ms - event_ms % slide
        if slide == size:
            return (last,) if last + size > watermark else ()
        first = max(event_ms, watermark) - size  # windows that start here have ended
        return range(first - first % slide + slide, last + 1, slide)

    def expiry(self, end_ms: int) -> int:
        """Return what the row of a window has as its expiry."""
        return end_ms + self._kept_ms + _SIGN

    def expired(self, expiry: int, watermark: int) -> bool:
        """Return whether a row with this expiry is no longer readable."""
        return watermark > expiry - _SIGN

    def live_from(self, watermark: int) -> int:
        """Return the least expiry of a row that is still readable."""
        return max(0, watermark + _SIGN)

    def end(self, expiry: int) -> int:
        """Return the end of the window whose row has this expiry."""
        return expiry - _SIGN - self._kept_ms

    def window(self, start_ms: int, expiry: int, watermark: int) -> Window:
        """Return the window of a row, as of a watermark."""
        end_ms = self.end(expiry)
        return Window(start_ms, end_ms, end_ms + self.gap_ms <= watermark)
