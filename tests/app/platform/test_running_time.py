"""Test the clock that stands still while a thread waits for a core, on Linux's real scheduler."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from queryable_app.platform.running_time import running_seconds
from tests.support.processes import busy

SECONDS = 0.4

pytestmark = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="Linux's /proc/thread-self/schedstat is missing"
)


def measured(work: Callable[[], None]) -> tuple[float, float]:
    """Do the work in a thread. Return how far this clock and the monotonic one have moved."""
    found: list[float] = []

    def run() -> None:
        running, monotonic = running_seconds(), time.monotonic()
        work()
        found.extend((running_seconds() - running, time.monotonic() - monotonic))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0], found[1]


def test_waiting_for_a_core_does_not_count() -> None:
    """A thread that shares its core with three busy processes sees less than half of the time pass."""
    core = min(os.sched_getaffinity(0))

    def spin() -> None:
        os.sched_setaffinity(0, {core})  # of this thread
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            pass

    with busy(core, 3):
        running, monotonic = measured(spin)
    assert running < 0.5 * monotonic


def test_sleep_counts() -> None:
    """A thread that waits for something else than a core sees that time pass."""
    running, monotonic = measured(lambda: time.sleep(SECONDS))
    assert SECONDS / 2 < running <= monotonic + 0.001
