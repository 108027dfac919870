"""When a replica has stalled: only while it is expected to move, and with patience that grows."""

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


def looked(
    watch: StallWatch, seconds: float, expected: bool = True, step: float = CHECK_SECONDS
) -> StallWatch:
    """After looks for so long, the position being where it was."""
    for n in range(1, int(seconds / step) + 1):
        watch = next_watch(watch, watch.position, expected, watch.checked_at + step if n else 0)
    return watch


def test_a_replica_that_does_not_move_is_due_within_thirty_seconds() -> None:
    """Not before its patience is over, and not much later."""
    began = StallWatch(7, 100.0)
    assert not restart_is_due(looked(began, PATIENCE_SECONDS - 2))
    assert restart_is_due(looked(began, 30))


def test_time_in_which_it_is_not_expected_to_move_does_not_count() -> None:
    """While it is paused, or ingest is starting, the wait begins anew."""
    waited = looked(StallWatch(7, 100.0), PATIENCE_SECONDS - 2)
    assert not restart_is_due(looked(looked(waited, 600, expected=False), PATIENCE_SECONDS - 2))


def test_a_look_that_comes_late_counts_as_one_in_time() -> None:
    """A process that was suspended for an hour has not watched for an hour."""
    assert not restart_is_due(next_watch(StallWatch(7, 100.0), 7, True, 3700.0))


def test_a_position_that_moves_ends_a_stall() -> None:
    """And the next stall is noticed as soon as the first one."""
    again = next_watch(after_restart(looked(StallWatch(7, 100.0), 60)), 8, True, 500.0)
    assert (again.stalled, again.restarts, again.waited_seconds) == (False, 0, 0.0)


@given(st.integers(0, 40))
def test_patience_grows_with_each_restart_up_to_a_maximum(restarts: int) -> None:
    """A stall that no restart ends is no loop of restarts."""
    watch = StallWatch(7, 100.0, restarts=restarts)
    patience = min(PATIENCE_SECONDS * 2**restarts, PATIENCE_SECONDS_MAX)
    assert not restart_is_due(looked(watch, patience - 3))
    assert restart_is_due(looked(watch, patience + 3))
