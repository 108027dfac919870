"""Track the event time of one partition, in offset order, so that every replica closes the same windows.

Strategy: the clock shows the greatest event time so far. A time far ahead of it may come from a producer whose clock is wrong. So
it moves the clock only when several records in a row are that far ahead, and then to the least of their times. A new clock shows
no time, and every time is far ahead of it, so a wrong first record closes no window either.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

AHEAD_RECORDS: Final = 10
"""So many records in a row that are far ahead move the clock."""
AHEAD_MS_MIN: Final = 3_600_000
"""No time less than this ahead of the clock counts as far ahead."""
TIME_MIN_MS: Final = -62_135_596_800_000
"""The first millisecond of the year 1. Earlier times belong to no window."""
TIME_MAX_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999. Later times belong to no window."""

NO_TIME_MS: Final = -(1 << 63)
"""What a clock shows before it shows a time: no window is final then."""

_CLOCK: Final = struct.Struct(">qQqQ")
_SOURCE_CLOCK: Final = struct.Struct(">qBq")
SOURCE_CLOCK_SIZE: Final = _SOURCE_CLOCK.size


class Clock:
    """Hold the event time of a partition, and how many of its records were late. Stored with the rows that it describes."""

    __slots__ = ("ahead_count", "ahead_min_ms", "late", "max_event_ms")

    def __init__(
        self, max_event_ms: int = NO_TIME_MS, ahead_count: int = 0, ahead_min_ms: int = 0, late: int = 0
    ) -> None:
        self.max_event_ms = max_event_ms
        """The greatest event time, except for those far ahead."""
        self.ahead_count = ahead_count
        """How many records in a row were far ahead."""
        self.ahead_min_ms = ahead_min_ms
        """The least event time of those; without meaning if there are none."""
        self.late = late
        """How many records no window took."""

    def advance(self, event_ms: int, ahead_ms: int) -> None:
        """Take the event time of the next record. `ahead_ms` says how far ahead is far. Times outside of the years 1 to 9999
        do not count. `ingest/writer/SourceClock.java` has the same rule."""
        if not TIME_MIN_MS <= event_ms <= TIME_MAX_MS:
            return
        if event_ms <= self.max_event_ms:
            self.ahead_count = 0
        elif event_ms - self.max_event_ms <= ahead_ms:
            self.max_event_ms = event_ms
            self.ahead_count = 0
        else:
            self.ahead_min_ms = min(self.ahead_min_ms, event_ms) if self.ahead_count else event_ms
            self.ahead_count += 1
            if self.ahead_count == AHEAD_RECORDS:
                self.max_event_ms = self.ahead_min_ms
                self.ahead_count = 0

    @property
    def shows_time(self) -> bool:
        """Return whether enough records have been read for the clock to show a time."""
        return self.max_event_ms != NO_TIME_MS

    def copy(self) -> Clock:
        return Clock(self.max_event_ms, self.ahead_count, self.ahead_min_ms, self.late)

    def encode(self) -> bytes:
        return _CLOCK.pack(self.max_event_ms, self.ahead_count, self.ahead_min_ms, self.late)

    @staticmethod
    def decode(raw: bytes) -> Clock:
        return Clock(*_CLOCK.unpack(raw))


class SourceClock(NamedTuple):
    """Hold the event time of a source partition of a rekeyed view, at a source offset. The rekey job tracks it."""

    max_event_ms: int = NO_TIME_MS
    ahead_count: int = 0
    ahead_min_ms: int = 0

    def encode(self) -> bytes:
        return _SOURCE_CLOCK.pack(*self)

    @staticmethod
    def decode(raw: bytes, start: int = 0) -> SourceClock:
        """Decode the clock at `start`. Raises struct.error if the bytes end before."""
        return SourceClock._make(_SOURCE_CLOCK.unpack_from(raw, start))


NO_SOURCE_CLOCK: Final = SourceClock()
