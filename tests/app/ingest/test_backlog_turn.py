"""Test the turns in which tasks read a backlog after the JVM's start (ingest/writer/BacklogTurn.java)."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from queryable_app.ingest.java_classes import java_class, own_class

_RECORDS: Final = 1000
"""So many records without a pause are a backlog."""

_WAIT_MS: Final = 10


class Tasks:
    """Make tasks that share one turn."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self.turns = java_class(jvm, "java.util.concurrent.Semaphore")(1, True)

    def task(self, start_seconds: float = 3600) -> Any:
        """Return the turn of a task, in a JVM whose start takes so long from now on."""
        until = java_class(self._jvm, "java.lang.System").nanoTime() + int(start_seconds * 1e9)
        return own_class(self._jvm, "BacklogTurn")(self.turns, until)


@pytest.fixture
def tasks(spark: SparkSession) -> Tasks:
    return Tasks(spark._jvm)


def read(task: Any, records: int = _RECORDS) -> set[bool]:
    """Read so many records. Return whether the task had a turn for them."""
    wait = getattr(task, "await")
    return {wait(_WAIT_MS) for _ in range(records)}


def test_first_records_need_no_turn(tasks: Tasks) -> None:
    """A task reads a thousand records without a turn, since they may be all there are."""
    assert read(tasks.task()) == {False}
    assert tasks.turns.availablePermits() == 1


def test_backlog_is_read_in_turns(tasks: Tasks) -> None:
    """A task that goes on takes a turn for each further thousand records, and another task gets none meanwhile."""
    first, second = tasks.task(), tasks.task()
    read(first), read(second)

    assert read(first) == {True}
    assert read(second, 1) == {False}


def test_turn_goes_to_the_task_that_waits(tasks: Tasks) -> None:
    """A task that has no record at hand leaves its turn, and begins to count again."""
    first, second = tasks.task(), tasks.task()
    read(first), read(second)
    read(first, 1)
    first.end()

    assert read(second) == {True}
    assert read(first) == {False}


def test_task_without_a_turn_reads_on(tasks: Tasks) -> None:
    """A task that gets no turn in time reads a thousand records without one, and then waits again."""
    stuck, other = tasks.task(), tasks.task()
    read(stuck), read(other)
    read(stuck, 1)

    assert read(other) == {False}
    stuck.end()
    assert read(other) == {True}


def test_wait_is_short(tasks: Tasks) -> None:
    """A task waits for its turn for a quarter of a second at most, though its batch lasts longer."""
    stuck, other = tasks.task(), tasks.task()
    read(stuck), read(other)
    read(stuck, 1)

    began = time.monotonic()
    assert not getattr(other, "await")(60_000)  # Python has the keyword
    assert time.monotonic() - began < 30


def test_turns_end_with_the_start(tasks: Tasks) -> None:
    """Once the JVM's code is compiled, no task waits for a turn or takes one."""
    task = tasks.task(start_seconds=0)
    read(task)

    assert read(task) == {False}
    assert tasks.turns.availablePermits() == 1
