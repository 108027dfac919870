"""One line for each thing that happened, on standard error: JSON for machines, or a sentence for a person.

Strategy: the operator's own records say of which resource they speak, in fields of their own; kopf's are warnings at least.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, Literal

LogFormat = Literal["json", "text"]

_LIBRARIES: Final = ("kopf", "asyncio", "urllib3", "httpx", "aiohttp", "aiokafka")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if (namespace := getattr(record, "namespace", None)) is not None:
            line |= {"namespace": namespace, "name": getattr(record, "object", "")}
        line["logger"] = record.name
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Sentences(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        namespace = getattr(record, "namespace", None)
        where = "" if namespace is None else f"{namespace}/{getattr(record, 'object', '')}: "
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        line = f"{_time(record).astimezone():%H:%M:%S} {where}{level}{record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(log_format: LogFormat, *, verbose: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else Sentences())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(logging.INFO if verbose else logging.WARNING)


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
