"""Share the event loop between ingest's slices and reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from queryable_app.platform.clock import monotonic_ms

READING_MS: Final = 50  # reads arrive if the last one is not older
_OWED_SECONDS_MIN: Final = 0.001


class LoopShare:
    """Give ingest the event loop for one slice at a time, and for at most half of the time while reads arrive.

    A slice owes reads as much time as it took, and time without a slice pays that back. A backlog therefore alternates with
    reads, and a trickle of small slices never waits.
    """

    def __init__(self, last_read_ms: Callable[[], int]) -> None:
        self._last_read_ms = last_read_ms
        self._slot = asyncio.Lock()
        self._owed_until = 0.0  # monotonic; reads are owed the time until then

    @property
    def reads_arrive(self) -> bool:
        return monotonic_ms() - self._last_read_ms() <= READING_MS

    async def run(self, work: Callable[[], None]) -> None:
        """Wait for the slot and for the time that reads are owed, then do the work."""
        async with self._slot:
            if not self.reads_arrive:
                self._owed_until = 0.0
            owed = self._owed_until - time.monotonic()
            # The loop's timers are no finer than a millisecond: less than that is paid back later.
            await asyncio.sleep(owed if owed >= _OWED_SECONDS_MIN else 0)
            self._do(work, time.monotonic())

    def run_now(self, work: Callable[[], None]) -> bool:
        """Do the work at once. Return False, and do nothing, if slices wait or have just taken a millisecond."""
        now = time.monotonic()
        if self._slot.locked() or self._owed_until - now >= _OWED_SECONDS_MIN:
            return False
        self._do(work, now)
        return True

    def _do(self, work: Callable[[], None], now: float) -> None:
        work()
        ended = time.monotonic()
        self._owed_until = ended + (ended - now) + max(0.0, self._owed_until - now)
