"""Decide which writes are refused because their caller writes too many bytes.

Strategy: what a caller writes is a debt, which shrinks by the bytes per second that it may write. A caller that owes more than
one second's bytes waits. So a caller may write in bursts, and one request may be larger than a second's bytes.
"""

from __future__ import annotations

from typing import Final

_CALLERS_MAX: Final = 10_000


class WriteRates:
    """Count the bytes of each caller. `now` is any monotonic clock, in seconds."""

    def __init__(self, callers_max: int = _CALLERS_MAX) -> None:
        self._callers_max = callers_max
        self._debts: dict[str, tuple[float, float]] = {}
        """What each caller owed, and when, the caller that wrote last at the end."""

    def take(self, caller: str, size: int, bytes_per_second: int, now: float) -> float:
        """Count `size` bytes and return 0, or count nothing and return the seconds until the caller may write."""
        owed, at = self._debts.get(caller, (0.0, now))
        owed = max(0.0, owed - (now - at) * bytes_per_second)
        if owed > bytes_per_second:
            return (owed - bytes_per_second) / bytes_per_second
        self._debts.pop(caller, None)
        self._debts[caller] = (owed + size, now)
        if len(self._debts) > self._callers_max:
            del self._debts[next(iter(self._debts))]
        return 0.0
