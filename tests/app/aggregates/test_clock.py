"""Test that the clock of a partition follows its records, and no single wrong one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queryable_app.aggregates.clock import AHEAD_RECORDS, TIME_MAX_MS, TIME_MIN_MS, Clock

AHEAD_MS = 3_600_000
TIMES = st.integers(0, 10 * AHEAD_MS) | st.sampled_from((TIME_MIN_MS, TIME_MAX_MS))


def started(at_ms: int) -> Clock:
    """Return a clock that shows a time."""
    return run(Clock(), [at_ms] * AHEAD_RECORDS)


def run(clock: Clock, times: list[int]) -> Clock:
    for time_ms in times:
        clock.advance(time_ms, AHEAD_MS)
    return clock


def test_new_clock_shows_no_time() -> None:
    """A clock shows a time after its first ten records, the least of theirs."""
    clock = run(Clock(), [5_000, 3_000, 4_000, *[6_000] * (AHEAD_RECORDS - 4)])
    assert not clock.shows_time

    clock.advance(7_000, AHEAD_MS)

    assert clock.max_event_ms == 3_000


def test_wrong_first_record_sets_no_time() -> None:
    """A first record from the year 9999 does not become the time of the clock."""
    assert run(Clock(), [TIME_MAX_MS, *[1_000] * AHEAD_RECORDS]).max_event_ms == 1_000


def test_clock_shows_the_greatest_time() -> None:
    """Earlier times do not turn the clock back, and later ones move it."""
    assert run(started(1_000), [500, 2_000, 1_500]).max_event_ms == 2_000


@given(st.integers(1, AHEAD_RECORDS - 1), st.integers(AHEAD_MS + 1, TIME_MAX_MS))
def test_few_records_far_ahead_do_not_move_the_clock(count: int, ahead_ms: int) -> None:
    """Nine records in a row that are far ahead do not move the clock, however often they come."""
    clock = started(0)
    for _ in range(3):
        assert run(clock, [ahead_ms] * count + [0]).max_event_ms == 0


def test_many_records_far_ahead_move_the_clock_to_the_least() -> None:
    """Ten records in a row that are far ahead move the clock to the least of their times."""
    day = 24 * AHEAD_MS
    times = [day + 5, TIME_MAX_MS, *[day + 7] * (AHEAD_RECORDS - 2)]

    assert run(started(0), times).max_event_ms == day + 5


@given(st.lists(TIMES), st.integers(0, 50))
def test_clock_does_not_depend_on_where_it_was_stored(times: list[int], cut: int) -> None:
    """A clock that is stored and loaded between two records shows the same as one that is not."""
    stored = run(Clock(), times[:cut]).encode()

    assert run(Clock.decode(stored), times[cut:]).encode() == run(Clock(), times).encode()


@given(st.lists(TIMES))
def test_clock_never_goes_back(times: list[int]) -> None:
    """No record makes the clock show less."""
    clock = Clock()
    for time_ms in times:
        before = clock.max_event_ms
        clock.advance(time_ms, AHEAD_MS)
        assert clock.max_event_ms >= before
