"""Test the archive of Java classes that is built beside a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from queryable_app.local.class_training import ClassTraining
from queryable_app.platform.processes import Process, stop
from tests.support.waiting import eventually

_LONG = ("import time", 'print(\'{"event": "class-archive", "making": 1}\', flush=True)', "time.sleep(600)")


def command(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(lines)]


def test_training_starts_only_after_a_quiet_time(tmp_path: Path) -> None:
    """No process starts before the nodes have been hydrated for a while."""
    training = ClassTraining(tmp_path / "log", quiet_seconds=600, command=command(*_LONG))

    assert [training.tick() for _ in range(3)] == [None] * 3
    assert training.process is None


def test_training_is_reported_once(tmp_path: Path) -> None:
    """The line names the priority and the benefit."""
    training = ClassTraining(tmp_path / "log", quiet_seconds=0, command=command(*_LONG))
    try:
        line = eventually("a line", training.tick, 60)

        assert "lowest priority" in line
        assert "next start" in line
        assert [training.tick() for _ in range(3)] == [None] * 3
    finally:
        assert isinstance(training.process, Process)
        stop([training.process], 10)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a policy for idle time")
def test_training_takes_idle_time_only(tmp_path: Path) -> None:
    """The process leaves reads their time from its start on, while it imports and only finds that there is an archive."""
    training = ClassTraining(
        tmp_path / "log", quiet_seconds=0, command=command("import time; time.sleep(600)")
    )
    training.tick()
    process = training.process
    assert process is not None
    try:
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
    finally:
        process.kill()


@pytest.mark.parametrize("code", [0, 1])
def test_training_that_is_not_needed_is_not_reported(tmp_path: Path, code: int) -> None:
    """The process ends by itself, and does not start again."""
    training = ClassTraining(tmp_path / "log", quiet_seconds=0, command=command(f"raise SystemExit({code})"))
    assert training.tick() is None
    first = training.process
    assert first is not None

    def ended() -> bool:
        assert training.tick() is None
        return training.process is None

    eventually("the process has ended", ended, 60)

    assert first.exit_code == code
    assert training.tick() is None
    assert training.process is None
