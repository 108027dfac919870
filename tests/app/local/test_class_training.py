"""The archive of classes that is made beside a run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from queryable_app.local.class_training import ClassTraining
from queryable_app.local.processes import Process, stop

_LONG = ("import time", 'print(\'{"event": "class-archive", "making": 1}\', flush=True)', "time.sleep(600)")


def command(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(lines)]


def tick_until_said(training: ClassTraining) -> str:
    deadline = time.monotonic() + 60
    while (said := training.tick()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return said


def test_it_begins_only_when_the_nodes_have_been_hydrated_for_a_while(tmp_path: Path) -> None:
    """Before that no process is started."""
    training = ClassTraining(tmp_path / "log", quiet_seconds=600, command=command(*_LONG))

    assert [training.tick() for _ in range(3)] == [None] * 3
    assert training.process is None


def test_it_is_said_once_that_the_archive_is_made(tmp_path: Path) -> None:
    """The line names the priority, and what it is good for."""
    training = ClassTraining(tmp_path / "log", quiet_seconds=0, command=command(*_LONG))
    try:
        said = tick_until_said(training)

        assert "lowest priority" in said
        assert "next start" in said
        assert [training.tick() for _ in range(3)] == [None] * 3
    finally:
        assert isinstance(training.process, Process)
        stop([training.process], 10)


@pytest.mark.parametrize("code", [0, 1])
def test_nothing_is_said_when_there_is_nothing_to_make(tmp_path: Path, code: int) -> None:
    """The process ends by itself, and is not started again."""
    training = ClassTraining(tmp_path / "log", quiet_seconds=0, command=command(f"raise SystemExit({code})"))
    assert training.tick() is None
    first = training.process
    assert first is not None

    deadline = time.monotonic() + 60
    while training.process is not None:
        assert training.tick() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)

    assert first.exit_code == code
    assert training.tick() is None
    assert training.process is None
