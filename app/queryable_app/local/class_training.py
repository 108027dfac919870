"""Make the archive of classes, with which the next start takes half as long, while the nodes have nothing else to do.

Strategy: it begins when all nodes have been hydrated for a while, and has the lowest priority, so that it takes only time that
reads, rows and hydration leave. It ends by itself, also when there is nothing to make.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from queryable_app.local.processes import Process

_QUIET_SECONDS: Final = 30.0
_COMMAND: Final = (sys.executable, "-m", "queryable_app.ingest.training")
_MAKING: Final = b'"making"'  # of the event with which the work begins
_SAID: Final = (
    "Making an archive of Java classes in the background, with the lowest priority (once, about a minute): "
    "the next start takes half as long"
)


class ClassTraining:
    """To be made when all nodes are hydrated."""

    def __init__(
        self,
        log: Path,
        inherited: Sequence[int] = (),
        quiet_seconds: float = _QUIET_SECONDS,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        self.process: Process | None = None
        """None before it begins and after it has ended."""
        self._log = log
        self._inherited = inherited
        self._command = command
        self._begin_at: float | None = time.monotonic() + quiet_seconds
        self._told = False

    def tick(self) -> str | None:
        """To be called again and again: what has happened since the last time, in words, or None."""
        if self._begin_at is not None:
            if time.monotonic() >= self._begin_at:
                self._begin_at = None
                self._log.unlink(missing_ok=True)
                self.process = Process(self._command, self._log, inherited=self._inherited)
            return None
        if self.process is None:
            return None
        if self.process.exit_code is not None:
            self.process.kill()  # what it started must not outlive it
            self.process = None
        if not self._told and _MAKING in self._log.read_bytes():
            self._told = True
            return _SAID
        return None
