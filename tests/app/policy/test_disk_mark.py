"""Test when ingest pauses because the disk fills up, and when it resumes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.policy.disk_mark import PATIENCE_SECONDS, RESUME_POINTS, DiskMark, Pause, next_mark

MARK = 80.0

measurements = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 40)), max_size=60)
"""The used percent of the disk, and the seconds since the last measurement."""


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
        "just below half-way to full",
        "half-way to full",
        "resumes two points below",
        "above for too long",
        "patience starts over below the mark",
        "all stays all until it resumes",
    ],
)
def test_paused_replicas(seen: list[tuple[float, float]], paused: list[Pause]) -> None:
    """Each measurement decides which replicas pause."""
    assert pauses(seen) == paused


@given(measurements, st.integers(50, 99))
def test_ingest_pauses_above_the_mark_and_runs_below_it(seen: list[tuple[float, float]], mark: int) -> None:
    """Above the mark replicas pause, and two points below it none does, whatever came before."""
    for (used, _), paused in zip(seen, pauses(seen, mark), strict=True):
        if used >= mark:
            assert paused != "none"
        if used >= (mark + 100) / 2:
            assert paused == "all"
        if used < mark - RESUME_POINTS:
            assert paused == "none"


@given(measurements)
def test_pause_ends_only_below_the_lower_line(seen: list[tuple[float, float]]) -> None:
    """A pause begins at the mark and ends two points below it, and it only widens until then."""
    before: Pause = "none"
    for (used, _), paused in zip(seen, pauses(seen), strict=True):
        if before == "none" and paused != "none":
            assert used >= MARK
        if before != "none" and paused == "none":
            assert used < MARK - RESUME_POINTS
        assert (before, paused) != ("all", "hydrating")
        before = paused


@given(measurements, st.floats(0, 100))
def test_constant_disk_reaches_a_constant_pause(seen: list[tuple[float, float]], used: float) -> None:
    """After the patience, the same measurement always has the same result."""
    steady = [(used, PATIENCE_SECONDS + 1)] * 4
    assert len(set(pauses([*seen, *steady])[-3:])) == 1
