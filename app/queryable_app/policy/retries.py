"""Decide when to retry after a failure: bounded exponential back-off with jitter.

Strategy: a `Retry` is a frozen value that describes one series of failures, and `next_retry` returns the next value. A failure
long after a success starts a new series, so that an old fault does not delay the recovery from a new one.
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
    """Describe a series of failures."""

    reason: str
    since: float
    """When the series began, monotonic."""
    attempts: int
    """Failed attempts of the series, at least 1."""
    next_at: float
    """When to try again, monotonic."""


def retry_delay_seconds(attempts: int, jitter: float) -> float:
    """Return the delay after a number of failed attempts. `jitter`, from 0 to 1, shortens it by up to a half."""
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
