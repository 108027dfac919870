"""Read the operating system's data about processes, which may end meanwhile, and suspend them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil


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
