"""Test the lines of a process's log, and what happens when standard error does not take them."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from datetime import datetime
from typing import Any

import pytest

from queryable_app.platform import log
from queryable_app.platform.log import configure, event

LOGGER = logging.getLogger("queryable_operator")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in log._LIBRARIES}
    monkeypatch.setattr(log, "_format", None)
    monkeypatch.setattr(log._standard_error, "_dropped", 0)
    monkeypatch.setattr(log._standard_error, "_begin", "")
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def only_line(written: io.StringIO) -> dict[str, Any]:
    """Return the one line that was written, without its time."""
    (line,) = written.getvalue().splitlines()
    fields: dict[str, Any] = json.loads(line)
    assert list(fields)[:3] == ["time", "level", "event"]
    assert datetime.fromisoformat(fields.pop("time")).tzinfo is not None
    return fields


def sentence(written: io.StringIO) -> str:
    """Return what was written, without the time of day."""
    text = written.getvalue()
    assert re.match(r"\d\d:\d\d:\d\d ", text)
    return text[9:]


def log_defect(logger: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("A pass failed")


def test_event_is_a_json_object() -> None:
    """An event has its time, level, name and fields; a field that JSON lacks is its text."""
    with redirect_stderr(io.StringIO()) as stderr:
        event("placement", epoch=3, gained=[1, 2], path=ValueError("x"))
    assert only_line(stderr) == {
        "level": "info",
        "event": "placement",
        "epoch": 3,
        "gained": [1, 2],
        "path": "x",
    }


@pytest.mark.parametrize("name", ["failed", "internal-error"])
def test_failure_has_level_error(name: str) -> None:
    """Events for failures have the level error."""
    with redirect_stderr(io.StringIO()) as stderr:
        event(name, reason="disk full")
    assert only_line(stderr) == {"level": "error", "event": name, "reason": "disk full"}


def test_record_is_a_json_object() -> None:
    """A record of `logging` has the same first fields, its message and its logger."""
    with redirect_stderr(io.StringIO()) as stderr:
        configure("json", level=logging.INFO)
        LOGGER.info("%s holds the Lease", "pod-1")
    assert only_line(stderr) == {
        "level": "info",
        "event": "log",
        "message": "pod-1 holds the Lease",
        "logger": "queryable_operator",
    }


def test_record_names_its_resource_and_has_its_trace() -> None:
    """A record about a resource has its namespace and name; one with an exception has the trace."""
    with redirect_stderr(io.StringIO()) as stderr:
        configure("json", level=logging.INFO)
        log_defect(logging.LoggerAdapter(LOGGER, {"namespace": "default", "object": "users"}))
    fields = only_line(stderr)
    trace = fields.pop("trace")
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.endswith("\nValueError: no")
    assert fields == {
        "level": "error",
        "event": "log",
        "message": "A pass failed",
        "namespace": "default",
        "name": "users",
        "logger": "queryable_operator",
    }


def test_terminal_gets_sentences() -> None:
    """At a terminal an event is its name and its fields."""
    with redirect_stderr(Terminal()) as stderr:
        event("peer-away", peer="http://n1", reason="silent")
    assert sentence(stderr) == "peer-away      peer=http://n1 reason=silent\n"


def test_sentence_of_a_failure_ends_with_its_trace() -> None:
    """A sentence above the level info names the level, and a trace has its own lines."""
    with redirect_stderr(Terminal()) as stderr:
        event("internal-error", part="sweeper", trace="Traceback\n  ValueError")
    assert sentence(stderr) == "error: internal-error part=sweeper\nTraceback\n  ValueError\n"


def test_sentence_of_a_record_begins_with_its_resource() -> None:
    """In the format text a record is its resource, its level and its message, also without a terminal."""
    with redirect_stderr(io.StringIO()) as stderr:
        configure("text", level=logging.INFO)
        logging.LoggerAdapter(LOGGER, {"namespace": "default", "object": "users"}).warning("No node answers")
    assert sentence(stderr) == "default/users: warning: No node answers\n"


def test_format_json_holds_at_a_terminal() -> None:
    """A format that is set wins over what standard error is."""
    with redirect_stderr(Terminal()) as stderr:
        configure("json")
        event("draining")
    assert only_line(stderr) == {"level": "info", "event": "draining"}


@pytest.mark.parametrize(
    ("logger", "level", "lines"),
    [
        ("queryable_operator", logging.DEBUG, 0),
        ("queryable_operator", logging.INFO, 1),
        ("kopf.objects", logging.INFO, 0),
        ("kopf.objects", logging.WARNING, 1),
    ],
)
def test_libraries_log_warnings_only(logger: str, level: int, lines: int) -> None:
    """Libraries have a level of their own."""
    with redirect_stderr(io.StringIO()) as stderr:
        configure("json", level=logging.INFO)
        logging.getLogger(logger).log(level, "x")
    assert len(stderr.getvalue().splitlines()) == lines


def test_message_with_wrong_arguments_is_an_event() -> None:
    """A record that cannot be formatted is one line too, and raises nothing."""
    with redirect_stderr(io.StringIO()) as stderr:
        configure("json", level=logging.INFO)
        LOGGER.info("%d of %d", 1)
    fields = only_line(stderr)
    assert (fields["event"], fields["part"]) == ("internal-error", "queryable_operator")


def test_field_that_json_refuses_is_its_text() -> None:
    """A field whose keys are no JSON does not raise."""
    with redirect_stderr(io.StringIO()) as stderr:
        event("placement", gained={(0, 1): "x"})
    assert only_line(stderr)["gained"] == "{(0, 1): 'x'}"


@pytest.mark.parametrize("exists", [True, False])
def test_closed_standard_error_is_ignored(monkeypatch: pytest.MonkeyPatch, exists: bool) -> None:
    """A process whose standard error is closed, or was closed before its start, goes on."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed if exists else None)
    configure()
    event("starting")
    LOGGER.warning("x")


def test_reader_that_is_behind_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines for a full pipe are dropped and counted, and the lines that the pipe takes are whole."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stderr", pipe)
        for number in range(5000):
            event("placement", epoch=number)
        first = reader.read(1 << 20).splitlines()
        event("stopped", trace="x" * 10_000)
        *rest, last = reader.read(1 << 20).splitlines()

    epochs = [json.loads(line)["epoch"] for line in first]
    assert epochs == list(range(len(epochs)))
    (dropped,) = [json.loads(line) for line in rest if line]
    assert (dropped["event"], dropped["level"], dropped["count"]) == (
        "log-lines-dropped",
        "warning",
        5000 - len(epochs),
    )
    assert json.loads(last)["event"] == "stopped"


def test_closed_reader_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe without a reader drops the line."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stderr", pipe)
        event("starting")


def test_signal_handler_may_log_during_a_write() -> None:
    """A signal handler that logs while its thread writes a line does not wait for that line."""

    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            if "starting" in text:
                signal.raise_signal(signal.SIGUSR1)
            return super().write(text)

    before = signal.signal(signal.SIGUSR1, lambda *_: event("draining"))
    try:
        with redirect_stderr(Interrupted()) as stderr:
            event("starting")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [json.loads(line)["event"] for line in stderr.getvalue().splitlines()] == ["draining", "starting"]


def test_log_loads_the_standard_library_alone() -> None:
    """The log, which every process imports first, loads no library and no asyncio."""
    code = "import queryable_app.platform.log, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "asyncio" not in loaded
    assert {name for name in loaded - sys.stdlib_module_names if not name.startswith("_")} == {
        "queryable_app"
    }
