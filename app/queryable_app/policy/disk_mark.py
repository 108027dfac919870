"""How full may the disk be before ingest pauses: one decision a look.

Strategy: at the mark what is still being built pauses, since that is what fills a disk fast, and nobody reads it yet. If that
does not help in time, or the disk is half of the way from the mark to full, everything pauses: a copy that is behind still
answers, and one whose disk is full does not. It takes two points below the mark to go on, so that a disk that stands at
the mark does not switch back and forth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Pause = Literal["none", "hydrating", "all"]
"""Of which copies ingest is paused."""

RESUME_POINTS: Final = 2.0
PATIENCE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class DiskMark:
    paused: Pause = "none"
    above_since: float | None = None
    """Since when the disk has been above the mark without a break, in the clock of `now`."""


def look(before: DiskMark, used_percent: float, high_water_percent: float, now: float) -> DiskMark:
    """What follows from the disk being that full now."""
    if used_percent < high_water_percent - RESUME_POINTS:
        return DiskMark()
    if used_percent < high_water_percent:
        return DiskMark(before.paused)
    since = now if before.above_since is None else before.above_since
    urgent = used_percent >= (high_water_percent + 100) / 2
    if urgent or before.paused == "all" or now - since >= PATIENCE_SECONDS:
        return DiskMark("all", since)
    return DiskMark("hydrating", since)
