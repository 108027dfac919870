"""The times of tiers that a run reports at its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import pytest

from tests.support.tiers import TierTimes, tier_of


@pytest.mark.parametrize(
    ("node_id", "tier"),
    [
        ("tests/app/serve/store/test_store.py::test_a", "tests/app/serve"),
        ("tests/app/test_cli.py::test_a", "tests/app"),
        ("tests/operator/histories/test_stories.py::test_a[b/c]", "tests/operator/histories"),
        ("tests/test_leftovers.py::test_a", "tests"),
    ],
)
def test_deepest_tier_has_the_test(node_id: str, tier: str) -> None:
    """A test belongs to the deepest tier that holds its file."""
    assert tier_of(node_id) == tier


def reports(node_id: str, *seconds: float) -> Iterable[pytest.TestReport]:
    phases: tuple[Literal["setup", "call", "teardown"], ...] = ("setup", "call", "teardown")
    for when, duration in zip(phases, seconds, strict=True):
        yield pytest.TestReport(node_id, (node_id, 0, ""), {}, "passed", None, when, duration=duration)


def test_longest_tier_is_reported_first() -> None:
    """A tier's time has setups and teardowns in it, and the longest tier is the first line."""
    times = TierTimes()
    for report in (
        *reports("tests/app/test_a.py::test_a", 1, 2, 3),
        *reports("tests/hostile/test_b.py::test_b", 4, 3, 2),
    ):
        times.pytest_runtest_logreport(report)
    assert list(times.lines()) == [
        "      9 s      1 tests  tests/hostile",
        "      6 s      1 tests  tests/app",
    ]
