"""Read the clock that measures ages in this process.

Strategy: the wall clock is for times from other machines: a record's timestamp, an expiry. An age is the difference of two
moments of one process, so it comes from a monotonic clock. On Linux that clock also counts while the machine is suspended,
because rows age meanwhile.
"""

from __future__ import annotations

import time

_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)  # Linux

if _BOOT_CLOCK is not None:

    def monotonic_ms(clock: int = _BOOT_CLOCK) -> int:
        """Return the present moment in milliseconds. Only differences have a meaning."""
        return time.clock_gettime_ns(clock) // 1_000_000

else:

    def monotonic_ms(clock: int = 0) -> int:
        """Return the present moment in milliseconds. Only differences have a meaning."""
        return time.monotonic_ns() // 1_000_000
