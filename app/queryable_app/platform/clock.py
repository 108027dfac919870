"""The clock by which this process measures how old something is.

Strategy: the wall clock is for what other machines say in it: a record's timestamp, an expiry. An age is the difference of two
moments of one process, so it comes from a clock that never steps. Where the system has one, that clock also counts the time in
which the machine is suspended: rows age meanwhile.
"""

from __future__ import annotations

import time

_SUSPENDED_TOO: int | None = getattr(time, "CLOCK_BOOTTIME", None)  # Linux

if _SUSPENDED_TOO is not None:

    def monotonic_ms(clock: int = _SUSPENDED_TOO) -> int:
        """Return the present moment in milliseconds; only differences mean anything."""
        return time.clock_gettime_ns(clock) // 1_000_000

else:

    def monotonic_ms(clock: int = 0) -> int:
        """Return the present moment in milliseconds; only differences mean anything."""
        return time.monotonic_ns() // 1_000_000
