"""Test the priority of processes that run on idle time only, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from queryable_app.platform.priority import LOWEST, take_idle_time_only, take_usual_time
from queryable_app.platform.processes import Process
from tests.support.processes import may_raise_priorities

_SHOW = """
import os, sys
from pathlib import Path
group = Path("/proc/self/autogroup")
print(os.getpriority(os.PRIO_PROCESS, 0), sys.platform != "linux" or os.sched_getscheduler(0) == os.SCHED_IDLE,
      group.read_text().split()[-1] if group.exists() and group.read_text() else "none")
"""
_YIELD = "from queryable_app.platform.priority import take_idle_time_only; take_idle_time_only()\n"
_END = "from queryable_app.platform.priority import take_usual_time; take_usual_time()\n"
_RUN_ANOTHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\n"


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


def test_process_and_those_that_it_starts_have_the_lowest_priority() -> None:
    """A process takes only the time that others leave, and so does one that it starts afterwards."""
    assert shown(_YIELD + _RUN_ANOTHER, _SHOW)[:2] == [str(LOWEST), "True"]


def test_group_of_a_session_yields_with_its_leader() -> None:
    """A process that leads its session yields to the other sessions too, where Linux makes a group of each."""
    assert shown(_YIELD + _SHOW)[2] in (str(LOWEST), "none")


def test_group_of_others_stays_as_it_is() -> None:
    """A process that yields leaves the group of a session alone that another process leads."""
    assert shown(_RUN_ANOTHER + _SHOW, _YIELD)[2] in ("0", "none")


def test_group_of_a_process_that_ends_has_its_usual_time() -> None:
    """A process that took idle time only gives its group the usual priority again."""
    assert shown(_YIELD + _END + _SHOW)[2] in ("0", "none")


def test_all_threads_of_a_process_take_their_usual_time() -> None:
    """Each thread of another process has the usual priority again, since a process ends when its last thread has."""
    if not may_raise_priorities():
        pytest.skip("CAP_SYS_NICE is missing")
    code = "import threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=[60]).start()\nprint()"
    process = subprocess.Popen([sys.executable, "-c", _YIELD + code], stdout=subprocess.PIPE)
    try:
        assert process.stdout
        assert process.stdout.readline()
        take_usual_time(process.pid)

        threads = [int(entry.name) for entry in Path(f"/proc/{process.pid}/task").iterdir()]
        assert len(threads) == 4
        assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_OTHER}
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {0}
    finally:
        process.kill()
        process.communicate()


def test_another_process_yields_from_its_start_on(tmp_path: Path) -> None:
    """A process that this one starts can be given the lowest priority before it does anything."""
    process = Process([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log")
    try:
        take_idle_time_only(process.pid)

        assert os.getpriority(os.PRIO_PROCESS, process.pid) == LOWEST
        if sys.platform == "linux":
            assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
    finally:
        process.kill()


def test_priority_of_a_process_that_is_no_more() -> None:
    """The lowest priority for a process that is no more raises the error of the system; the usual one changes nothing."""
    with pytest.raises(ProcessLookupError):
        take_idle_time_only(2**22 + 1)

    take_usual_time(2**22 + 1)
