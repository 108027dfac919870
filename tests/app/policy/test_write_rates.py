"""Test the bound of the bytes that a caller writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queryable_app.policy.write_rates import WriteRates

RATE = 1000


@given(st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 3000)), max_size=60))
def test_caller_writes_no_more_than_the_rate_and_one_burst(steps: list[tuple[float, int]]) -> None:
    """Until any moment, a caller has written at most the rate's bytes, one second's more, and one request."""
    rates, now, written = WriteRates(), 0.0, 0
    for pause, size in steps:
        now += pause
        if rates.take("a", size, RATE, now) == 0:
            assert written <= RATE * (now + 1) + 1e-6
            written += size


@given(st.integers(1, 10 * RATE), st.integers(1, 10 * RATE))
def test_refused_caller_may_write_after_the_time_that_it_was_told(first: int, second: int) -> None:
    """The wait is long enough, and not a second longer."""
    rates = WriteRates()
    rates.take("a", first, RATE, 0.0)
    wait = rates.take("a", second, RATE, 0.0)
    assert (wait > 0) == (first > RATE)
    if wait > 0:
        assert rates.take("a", second, RATE, wait / 2) > 0
        assert rates.take("a", second, RATE, wait + 1e-6) == 0


def test_callers_do_not_share_a_bound() -> None:
    """A caller that writes too much does not stop another one."""
    rates = WriteRates()
    rates.take("a", 10 * RATE, RATE, 0.0)
    assert rates.take("a", 1, RATE, 0.0) > 0
    assert rates.take("b", 1, RATE, 0.0) == 0


def test_least_recent_callers_are_forgotten() -> None:
    """Memory is bounded, however many callers there are."""
    rates = WriteRates(callers_max=2)
    rates.take("a", 10 * RATE, RATE, 0.0)
    rates.take("b", 10 * RATE, RATE, 0.0)
    rates.take("c", 1, RATE, 0.0)
    assert rates.take("b", 1, RATE, 0.0) > 0
    assert rates.take("a", 1, RATE, 0.0) == 0
