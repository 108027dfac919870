"""Distribute the tests over pytest-xdist's workers, and begin no long tests once the run's minutes are over.

Strategy: a file's tests run on one worker, because they share fixtures. The first worker runs tests/cluster, whose tests share
the cluster; they mostly wait, so it is a worker beside one for each core. Of the others every second one begins with
tests/integration. On a slow machine `--minutes` leaves out some files of these two long tiers; their order is then one that the
commit decides, so that over several commits each of them runs.
"""

from __future__ import annotations

import os
import subprocess
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_OF_THE_CLUSTER: Final = ("tests/chart/", "tests/cluster/")
_LONG: Final = ("tests/cluster/", "tests/integration/")
_FIRST: Final = (*_OF_THE_CLUSTER, "tests/operator/histories/", "tests/app/ingest/", "tests/app/serve/")
_WORKERS_MAX: Final = 5


class Distribution(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Give each worker one file after another, or one test of the cluster, and no long ones after the minutes."""

    def __init__(self, config: pytest.Config, log: Producer | None) -> None:
        super().__init__(config, log)
        minutes = config.getoption("minutes")
        self._until = None if minutes is None else time.monotonic() + 60 * minutes
        self.not_run: Counter[str] = Counter()
        """The number of tests in each file that did not begin."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(_OF_THE_CLUSTER) else nodeid.partition("::")[0]

    def _assign_work_unit(self, node: Any) -> None:
        if unit := self._next_unit(self.nodes.index(node)):
            self.workqueue.move_to_end(unit, last=False)
            super()._assign_work_unit(node)
        else:
            node.shutdown()

    def _next_unit(self, worker: int) -> str | None:
        """Return the next unit that this worker may run: the cluster's for the first, then long or short ones first in turn."""
        if worker == 0:
            return next(iter(self.workqueue), None)
        units = (unit for unit in self.workqueue if not unit.startswith(_OF_THE_CLUSTER))
        return min(units, key=lambda unit: unit.startswith(_LONG) != bool(worker % 2), default=None)

    def _reschedule(self, node: Any) -> None:
        if self._until is not None and time.monotonic() >= self._until:
            for unit in [unit for unit in self.workqueue if unit.startswith(_LONG)]:
                self.not_run[unit.partition("::")[0]] += len(self.workqueue.pop(unit))
        # A worker runs a test once it knows the next one; more would wait there beyond the last minute.
        if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


class Minutes:
    """Report at the end what was not run."""

    def __init__(self) -> None:
        self._scheduling: Distribution | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Producer | None) -> Distribution:
        self._scheduling = Distribution(config, log)
        return self._scheduling

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        not_run = self._scheduling.not_run if self._scheduling else Counter()
        if not_run:
            terminalreporter.section(f"not run, because the minutes were over: {not_run.total()} tests")
            for file, number in not_run.items():
                terminalreporter.write_line(f"{number:5} tests  {file}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--minutes",
        type=float,
        metavar="N",
        help="begin no long tests after N minutes, and name those that were not run; needs workers (--numprocesses)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # xdist's workers are told what to run
        config.pluginmanager.register(Minutes(), "minutes")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of workers for `--numprocesses auto`."""
    return min(_WORKERS_MAX, (os.cpu_count() or 1) + bool(os.environ.get("KUBECONFIG")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    commit = "" if config.getoption("minutes") is None else _commit(config.rootpath)
    items.sort(key=lambda item: rank(item.nodeid.partition("::")[0], commit))


def rank(file: str, commit: str) -> tuple[int, int]:
    """Return a file's place among the others. Without a commit those of a tier keep their order."""
    tier = next((rank for rank, prefix in enumerate(_FIRST) if file.startswith(prefix)), len(_FIRST))
    last = len(_FIRST) + 1 if file.startswith("tests/integration/") else tier
    return last, zlib.crc32(f"{commit} {file}".encode()) if commit and file.startswith(_LONG) else 0


def _commit(directory: Path) -> str:
    """Return the commit of the sources; nothing outside a repository."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=20).stdout
    except OSError:
        return ""
