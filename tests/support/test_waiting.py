"""Test how tests wait: what a check costs decides how often it runs."""

from __future__ import annotations

import time

import pytest

from tests.support import waiting


class Clock:
    """Stand in for `time` in the tested file; a pause takes no real time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.mark.parametrize(("cost", "pause"), [(0.0, 0.02), (0.001, 0.02), (0.1, 0.3), (30.0, 1.0)])
def test_pause_grows_with_the_cost_of_a_check(
    monkeypatch: pytest.MonkeyPatch, cost: float, pause: float
) -> None:
    """A cheap check runs again at once, a check of a tenth of a second takes a quarter of the time, and no pause is long."""
    clock, checks = Clock(), iter([False, False, True])
    monkeypatch.setattr(waiting, "time", clock)

    def check() -> bool:
        clock.now += cost
        return next(checks)

    waiting.eventually("the third check", check, 600)
    assert clock.pauses == pytest.approx([pause, pause])


def test_condition_that_never_holds_fails_with_its_name() -> None:
    """A wait ends at its limit, and names what it waited for."""
    began = time.monotonic()
    with pytest.raises(AssertionError, match="not within 0 s: the sun rises"):
        waiting.eventually("the sun rises", lambda: False, 0.1)
    assert time.monotonic() - began < 30
