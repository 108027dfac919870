"""Print each failure as soon as it is known: a run that is cut off never comes to its summary."""

from __future__ import annotations

from typing import Final

import pytest

_LETTERS_MAX: Final = 500


class FailuresAtOnce:
    """Write a line for each failed setup, call and teardown, also of those that xdist's workers report."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message if crash else report.longreprtext
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}): {reason[:_LETTERS_MAX]}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # xdist's workers report to the process that started them
        config.pluginmanager.register(FailuresAtOnce(config), "failures-at-once")
