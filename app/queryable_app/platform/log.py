"""Write a process's log to standard error: one line an event, in one form for nodes, ingest, `qtopic run` and the operator.

Strategy: our own code calls `event`, with a name that an operator searches for. `configure` sends the records of `logging`, which
kopf and other libraries use, through the same steps. For machines a line is a JSON object that begins with `time`, `level` and
`event`. At a terminal it is a sentence.

This is the standard library alone: a library of logging takes a twentieth of a second to import, in every process before anything
else.

A log never holds up or ends its process: a line that standard error does not take at once is dropped, and the next one that it
takes says how many were. There is no line per request. No field may hold a secret.
"""

from __future__ import annotations

import json
import logging
import os
import select
import stat
import sys
import threading
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal

LogFormat = Literal["json", "text"]

_RECORD: Final = "log"  # the event of a record of `logging`, which says in its message what happened
_LEVELS: Final = {
    "failed": "error",
    "internal-error": "error",
    "log-lines-dropped": "warning",
}  # others: info
_EVENT_WIDTH: Final = 14
_LIBRARIES: Final = ("kopf", "asyncio", "urllib3", "httpx", "aiohttp", "aiokafka")

_format: LogFormat | None = None
_thread_fields: Final[ContextVar[Mapping[str, object] | None]] = ContextVar("thread_fields", default=None)


def event(name: str, /, **fields: object) -> None:
    """Log what happened, under a name that an operator searches for."""
    _standard_error.write(_line(_event_fields(name, {**(_thread_fields.get() or {}), **fields})))


def add_to_events(**fields: object) -> None:
    """Add these fields to every event of this thread."""
    _thread_fields.set(fields)


def configure(
    log_format: LogFormat | None = None, *, level: int = logging.WARNING, library_level: int = logging.WARNING
) -> None:
    """Log the records of `logging` too. Without a format, a terminal gets sentences and anything else gets JSON."""
    global _format
    _format = log_format
    root = logging.getLogger()
    root.handlers[:] = [_RecordHandler()]
    root.setLevel(level)
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(library_level)


class _StandardError:
    """Write whole lines to standard error, and drop a line that it does not take at once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may log while its thread writes a line
        self._dropped = 0
        self._begin = ""  # a line break, after a line that was cut

    def write(self, line: str) -> None:
        with self._lock:
            if self._dropped:
                lost = _event_fields("log-lines-dropped", {"count": self._dropped})
                line = f"{_line(lost)}\n{line}"
            content = f"{self._begin}{line}\n".encode(errors="backslashreplace")
            try:
                written = _write_at_once(content)
            except (OSError, ValueError, AttributeError):  # it is closed, or there is none
                written = 0
            if written == len(content):
                self._dropped, self._begin = 0, ""
            else:
                self._dropped += 1
                self._begin = "\n" if written else self._begin


class _RecordHandler(logging.Handler):
    """Write the records of `logging`."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            _standard_error.write(_line(_record_fields(record)))
        except Exception as error:  # the arguments do not fit the message
            event("internal-error", part=record.name, error=repr(error))


def _write_at_once(content: bytes) -> int:
    """Return how many bytes standard error took without blocking."""
    try:
        descriptor = sys.stderr.fileno()
    except OSError:  # it has no descriptor
        sys.stderr.write(content.decode())
        return len(content)
    is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    # A pipe or a terminal that takes anything takes this much without blocking.
    piece = len(content) if is_file else select.PIPE_BUF
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    written = 0
    # A file never blocks. Without descriptors `poll` would fail, and the line would be lost.
    while written < len(content) and (is_file or poller.poll(0)):
        written += os.write(descriptor, content[written : written + piece])
    return written


def _event_fields(name: str, fields: Mapping[str, object]) -> dict[str, Any]:
    return {"time": _iso(datetime.now(UTC)), "level": _LEVELS.get(name, "info"), "event": name, **fields}


def _record_fields(record: logging.LogRecord) -> dict[str, Any]:
    line = {
        "time": _iso(datetime.fromtimestamp(record.created, UTC)),
        "level": record.levelname.lower(),
        "event": _RECORD,
        "message": record.getMessage(),
    }
    if (namespace := getattr(record, "namespace", None)) is not None:
        line |= {"namespace": namespace, "name": getattr(record, "object", "")}
    line["logger"] = record.name
    if record.exc_info:
        line["trace"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
    return line


def _line(fields: Mapping[str, Any]) -> str:
    try:
        as_text = sys.stderr.isatty() if _format is None else _format == "text"
    except (ValueError, AttributeError):
        as_text = False
    if as_text:
        return _sentence(dict(fields))
    try:
        return json.dumps(fields, default=str)
    except (TypeError, ValueError):  # an object has keys that JSON lacks, or holds itself
        return json.dumps({name: str(value) for name, value in fields.items()})


def _sentence(fields: dict[str, Any]) -> str:
    time, level, name = fields.pop("time"), fields.pop("level"), fields.pop("event")
    trace = fields.pop("trace", "")
    begin = f"{datetime.fromisoformat(time).astimezone():%H:%M:%S} "
    if "namespace" in fields:
        begin += f"{fields.pop('namespace')}/{fields.pop('name')}: "
    if level != "info":
        begin += f"{level}: "
    if name == _RECORD:
        begin += fields["message"]
    else:
        details = " ".join(f"{key}={value}" for key, value in fields.items())
        begin += f"{name:<{_EVENT_WIDTH}} {details}".rstrip()
    return f"{begin}\n{trace}" if trace else begin


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


_standard_error: Final = _StandardError()
