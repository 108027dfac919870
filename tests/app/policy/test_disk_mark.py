"""When ingest pauses because the disk fills up, and when it goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.policy.disk_mark import PATIENCE_SECONDS, RESUME_POINTS, DiskMark, Pause, next_mark

MARK = 80.0

looks = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 40)), max_size=60)
"""How full the disk is, and the seconds since the look before."""


def pauses(seen: list[tuple[float, float]], mark: float = MARK) -> list[Pause]:
    now, state, paused = 0.0, DiskMark(), []
    for used, later in seen:
        now += later
        state = next_mark(state, used, mark, now)
        paused.append(state.paused)
    return paused


@pytest.mark.parametrize(
    ("seen", "paused"),
    [
        ([(79.9, 1)], ["none"]),
        ([(80, 1)], ["hydrating"]),
        ([(89.9, 1)], ["hydrating"]),
        ([(90, 1)], ["all"]),
        ([(81, 1), (79, 1), (78, 1), (77.9, 1)], ["hydrating", "hydrating", "hydrating", "none"]),
        ([(81, 1), (81, 29), (81, 1)], ["hydrating", "hydrating", "all"]),
        ([(81, 1), (79, 29), (81, 1), (81, 29)], ["hydrating", "hydrating", "hydrating", "hydrating"]),
        ([(95, 1), (81, 1), (79, 1), (70, 1)], ["all", "all", "all", "none"]),
    ],
    ids=[
        "below",
        "at the mark",
        "short of half way to full",
        "half way to full",
        "on again two points below",
        "above for too long",
        "patience begins anew below the mark",
        "all stays all until it goes on",
    ],
)
def test_what_pauses(seen: list[tuple[float, float]], paused: list[Pause]) -> None:
    """The story of a disk, look by look."""
    assert pauses(seen) == paused


@given(looks, st.integers(50, 99))
def test_it_pauses_above_the_mark_and_runs_well_below_it(seen: list[tuple[float, float]], mark: int) -> None:
    """Whatever was before: above the mark something is paused, and two points below it nothing is."""
    for (used, _), paused in zip(seen, pauses(seen, mark), strict=True):
        if used >= mark:
            assert paused != "none"
        if used >= (mark + 100) / 2:
            assert paused == "all"
        if used < mark - RESUME_POINTS:
            assert paused == "none"


@given(looks)
def test_between_two_changes_the_disk_has_crossed_both_lines(seen: list[tuple[float, float]]) -> None:
    """It begins at the mark and ends two points below, and what is paused grows until then: no flapping."""
    before: Pause = "none"
    for (used, _), paused in zip(seen, pauses(seen), strict=True):
        if before == "none" and paused != "none":
            assert used >= MARK
        if before != "none" and paused == "none":
            assert used < MARK - RESUME_POINTS
        assert (before, paused) != ("all", "hydrating")
        before = paused


@given(looks, st.floats(0, 100))
def test_a_disk_that_stands_still_changes_nothing_for_long(
    seen: list[tuple[float, float]], used: float
) -> None:
    """After the patience is over, the same reading is the same answer for ever."""
    steady = [(used, PATIENCE_SECONDS + 1)] * 4
    assert len(set(pauses([*seen, *steady])[-3:])) == 1
