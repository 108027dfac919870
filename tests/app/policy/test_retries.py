"""Test the back-off: bounded, with jitter, and reset after a success that lasts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queryable_app.policy.retries import (
    RETRY_SECONDS_MAX,
    RETRY_SECONDS_MIN,
    SERIES_SECONDS,
    next_retry,
    retry_delay_seconds,
)


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_delay_is_bounded(attempts: int, jitter: float) -> None:
    """A delay is at least half of the first one and at most the maximum."""
    assert RETRY_SECONDS_MIN / 2 <= retry_delay_seconds(attempts, jitter) <= RETRY_SECONDS_MAX


@given(st.integers(1, 30))
def test_delay_grows_with_attempts(attempts: int) -> None:
    """With the same jitter a later attempt waits at least as long as an earlier one."""
    assert retry_delay_seconds(attempts, 0.3) <= retry_delay_seconds(attempts + 1, 0.3)


def test_failure_soon_after_a_success_continues_the_series() -> None:
    """A store that fails soon after it opens waits longer each time, and keeps the time of the first failure."""
    first = next_retry(None, "full", 100.0, 0.0)
    again = next_retry(first, "full", 103.0, 0.0, succeeded_at=102.0)

    assert (again.since, again.attempts, again.next_at) == (100.0, 2, 104.0)


def test_failure_long_after_a_success_starts_a_new_series() -> None:
    """After a success that lasts a minute, the delay is the first one again."""
    first = next_retry(None, "full", 100.0, 0.0)
    later = 102.0 + SERIES_SECONDS + 1
    again = next_retry(first, "no descriptors", later, 0.0, succeeded_at=102.0)

    assert (again.since, again.attempts, again.next_at) == (later, 1, later + RETRY_SECONDS_MIN)
