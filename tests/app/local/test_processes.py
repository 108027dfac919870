"""Child processes: they die with their parent, with all they started, and come back when they should."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from queryable_app.local.processes import Process, SupervisedProcess, free_ports, is_free, stop
from tests.support.waiting import eventually

SLEEPER = ["sleep", "300"]
STARTS_A_GRANDCHILD = ["sh", "-c", "sleep 300 & sleep 300"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "process.log"


def test_a_stopped_process_takes_what_it_started_with_it(log: Path) -> None:
    """The whole process group ends."""
    process = Process(STARTS_A_GRANDCHILD, log)
    family = eventually(
        "a grandchild", lambda: (f := psutil.Process(process.pid).children(recursive=True)) and f
    )

    stop([process], seconds=5)

    assert not psutil.wait_procs(family, timeout=5)[1]


def test_what_a_dead_process_started_is_killed_too(log: Path) -> None:
    """A grandchild that outlives its parent does not outlive `kill`."""
    process = Process(["sh", "-c", "sleep 300 & echo $!"], log)
    eventually("the end", lambda: process.exit_code is not None)
    grandchild = psutil.Process(int(log.read_text()))

    process.kill()

    assert not psutil.wait_procs([grandchild], timeout=5)[1]


def test_a_process_that_ignores_a_polite_end_is_killed(log: Path) -> None:
    """After the time that it was given, SIGKILL."""
    process = Process(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"], log)
    eventually("the trap is set", lambda: "ready" in log.read_text())

    stop([process], seconds=0.2)

    assert process.exit_code == -signal.SIGKILL


def test_a_child_dies_with_a_parent_that_is_killed(log: Path) -> None:
    """kill -9 of the parent leaves nothing behind."""
    program = (
        "import pathlib, time\n"
        "from queryable_app.local.processes import Process\n"
        f"print(Process(['sleep', '300'], pathlib.Path({str(log)!r})).pid, flush=True)\n"
        "time.sleep(300)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        eventually("the child became its command", lambda: child.name() == "sleep")
        parent.kill()

    assert not psutil.wait_procs([child], timeout=5)[1]


def test_a_kept_process_is_started_again_later_and_later(log: Path) -> None:
    """Each death is said, and the pause before the next start doubles."""
    starts: list[float] = []

    def start() -> Process:
        starts.append(time.monotonic())
        return Process(["sh", "-c", "exit 3"], log)

    kept = SupervisedProcess("worker", start, start())
    said: list[str] = []

    def fourth_start() -> bool:
        said.append(kept.supervise() or "")
        return len(starts) == 4

    eventually("four starts", fourth_start)
    kept.process.kill()

    crashes = [line for line in said if "ended with exit code 3" in line]
    assert [line.rsplit(" ", 2)[1] for line in crashes] == ["0.2", "0.4", "0.8"]
    assert starts[3] - starts[2] > starts[2] - starts[1] > 0.3


def test_a_kept_process_that_was_killed_gets_a_new_pid(log: Path) -> None:
    """What is said afterwards names the new process."""

    def start() -> Process:
        return Process(SLEEPER, log)

    kept = SupervisedProcess("worker", start, start())
    old = kept.process.pid
    kept.process.kill()

    said: list[str] = []

    def restarted() -> bool:
        said.append(kept.supervise() or "")
        return kept.process.pid != old

    eventually("a restart", restarted)
    kept.process.kill()

    assert str(kept.process.pid) in said[-1]


def test_free_ports_are_different_and_free() -> None:
    """Each of them can be listened at."""
    ports = free_ports(20)

    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)
