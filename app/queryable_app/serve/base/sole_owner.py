"""A node's data directory, which belongs to one process at a time.

Strategy: the process before may still be ending, as in a pod that was deleted by force and whose successor is there already.
So it is waited for, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from queryable_app.platform.file_lock import locked
from queryable_app.platform.log import event

LOCK_FILE: Final = "lock"

_PREDECESSOR_SECONDS: Final = 60.0


@contextmanager
def locked_directory(directory: Path, seconds: float = _PREDECESSOR_SECONDS) -> Iterator[None]:
    """Raises OSError when another process keeps it for longer."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK_FILE).open("a") as file:
        if not locked(file):
            event("waiting", path=directory, reason="another process uses it")
            if not locked(file, seconds):
                raise OSError(f"{directory} is in use by another process; stop it first")
        yield
