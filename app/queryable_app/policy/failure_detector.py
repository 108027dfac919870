"""Track the health of a peer from its heartbeats and its answers.

Strategy: heartbeats tell whether the peer is alive. After three missed ones, or a refused or lost connection, the peer is
suspected until its next heartbeat. A circuit breaker tells whether requests to it succeed. It opens after failures in a row,
whatever the heartbeats say. A peer that fails either test comes last in the order of attempts. It stays in the order, because it
may host the only replica. The caller passes the time (seconds of any one clock), so a test can use a virtual clock.

At each tick a node sends heartbeats to a bounded number of peers, which take turns. So heartbeats cost a node of a large view no
more than one of a small view. Only healthy peers wait for their turn: an unanswered heartbeat counts as missed at every tick, and
after a failed request the peer gets a heartbeat at the next tick.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Final

HEARTBEAT_SECONDS: Final = 0.1  # the tick
HEARTBEATS_PER_TICK_MAX: Final = 20  # 200 a second cost less than two per cent of a core
MISSED_MAX: Final = 3  # after so many in a row the peer is suspected

_CURRENT_SECONDS_MIN: Final = 1.0

_FAILURES_MAX: Final = 5
_REST_SECONDS: Final = 1.0  # an open breaker refuses requests for so long

_HEDGE_SECONDS_MIN: Final = 0.005
_HEDGE_SECONDS_MAX: Final = 0.25
_HEDGE_FACTOR: Final = 3  # times the p95: a later answer is very rare, or never comes
_HEDGE_SECONDS_FIRST: Final = 0.05  # until the peer has answered often enough
_RECENT: Final = 128  # answers in the p95
_UPDATE_EVERY: Final = 16


def heartbeat_ticks(peers: int) -> int:
    """Return how many ticks lie between two heartbeats to the same peer."""
    return max(1, ceil(peers / HEARTBEATS_PER_TICK_MAX))


def heartbeat_current_seconds(peers: int) -> float:
    """Return for how long a node relies on the content of a heartbeat."""
    return max(_CURRENT_SECONDS_MIN, 2 * heartbeat_ticks(peers) * HEARTBEAT_SECONDS)


class Breaker:
    """Open after failures in a row, half-open for one request at a time after the next heartbeat, closed after an answer."""

    __slots__ = ("_failures", "_next_trial_at", "_opened_at", "_probed")

    def __init__(self) -> None:
        self._failures = 0
        self._opened_at: float | None = None
        self._probed = False
        self._next_trial_at = 0.0

    @property
    def is_open(self) -> bool:
        """Return whether the breaker is open or half-open."""
        return self._opened_at is not None

    def allows(self, now: float) -> bool:
        """Return whether to prefer this peer to one whose breaker refuses requests."""
        return self._opened_at is None or (self._probed and now >= self._next_trial_at)

    def asked(self, now: float) -> None:
        self._next_trial_at = now + _REST_SECONDS

    def answered(self) -> None:
        self._failures = 0
        self._opened_at = None

    def failed(self, now: float) -> None:
        self._failures += 1
        if self._failures >= _FAILURES_MAX:
            self._opened_at = now
            self._probed = False

    def heartbeat(self, now: float) -> None:
        if self._opened_at is not None and now - self._opened_at >= _REST_SECONDS:
            self._probed = True


class PeerHealth:
    """Hold the health of one peer. Heartbeats and requests update it; `Attempts` reads it."""

    __slots__ = ("_answers", "_missed", "_recent", "breaker", "heartbeat_due", "hedge_after", "suspected")

    def __init__(self) -> None:
        self.suspected = False
        self.heartbeat_due = False
        """Whether the peer gets a heartbeat before its turn, because a request to it has failed."""
        self.breaker = Breaker()
        self.hedge_after = _HEDGE_SECONDS_FIRST
        """Seconds without an answer before a hedge."""
        self._missed = 0
        self._answers = 0
        self._recent: deque[float] = deque(maxlen=_RECENT)

    @property
    def unhealthy(self) -> bool:
        """Return whether the peer is suspected or its breaker is open."""
        return self.suspected or self.breaker.is_open

    @property
    def timeout_after(self) -> float:
        """Return the seconds without any sign of the peer that count as a failure."""
        return max(0.1, 2 * self.hedge_after)

    def allows(self, now: float) -> bool:
        """Return whether to prefer this peer to one that is suspected or whose breaker refuses requests."""
        return not self.suspected and self.breaker.allows(now)

    # Heartbeats.

    def heartbeat_answered(self, now: float) -> None:
        self._missed = 0
        self.suspected = self.heartbeat_due = False
        self.breaker.heartbeat(now)

    def heartbeat_missed(self) -> None:
        self._missed += 1
        if self._missed >= MISSED_MAX:
            self.suspected = True

    def connection_lost(self) -> None:
        """Record a refused or lost connection."""
        self.suspected = True

    # Requests.

    def asked(self, now: float) -> None:
        if self.breaker.is_open:
            self.breaker.asked(now)

    def answered(self, seconds: float | None = None) -> None:
        """Record an answer and its seconds. None: its latency says nothing about the peer."""
        self.breaker.answered()
        if seconds is None:
            return
        self._recent.append(seconds)
        self._answers += 1
        if self._answers % _UPDATE_EVERY == 0:
            p95 = sorted(self._recent)[len(self._recent) * 95 // 100]
            self.hedge_after = min(_HEDGE_SECONDS_MAX, max(_HEDGE_SECONDS_MIN, _HEDGE_FACTOR * p95))

    def failed(self, now: float) -> None:
        self.breaker.failed(now)
        self.heartbeat_due = True
