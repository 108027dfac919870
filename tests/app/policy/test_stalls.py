"""Test when a replica has stalled, and how long a check waits before it restarts the query."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queryable_app.policy.stalls import (
    CHECK_SECONDS,
    PATIENCE_SECONDS,
    PATIENCE_SECONDS_MAX,
    StallWatch,
    after_restart,
    next_watch,
    restart_is_due,
)


def checked(
    watch: StallWatch, seconds: float, expected: bool = True, step: float = CHECK_SECONDS
) -> StallWatch:
    """Return the watch after checks for some seconds, in which the position does not move."""
    for n in range(1, int(seconds / step) + 1):
        watch = next_watch(watch, watch.position, expected, watch.checked_at + step if n else 0)
    return watch


def test_query_restarts_within_thirty_seconds_of_a_stall() -> None:
    """A restart is due after the patience, and not much later."""
    began = StallWatch(7, 100.0)
    assert not restart_is_due(checked(began, PATIENCE_SECONDS - 2))
    assert restart_is_due(checked(began, 30))


def test_time_without_expected_records_does_not_count() -> None:
    """While the replica is paused or ingest starts, the wait starts over."""
    waited = checked(StallWatch(7, 100.0), PATIENCE_SECONDS - 2)
    assert not restart_is_due(checked(checked(waited, 600, expected=False), PATIENCE_SECONDS - 2))


def test_late_check_counts_like_one_in_time() -> None:
    """An hour in which the process was suspended is no hour of waiting."""
    assert not restart_is_due(next_watch(StallWatch(7, 100.0), 7, True, 3700.0))


def test_moved_position_ends_a_stall() -> None:
    """After the position moves, the patience is that of a first stall."""
    again = next_watch(after_restart(checked(StallWatch(7, 100.0), 60)), 8, True, 500.0)
    assert (again.stalled, again.restarts, again.waited_seconds) == (False, 0, 0.0)


@given(st.integers(0, 40))
def test_patience_grows_with_each_restart_up_to_a_maximum(restarts: int) -> None:
    """Each restart doubles the patience, up to its maximum."""
    watch = StallWatch(7, 100.0, restarts=restarts)
    patience = min(PATIENCE_SECONDS * 2**restarts, PATIENCE_SECONDS_MAX)
    assert not restart_is_due(checked(watch, patience - 3))
    assert restart_is_due(checked(watch, patience + 3))
