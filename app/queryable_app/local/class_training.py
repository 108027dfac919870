"""Build the archive of Java classes that halves the time of the next start, while the nodes are idle.

Strategy: it starts when all nodes have been hydrated for a while, and runs with the lowest priority, so that it takes no time
from reads, ingest and hydration. Its process ends by itself, also if the archive exists already.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from queryable_app.platform.priority import take_idle_time_only
from queryable_app.platform.processes import Process

_QUIET_SECONDS: Final = 30.0
_COMMAND: Final = (sys.executable, "-m", "queryable_app.ingest.training")
_BEGUN: Final = b'"making"'  # in the process's first event
_MESSAGE: Final = (
    "Building an archive of Java classes in the background, with the lowest priority (once, about a minute): "
    "the next start takes half as long"
)


class ClassTraining:
    """Own the process that builds the archive. Create it when all nodes are hydrated."""

    def __init__(
        self,
        log: Path,
        inherited: Sequence[int] = (),
        quiet_seconds: float = _QUIET_SECONDS,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        self.process: Process | None = None
        """None before the process starts and after it has ended."""
        self._log = log
        self._inherited = inherited
        self._command = command
        self._start_at: float | None = time.monotonic() + quiet_seconds
        self._reported = False

    def tick(self) -> str | None:
        """Start or end the process if it is due, and return what has happened since the last call as a line, or None."""
        if self._start_at is not None:
            if time.monotonic() >= self._start_at:
                self._start_at = None
                self._log.unlink(missing_ok=True)
                self.process = Process(self._command, self._log, inherited=self._inherited)
                take_idle_time_only(self.process.pid)  # from its first import on
            return None
        if self.process is None:
            return None
        if self.process.exit_code is not None:
            self.process.kill()  # its children must not outlive it
            self.process = None
        if not self._reported and _BEGUN in self._log.read_bytes():
            self._reported = True
            return _MESSAGE
        return None
