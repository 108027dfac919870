"""Probe whether a store can be opened again, with the operations that RocksDB needs.

Strategy: closing a store ends its reads, and opening it needs descriptors and disk space. A store that refuses writes still
answers reads, so it is closed only after this probe shows that opening it will succeed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PROBE_SUFFIX: Final = ".probe"
_DESCRIPTORS: Final = 32  # for a store's log, manifest, new tables and their directories
_WRITTEN_BYTES: Final = 4096


def probe(path: Path, room_bytes: int) -> None:
    """Raise OSError if a file at `path` cannot take `room_bytes`, or if too few descriptors are left."""
    opened: list[int] = []
    try:
        opened.append(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o600))
        path.unlink()  # at once, so that a crash leaves nothing
        while len(opened) < _DESCRIPTORS:
            opened.append(os.dup(opened[0]))
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(opened[0], 0, _WRITTEN_BYTES + room_bytes)
        os.pwrite(opened[0], b"\0" * _WRITTEN_BYTES, 0)
        os.fsync(opened[0])
    finally:
        for descriptor in opened:
            os.close(descriptor)
