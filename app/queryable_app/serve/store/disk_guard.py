"""Pause ingest while the disk is fuller than the high-water mark. Reads continue.

Strategy: once a second, measure the file system of the data directory as `df` does, so that other files on it count too.
`policy/disk_mark.py` decides what follows.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from queryable_app.platform.log import event
from queryable_app.policy.disk_mark import DiskMark, Pause, next_mark
from queryable_app.serve.base.background import Background

_LOOK_SECONDS: Final = 1.0


def used_percent(directory: Path) -> float:
    """Return the used share of what this process may use, without the blocks that are reserved for root."""
    usage = shutil.disk_usage(directory)
    return 100 * usage.used / max(1, usage.used + usage.free)


class DiskGuard(Background):
    """Measure the disk from `start` to `stop`, and call `pause` on each change."""

    def __init__(
        self,
        directory: Path,
        high_water_percent: float,
        pause: Callable[[Pause], None],
        used: Callable[[Path], float] = used_percent,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._directory = directory
        self._pause = pause
        self._used = used
        self._look_seconds = look_seconds
        self._mark = DiskMark()
        self.high_water_percent = high_water_percent
        self.used_percent = -1.0
        """The last measurement; -1 before the first."""

    @property
    def paused(self) -> Pause:
        return self._mark.paused

    @property
    def pause_reason(self) -> str:
        return (
            f"ingest is paused: the disk is {self.used_percent:.1f} % full, and the mark is "
            f"{self.high_water_percent:g} %"
        )

    def look(self) -> None:
        self.used_percent = self._used(self._directory)
        before, self._mark = (
            self._mark,
            next_mark(self._mark, self.used_percent, self.high_water_percent, time.monotonic()),
        )
        if self._mark.paused != before.paused:
            event(
                "disk-high-water",
                paused=self._mark.paused,
                was=before.paused,
                used_percent=round(self.used_percent, 1),
                high_water_percent=self.high_water_percent,
            )
            self._pause(self._mark.paused)

    async def start(self) -> None:
        """Measure once before ingest begins, then at intervals."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self.look()
        await super().start()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            self.look()
