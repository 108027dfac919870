"""How the C library gives memory back.

glibc takes blocks above a threshold from the system, and gives each back when it is freed. By itself it raises that
threshold, up to 32 MiB, whenever a larger block is freed; from then on blocks of that size come from its heap, which
keeps its size after a burst. A threshold that is set does not move.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_MMAP_THRESHOLD: Final = -3  # of glibc's malloc.h
_THRESHOLD_BYTES: Final = 128 * 1024  # where glibc begins


def return_large_blocks() -> None:
    """Keep the threshold where it is. Another C library than glibc is left as it is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)
