"""When to try again what has failed: bounded, jittered, exponential back-off as a frozen value.

Strategy: a `Retry` describes one series of failures. `next_retry` makes the next value of the series. A failure that comes long
after the last success starts a new series, so that an old fault does not slow down the recovery from a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RETRY_SECONDS_MIN: Final = 0.5
RETRY_SECONDS_MAX: Final = 30.0
SERIES_SECONDS: Final = 60.0
"""A success that lasts this long ends the series."""

_DOUBLINGS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Retry:
    reason: str
    since: float
    """When the series began, monotonic."""
    attempts: int
    """Failed attempts of the series, at least 1."""
    next_at: float
    """When to try again, monotonic."""


def retry_delay_seconds(attempts: int, jitter: float) -> float:
    """Return the pause after so many failed attempts. `jitter`, from 0 to 1, shortens it by up to a half."""
    doubled = RETRY_SECONDS_MIN * 2.0 ** min(attempts - 1, _DOUBLINGS_MAX)
    return min(doubled, RETRY_SECONDS_MAX) * (1 - jitter / 2)


def next_retry(
    before: Retry | None, reason: str, now: float, jitter: float, succeeded_at: float | None = None
) -> Retry:
    """Return the series with one more failure. `succeeded_at` is when an attempt last succeeded, if one has."""
    if before is None or (succeeded_at is not None and now - succeeded_at > SERIES_SECONDS):
        return Retry(reason, now, 1, now + retry_delay_seconds(1, jitter))
    attempts = before.attempts + 1
    return Retry(reason, before.since, attempts, now + retry_delay_seconds(attempts, jitter))
