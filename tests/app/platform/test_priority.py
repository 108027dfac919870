"""Test the priority of processes that yield the processor, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from queryable_app.platform.priority import LOWEST, take_idle_time_only, yield_processor
from queryable_app.platform.processes import Process

_SHOW = """
import os, subprocess, sys
from pathlib import Path
group = Path("/proc/self/autogroup")
print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0) == os.SCHED_IDLE,
      group.read_text().split()[-1] if group.exists() and group.read_text() else "none")
"""
_YIELD = "from queryable_app.platform.priority import yield_processor; yield_processor(5)\n"
_WITH_A_CHILD = (
    _YIELD + 'import subprocess, sys; subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)'
)


def shown(*arguments: str) -> list[str]:
    """Run Python as the leader of a session, and return what `_SHOW` prints there."""
    run = subprocess.run(
        [sys.executable, "-c", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        start_new_session=True,
    )
    return run.stdout.split()


def test_process_and_its_children_yield() -> None:
    """A process that yields has the nice value, and so has one that it starts afterwards."""
    assert shown(_WITH_A_CHILD, _SHOW)[0] == "5"


def test_group_of_a_session_yields_with_its_leader() -> None:
    """A process that leads its session yields to the other sessions too, where Linux makes a group of each."""
    nice, _, group = shown(_YIELD + _SHOW)

    assert nice == "5"
    assert group in ("5", "none")


def test_group_of_others_stays_as_it_is() -> None:
    """A process that yields leaves the group of a session alone that another process leads."""
    leader = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\n"

    assert shown(leader + _SHOW, _YIELD)[2] in ("0", "none")


def test_process_takes_idle_time_only_from_its_start_on(tmp_path: Path) -> None:
    """A process that this one starts can be given the lowest priority before it does anything."""
    process = Process([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log")
    try:
        take_idle_time_only(process.pid)

        assert os.getpriority(os.PRIO_PROCESS, process.pid) == LOWEST
        if sys.platform == "linux":
            assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
    finally:
        process.kill()


def test_priority_of_a_process_that_has_ended() -> None:
    """The priority of a process that is no more raises the error of the system."""
    with pytest.raises(ProcessLookupError):
        yield_processor(5, 2**22 + 1)
