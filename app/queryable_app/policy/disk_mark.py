"""Decide when ingest pauses because the disk fills up.

Strategy: at the mark, hydrating replicas pause: they fill a disk fast, and no read needs them yet. If that does not help in time,
or if the disk is half-way from the mark to full, all replicas pause: a replica that lags still answers, and one whose disk is
full does not. Ingest resumes two points below the mark, so that a disk at the mark does not switch back and forth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Pause = Literal["none", "hydrating", "all"]
"""The replicas whose ingest is paused."""

RESUME_POINTS: Final = 2.0
PATIENCE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class DiskMark:
    paused: Pause = "none"
    above_since: float | None = None
    """When the disk last rose above the mark, by the clock of `now`."""


def next_mark(before: DiskMark, used_percent: float, high_water_percent: float, now: float) -> DiskMark:
    """Return the mark after a measurement of the disk."""
    if used_percent < high_water_percent - RESUME_POINTS:
        return DiskMark()
    if used_percent < high_water_percent:
        return DiskMark(before.paused)
    since = now if before.above_since is None else before.above_since
    urgent = used_percent >= (high_water_percent + 100) / 2
    if urgent or before.paused == "all" or now - since >= PATIENCE_SECONDS:
        return DiskMark("all", since)
    return DiskMark("hydrating", since)
