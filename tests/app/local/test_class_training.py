"""Test the archive of Java classes that is built beside a run."""

from __future__ import annotations

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
