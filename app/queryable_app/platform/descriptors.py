"""How many files and sockets this process may have open.

A soft limit of 1 024 is a common default that protects programs which call select(); none of ours does. Every process
raises it to the hard limit when it starts, and its children inherit that.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

_DESCRIPTORS_MAX: Final = 1 << 20
"""More than any node uses, and what Linux allows unless told otherwise. A hard limit may be "unlimited"."""


def descriptor_limit() -> int:
    """Return how many descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open descriptors to the hard limit, and return what it is now."""
    soft, hard = descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft < wanted:
        with suppress(OSError, ValueError):  # fs.nr_open or a sandbox forbids it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return descriptor_limit()
