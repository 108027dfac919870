"""Test child processes: they die with their parent and with all that they started, and are restarted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from queryable_app.platform.processes import Process, SupervisedProcess, free_ports, is_free, stop
from tests.support.waiting import eventually

SLEEPER = ["sleep", "300"]
STARTS_A_GRANDCHILD = ["sh", "-c", "sleep 300 & sleep 300"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "process.log"


def test_stop_ends_the_whole_process_group(log: Path) -> None:
    """The children of a stopped process end too."""
    process = Process(STARTS_A_GRANDCHILD, log)
    family = eventually(
        "a grandchild", lambda: (f := psutil.Process(process.pid).children(recursive=True)) and f
    )

    stop([process], seconds=5)

    assert not psutil.wait_procs(family, timeout=5)[1]


def test_kill_ends_the_children_of_a_dead_process(log: Path) -> None:
    """A grandchild that outlives its parent does not outlive `kill`."""
    process = Process(["sh", "-c", "sleep 300 & echo $!"], log)
    eventually("the end", lambda: process.exit_code is not None)
    grandchild = psutil.Process(int(log.read_text()))

    process.kill()

    assert not psutil.wait_procs([grandchild], timeout=5)[1]


def test_process_that_ignores_sigterm_is_killed(log: Path) -> None:
    """A process that does not end in time gets SIGKILL."""
    process = Process(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 300 & wait; done"], log)
    eventually("the trap is set", lambda: "ready" in log.read_text())

    stop([process], seconds=0.2)

    assert process.exit_code == -signal.SIGKILL


def test_child_dies_with_a_killed_parent(log: Path) -> None:
    """No child outlives a parent that was killed with -9."""
    program = (
        "import pathlib, signal\n"
        "from queryable_app.platform.processes import Process\n"
        f"print(Process(['sleep', '300'], pathlib.Path({str(log)!r})).pid, flush=True)\n"
        "signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        eventually("the child became its command", lambda: child.name() == "sleep")
        parent.kill()

    assert not psutil.wait_procs([child], timeout=5)[1]


def test_supervised_process_restarts_with_growing_delay(log: Path) -> None:
    """Each crash is reported, and the delay before the next start doubles."""
    starts: list[float] = []

    def start() -> Process:
        starts.append(time.monotonic())
        return Process(["sh", "-c", "exit 3"], log)

    supervised = SupervisedProcess("worker", start, start())
    lines: list[str] = []

    def fourth_start() -> bool:
        lines.append(supervised.supervise() or "")
        return len(starts) == 4

    eventually("four starts", fourth_start)
    supervised.process.kill()

    crashes = [line for line in lines if "ended with exit code 3" in line]
    assert [line.rsplit(" ", 2)[1] for line in crashes] == ["0.2", "0.4", "0.8"]
    assert starts[3] - starts[2] > starts[2] - starts[1] > 0.3


def test_restart_reports_the_new_process(log: Path) -> None:
    """The line after a restart names the new process."""

    def start() -> Process:
        return Process(SLEEPER, log)

    supervised = SupervisedProcess("worker", start, start())
    old = supervised.process.pid
    supervised.process.kill()

    lines: list[str] = []

    def restarted() -> bool:
        lines.append(supervised.supervise() or "")
        return supervised.process.pid != old

    eventually("a restart", restarted)
    supervised.process.kill()

    assert str(supervised.process.pid) in lines[-1]


def test_free_ports_are_different_and_free() -> None:
    """A server could listen at each of them."""
    ports = free_ports(20)

    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)
