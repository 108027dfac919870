"""Raise the limit of open files and sockets of this process.

A soft limit of 1 024 is a common default, which protects programs that call select(); none of ours does. Every process raises it
to the hard limit at its start, and its children inherit that.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

_DESCRIPTORS_MAX: Final = 1 << 20
"""More than any node uses, and the default maximum of Linux. A hard limit may be "unlimited"."""


def descriptor_limit() -> int:
    """Return how many descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open descriptors to the hard limit, and return the new limit."""
    soft, hard = descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft < wanted:
        with suppress(OSError, ValueError):  # fs.nr_open or a sandbox forbids it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return descriptor_limit()
