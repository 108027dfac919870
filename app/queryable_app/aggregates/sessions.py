"""Find the sessions of one group that a record joins.

Strategy: the sessions of a group never touch, so they have the same order by start and by end. A record opens a session of its
own, from its time until a gap later, and merges it with every session that it touches: none, one, or the two that it bridges.
Two sessions of which one starts where the other ends are one, as in Spark.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, Protocol

_start: Final = attrgetter("start_ms")
_end: Final = attrgetter("end_ms")


class Interval(Protocol):
    """The time that a session covers."""

    @property
    def start_ms(self) -> int: ...

    @property
    def end_ms(self) -> int: ...


def touching(sessions: Sequence[Interval], event_ms: int, gap_ms: int) -> slice:
    """Return which of the sessions, in order of their starts, a record merges. An empty slice says where its own session goes."""
    first = bisect_left(sessions, event_ms, key=_end)
    last = bisect_right(sessions, event_ms + gap_ms, key=_start)
    return slice(first, last)


def merged(sessions: Sequence[Interval], event_ms: int, gap_ms: int) -> tuple[int, int]:
    """Return the start and the end of the session that a record makes of those that it touches."""
    start_ms, end_ms = event_ms, event_ms + gap_ms
    if sessions:
        start_ms, end_ms = min(start_ms, sessions[0].start_ms), max(end_ms, sessions[-1].end_ms)
    return start_ms, end_ms
