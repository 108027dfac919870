"""Lock a file for one process at a time. The kernel frees the lock when the process ends, however it ends."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import IO, Final

_RETRY_SECONDS: Final = 0.05


class FileLocked(Exception):
    """Another process has the lock."""


@contextmanager
def file_lock(
    path: Path, wait_seconds: float = inf, on_wait: Callable[[], None] = lambda: None
) -> Iterator[IO[str]]:
    """Lock the file, which is created if needed, and yield it. Raise FileLocked if another process keeps the lock for
    `wait_seconds`; `on_wait` is called before the wait."""
    with path.open("a") as file:
        if not locked(file):
            if wait_seconds > 0:
                on_wait()
            if not locked(file, wait_seconds):
                raise FileLocked(str(path))
        yield file


def locked(file: IO[str], wait_seconds: float = 0.0) -> bool:
    """Lock an open file until it is closed. Return False if another process keeps the lock for `wait_seconds`."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(_RETRY_SECONDS)
