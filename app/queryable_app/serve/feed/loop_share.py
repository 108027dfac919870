"""Share the event loop between ingest's slices and reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from queryable_app.platform.clock import monotonic_ms

READING_MS: Final = 50  # reads arrive if the last one is not older
_DEBT_SECONDS_MIN: Final = 0.001


class LoopShare:
    """Give ingest the event loop for one slice at a time, and for at most half of the time while reads arrive.

    A slice adds its duration to a debt, and time without a slice pays it back. A backlog therefore alternates with reads,
    and a trickle of small slices never waits.
    """

    def __init__(self, last_read_ms: Callable[[], int]) -> None:
        self._last_read_ms = last_read_ms
        self._slot = asyncio.Lock()
        self._debt_seconds = 0.0
        self._last_end = 0.0

    @property
    def reads_arrive(self) -> bool:
        return monotonic_ms() - self._last_read_ms() <= READING_MS

    async def run(self, work: Callable[[], None]) -> None:
        """Wait for the slot and for the time that reads are owed, then do the work."""
        async with self._slot:
            now = time.monotonic()
            if not self.reads_arrive:
                self._debt_seconds = 0.0
            unpaid = self._unpaid_seconds(now)
            # The loop's timers are no finer than a millisecond: a smaller debt is paid later.
            await asyncio.sleep(unpaid if unpaid >= _DEBT_SECONDS_MIN else 0)
            self._do(work)

    def run_now(self, work: Callable[[], None]) -> bool:
        """Do the work at once. Return False, and do nothing, if slices wait or have just taken a millisecond."""
        if self._slot.locked() or self._unpaid_seconds(time.monotonic()) >= _DEBT_SECONDS_MIN:
            return False
        self._do(work)
        return True

    def _unpaid_seconds(self, now: float) -> float:
        return max(0.0, self._debt_seconds - (now - self._last_end))

    def _do(self, work: Callable[[], None]) -> None:
        started = time.monotonic()
        work()
        ended = time.monotonic()
        self._debt_seconds = self._unpaid_seconds(started) + ended - started
        self._last_end = ended
