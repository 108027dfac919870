"""A lock on a file, which one process has at a time. It is the kernel's: it ends with the process, however that ends."""

from __future__ import annotations

import fcntl
import time
from typing import IO, Final

_LOOK_AGAIN_SECONDS: Final = 0.05


def locked(file: IO[str], wait_seconds: float = 0.0) -> bool:
    """Whether it is this process that has it now, until it closes the file or ends."""
    until = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
        time.sleep(_LOOK_AGAIN_SECONDS)
