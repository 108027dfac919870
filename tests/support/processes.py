"""What the operating system tells about processes, which may end while they are looked at."""

from __future__ import annotations

import psutil


def command_and_environment(process: psutil.Process) -> str:
    """Nothing for a process that has ended, or that belongs to somebody else."""
    try:
        environment = " ".join(f"{name}={value}" for name, value in process.environ().items())
        return " ".join(process.cmdline()) + " " + environment
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""
