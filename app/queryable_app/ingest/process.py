"""Hold what a process of ingest has: a JVM, a scratch directory, and its end.

Ingest keeps no state, so it ends by killing the JVM. If the JVM dies by itself, the process ends with an exit code of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Final, NoReturn

from queryable_app.platform.log import event

JVM_DIED: Final = 3
"""The exit code when the JVM has ended by itself."""


class IngestProcess:
    """End the JVM and remove its files when this process ends."""

    def __init__(self, run_dir: Path, drain_seconds: int) -> None:
        self._drain_seconds = drain_seconds
        self._draining = False
        scratches = run_dir / "ingest"
        shutil.rmtree(scratches, ignore_errors=True)  # left by a process that was killed
        scratches.mkdir(parents=True)
        self.scratch = Path(tempfile.mkdtemp(dir=scratches))
        self._ending = threading.Lock()

    def watch(self, jvm: subprocess.Popen[bytes]) -> None:
        threading.Thread(target=self._wait_for_jvm, args=(jvm,), name="jvm-watch", daemon=True).start()

    def end(self, exit_code: int, name: str, **fields: object) -> NoReturn:
        """End the process at once; of several callers the first one gives the reason."""
        if not self._ending.acquire(blocking=False):
            signal.pause()  # the other thread ends the process
        event(name, **fields)
        for child in children():
            os.kill(child, signal.SIGKILL)
        shutil.rmtree(self.scratch, ignore_errors=True)
        os._exit(exit_code)

    def handle_end_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._on_end_signal())

    def _on_end_signal(self) -> None:
        """Go on feeding serve while it drains, so that reads that wait for freshness are answered; end at a second signal."""
        if self._drain_seconds and not self._draining:
            self._draining = True
            event("draining", seconds=self._drain_seconds)
            last = threading.Timer(self._drain_seconds, self.end, (0, "stopped"))
            last.daemon = True
            last.start()
        else:
            self.end(0, "stopped")

    def _wait_for_jvm(self, jvm: subprocess.Popen[bytes]) -> None:
        code = jvm.wait()
        # A signal to the whole process group reaches the JVM too. The handler in this process then reports the end.
        threading.Event().wait(0.2)
        if self._draining:
            self.end(0, "stopped")
        self.end(JVM_DIED, "jvm-died", code=code)


def children() -> list[int]:
    """Return the process ids of this process's children: the JVM, also while it starts."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has just ended
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.append(int(status.parent.name))
    return found
