"""Keep the memory of this process out of core dumps: it has tokens and keys in it.

The children of a process inherit both settings. A limit of zero writes no file. A program that the kernel pipes dumps to gets one
all the same, so the filter leaves every kind of memory out of it. The process stays readable in /proc, as it would not be with
PR_SET_DUMPABLE: certificates are loaded through /proc/self/fd, also by a process that is not root.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

_FILTER: Final = Path("/proc/self/coredump_filter")


def forbid_core_dumps() -> None:
    """Forbid core dumps of this process, and of the children that it starts from now on."""
    with suppress(OSError, ValueError):  # a sandbox forbids it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # another system than Linux, or /proc is read-only
        _FILTER.write_text("0x0")
