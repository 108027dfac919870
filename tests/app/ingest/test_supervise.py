"""Test the queries of a pod's workers in one process: they run at the same time, and one failure ends all of them."""

from __future__ import annotations

import threading
from typing import NoReturn, cast

import pytest

from queryable_app.ingest.__main__ import supervise
from queryable_app.ingest.control import Superseded
from queryable_app.ingest.supervisor import Supervisor


class Running:
    """Stand in for a supervisor whose query goes on."""

    def __init__(self) -> None:
        self.began = threading.Event()

    def run(self) -> NoReturn:
        self.began.set()
        threading.Event().wait()
        raise AssertionError("not reached")


class Failing:
    """Stand in for a supervisor that fails once another one runs."""

    def __init__(self, other: Running, error: Exception) -> None:
        self._other, self._error = other, error

    def run(self) -> NoReturn:
        assert self._other.began.wait(10)
        raise self._error


def test_queries_of_workers_run_at_the_same_time() -> None:
    """No supervisor waits for another one, and the process ends with the error of the first that fails."""
    running = Running()
    error = Superseded("a newer ingest has taken over")
    supervisors = [running, Failing(running, error)]

    with pytest.raises(Superseded) as raised:
        supervise([cast(Supervisor, each) for each in supervisors])

    assert raised.value is error
