"""Decide which requests a node refuses when it has too many: one decision for each request, when it leaves the queue.

Strategy: a queue that empties again and again is a burst, and its requests get answers. A queue in which every request has waited
long for a while is a backlog. It does not shrink by being served, and makes every answer late. From then on, requests that have
waited long are refused, until for a while none has. The decision uses the time that a request waited and not the length of the
queue: ten requests may be a millisecond of work or a second.

If few requests wait, none is refused: then requests take long, or the machine is slow, and the queue is not the cause. During a
backlog both bounds are half as large, so that the requests that get answers hardly wait.

Long reads wait at each of their yields, so one more long read slows down all others. One more is admitted while they wait
briefly.
"""

from __future__ import annotations

from typing import Final

LONG_WAIT_SECONDS: Final = 0.005
BACKLOG_SECONDS: Final = 0.1  # also the longest wait in a burst
WAITING_FEW: Final = 16  # more than wait on a lightly loaded node after the node was descheduled
LONG_READS_WAITING_FEW: Final = 4
LONG_YIELD_SECONDS: Final = 0.02


def admits_long_read(waiting: int, waited: float) -> bool:
    """Return whether one more long read may start, given how many wait at a yield and how long the last one waited."""
    return waiting < LONG_READS_WAITING_FEW or waited <= LONG_YIELD_SECONDS


class Backlog:
    """Track whether the queue is a backlog. `now` is any monotonic clock."""

    __slots__ = ("_all_long_since", "_long_at", "shedding")

    def __init__(self) -> None:
        self.shedding = False
        self._all_long_since: float | None = None  # None: the last request had not waited long
        self._long_at = 0.0

    def admits(self, waited: float, behind: int, now: float) -> bool:
        """Return whether to serve a request that leaves the queue. `behind` is how many still wait."""
        part = 0.5 if self.shedding else 1
        if waited <= part * LONG_WAIT_SECONDS or behind < part * WAITING_FEW:
            self._all_long_since = None
            self.shedding = self.shedding and now - self._long_at <= BACKLOG_SECONDS
            return True
        self._long_at = now
        if self._all_long_since is None:
            self._all_long_since = now
        elif now - self._all_long_since > BACKLOG_SECONDS:
            self.shedding = True
        return not self.shedding and waited <= BACKLOG_SECONDS
