"""Read the operating system's data about processes, which may end meanwhile, suspend them, and take their CPU time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_CAP_SYS_NICE = 23


def command_and_environment(process: psutil.Process) -> str:
    """Return the command and the environment, or nothing for a process that has ended or belongs to another user."""
    try:
        environment = " ".join(f"{name}={value}" for name, value in process.environ().items())
        return " ".join(process.cmdline()) + " " + environment
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def worker_pids(parent: int) -> dict[int, int]:
    """Return the process id of each worker that the parent of a pod runs now, by its ordinal."""
    found = {}
    for child in psutil.Process(parent).children():
        try:
            environment, command = child.environ(), child.cmdline()
        except psutil.Error:  # it has just ended
            continue
        if "QT_ORDINAL" in environment and "die_with_parent.py" not in " ".join(command):
            found[int(environment["QT_ORDINAL"])] = child.pid
    return found


@contextmanager
def suspended(family: Sequence[psutil.Process]) -> Iterator[None]:
    """Stop processes with SIGSTOP until the end of the block, which may kill them."""
    for process in family:
        process.suspend()
    try:
        yield
    finally:
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.resume()


@contextmanager
def busy(core: int, processes: int) -> Iterator[None]:
    """Keep a core busy with other processes."""
    started = []
    try:
        for _ in range(processes):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            started.append(process)
            os.sched_setaffinity(process.pid, {core})
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def may_raise_priorities() -> bool:
    """Return whether this process may give another one a higher priority, as root may."""
    status = Path("/proc/self/status")
    if not status.exists():
        return False
    capabilities = re.search(r"^CapEff:\s*(\w+)$", status.read_text(), re.MULTILINE)
    return capabilities is not None and bool(int(capabilities[1], 16) >> _CAP_SYS_NICE & 1)
