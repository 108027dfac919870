"""Return freed memory to the system.

glibc maps blocks above a threshold from the system, and returns each one when it is freed. By default glibc raises the threshold
up to 32 MiB whenever a larger block is freed. Later blocks of that size come from glibc's heap, which stays large after a burst.
A threshold that is set explicitly does not move.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_MMAP_THRESHOLD: Final = -3  # of glibc's malloc.h
_THRESHOLD_BYTES: Final = 128 * 1024  # glibc's initial value


def return_large_blocks() -> None:
    """Fix glibc's threshold. Do nothing with another C library."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)
