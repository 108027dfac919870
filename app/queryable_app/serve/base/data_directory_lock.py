"""Lock a node's data directory, so that one process at a time uses it.

Strategy: a predecessor may still be ending, for example a pod that was deleted by force while its successor starts. So a new
process logs that it waits, and gives up after a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from queryable_app.platform.file_lock import FileLocked, file_lock
from queryable_app.platform.log import event

LOCK_FILE: Final = "lock"

_PREDECESSOR_SECONDS: Final = 60.0


@contextmanager
def locked_directory(directory: Path, wait_seconds: float = _PREDECESSOR_SECONDS) -> Iterator[None]:
    """Lock the directory, or raise OSError if another process uses it for longer than `wait_seconds`."""
    directory.mkdir(parents=True, exist_ok=True)

    def log_wait() -> None:
        event("waiting", path=directory, reason="another process uses it")

    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(directory / LOCK_FILE, wait_seconds, log_wait))
        except FileLocked:
            raise OSError(f"{directory} is in use by another process; stop it first") from None
        yield
