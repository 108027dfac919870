"""Test the queries of a pod's workers in one process: they run at the same time, and one failure ends all of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import NoReturn, cast

import pytest

from queryable_app.ingest.control import Superseded
from queryable_app.ingest.reading import supervise
from queryable_app.ingest.supervisor import Supervisor
from queryable_app.platform.log import event


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
    supervisors = {"users-r1-0.0": running, "users-r1-0.1": Failing(running, error)}

    with pytest.raises(Superseded) as raised:
        supervise(cast(Mapping[str, Supervisor], supervisors))

    assert raised.value is error


def test_events_of_a_query_name_the_worker(capfd: pytest.CaptureFixture[str]) -> None:
    """The lines of a query in the log of the one process say to which worker it belongs."""

    class Logging:
        def run(self) -> NoReturn:
            event("query", generation=7)
            raise Superseded("enough")

    with pytest.raises(Superseded):
        supervise(cast(Mapping[str, Supervisor], {"users-r1-0.0": Running(), "users-r1-0.1": Logging()}))

    line = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert (line["event"], line["node"], line["generation"]) == ("query", "users-r1-0.1", 7)
