"""A node's data directory, which belongs to one process at a time.

Strategy: the process before may still be ending, as in a pod that was deleted by force and whose successor is there already.
So it is waited for, and that is said. The lock is the kernel's: it ends with the process that has it, however that ends.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from queryable_app.log import event

LOCK_FILE: Final = "lock"

_PREDECESSOR_SECONDS: Final = 60.0
_LOOK_AGAIN_SECONDS: Final = 0.05


@contextmanager
def owned(directory: Path, seconds: float = _PREDECESSOR_SECONDS) -> Iterator[None]:
    """Raises OSError when another process keeps it for longer."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK_FILE).open("a") as file:
        if not _locked(file):
            event("waiting", path=directory, reason="another process uses it")
            until = time.monotonic() + seconds
            while not _locked(file):
                if time.monotonic() >= until:
                    raise OSError(f"{directory} is in use by another process; stop it first")
                time.sleep(_LOOK_AGAIN_SECONDS)
        yield


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
