"""Report, at the end of a run, how long each tier of the tests took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

import pytest

# A tier is the longest of these that a test's path begins with.
_TIERS: Final = (
    "tests/app/client",
    "tests/app/ingest",
    "tests/app/local",
    "tests/app/serve",
    "tests/app",
    "tests/chart",
    "tests/cluster",
    "tests/hostile",
    "tests/integration",
    "tests/operator/histories",
    "tests/operator",
    "tests/simulation",
    "tests",
)


def tier_of(node_id: str) -> str:
    """Return the tier that a test belongs to."""
    path = node_id.partition("::")[0]
    return next(tier for tier in _TIERS if path.startswith(f"{tier}/") or tier == "tests")


class TierTimes:
    """Add up the durations of setups, calls and teardowns, also of those that xdist's workers report."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tier = tier_of(report.nodeid)
        self._seconds[tier] += report.duration
        self._tests[tier] += report.when == "setup"

    def lines(self) -> Iterator[str]:
        for tier, seconds in sorted(self._seconds.items(), key=lambda item: -item[1]):
            yield f"{seconds:7.0f} s  {self._tests[tier]:5} tests  {tier}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if sum(self._tests.values()) > 1:
            terminalreporter.section("time of each tier, added up over the workers")
            for line in self.lines():
                terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # xdist's workers report to the process that started them
        config.pluginmanager.register(TierTimes(), "tier-times")
