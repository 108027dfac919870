"""What a node thinks of another one, from its heartbeats and from how it answers.

Strategy: two questions are kept apart. *Is it there?* is for heartbeats: three that are missed, or a connection that is
refused or lost, make a node a suspect until it is heard again. *Does it help to ask it?* is for the breaker, which
opens when requests fail one after the other, whatever the heartbeats say. Either one puts the node last and no more:
nobody is left out, since there may be nobody else. Moments are given (seconds of any one clock), so a fake clock can
drive it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

HEARTBEAT_SECONDS: Final = 0.1
MISSED_MAX: Final = 3  # heartbeats without an answer, and the node is a suspect

_FAILURES_MAX: Final = 5
_REST_SECONDS: Final = 1.0  # an open breaker leaves the node alone for so long

_HEDGE_SECONDS_MIN: Final = 0.005
_HEDGE_SECONDS_MAX: Final = 0.25
_HEDGE_FACTOR: Final = 3  # times the p95: what is that late is one of very few, or never comes
_HEDGE_SECONDS_FIRST: Final = 0.05  # until the node has answered often enough to tell
_RECENT: Final = 128
_LOOK_EVERY: Final = 16


class Breaker:
    """Closed; open after failures in a row; half open, for one request at a time, once a heartbeat was answered since."""

    __slots__ = ("_failures", "_next_trial_at", "_opened_at", "_probed")

    def __init__(self) -> None:
        self._failures = 0
        self._opened_at: float | None = None
        self._probed = False
        self._next_trial_at = 0.0

    @property
    def is_open(self) -> bool:
        """Half open ones too: a single request shows nothing yet."""
        return self._opened_at is not None

    def allows(self, now: float) -> bool:
        """Whether a request should go there while there are others to ask."""
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
    """Fed by whoever does the talking; `Attempts` only reads it."""

    __slots__ = ("_answers", "_missed", "_recent", "breaker", "hedge_after", "suspect")

    def __init__(self) -> None:
        self.suspect = False
        self.breaker = Breaker()
        self.hedge_after = _HEDGE_SECONDS_FIRST
        """Seconds without an answer after which another copy is asked as well."""
        self._missed = 0
        self._answers = 0
        self._recent: deque[float] = deque(maxlen=_RECENT)

    @property
    def unhealthy(self) -> bool:
        """Waiting for it is of little use."""
        return self.suspect or self.breaker.is_open

    @property
    def timeout_after(self) -> float:
        """Seconds without an answer, or any other sign of the node, that count as a failure."""
        return max(0.1, 2 * self.hedge_after)

    def allows(self, now: float) -> bool:
        """Whether to ask it before those that do not allow it."""
        return not self.suspect and self.breaker.allows(now)

    # Heartbeats.

    def heartbeat_answered(self, now: float) -> None:
        self._missed = 0
        self.suspect = False
        self.breaker.heartbeat(now)

    def heartbeat_missed(self) -> None:
        self._missed += 1
        if self._missed >= MISSED_MAX:
            self.suspect = True

    def gone(self) -> None:
        """A connection was refused or lost."""
        self.suspect = True

    # Requests.

    def asked(self, now: float) -> None:
        if self.breaker.is_open:
            self.breaker.asked(now)

    def answered(self, seconds: float | None = None) -> None:
        """`seconds` it took; None for an answer that had reasons of its own to take long."""
        self.breaker.answered()
        if seconds is None:
            return
        self._recent.append(seconds)
        self._answers += 1
        if self._answers % _LOOK_EVERY == 0:
            p95 = sorted(self._recent)[len(self._recent) * 95 // 100]
            self.hedge_after = min(_HEDGE_SECONDS_MAX, max(_HEDGE_SECONDS_MIN, _HEDGE_FACTOR * p95))

    def failed(self, now: float) -> None:
        self.breaker.failed(now)
