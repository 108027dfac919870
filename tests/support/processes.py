"""Read the operating system's data about processes, which may end meanwhile."""

from __future__ import annotations

import psutil


def command_and_environment(process: psutil.Process) -> str:
    """Return the command and the environment, or nothing for a process that has ended or belongs to another user."""
    try:
        environment = " ".join(f"{name}={value}" for name, value in process.environ().items())
        return " ".join(process.cmdline()) + " " + environment
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""
