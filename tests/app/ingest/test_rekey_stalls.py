"""Test that a run of the rekey job that stands still before a record is ended."""

from __future__ import annotations

from queryable_app.ingest.rekey_stalls import RunStalls
from queryable_app.policy.stalls import PATIENCE_SECONDS


def test_run_that_does_not_read_a_record_is_ended() -> None:
    """A run that stands before a record of the source ends after the patience, and the next one has twice as long."""
    stalls = RunStalls()
    ended = [second for second in range(100) if stalls.look([3, 9], lambda _: 3, float(second))]
    assert ended == [PATIENCE_SECONDS, 3 * PATIENCE_SECONDS]


def test_run_that_moves_or_has_nothing_to_read_goes_on() -> None:
    """Offsets without a record, and a position that moves, are no stall."""
    stalls = RunStalls()
    assert not any(
        stalls.look([second // 9, 5], lambda partition: (99, -1)[partition], float(second))
        for second in range(200)
    )


def test_run_that_waits_for_an_executor_goes_on() -> None:
    """Time counts only while each source partition has a slot."""
    stalls = RunStalls()
    assert not any(stalls.look([3], lambda _: 3, float(second), reads=False) for second in range(200))
    ended = [second for second in range(200, 300) if stalls.look([3], lambda _: 3, float(second))]
    assert ended[0] == 200 + PATIENCE_SECONDS - 1
