"""Decide whether a replica has stalled: it has records to take, ingest reports that it streams, and its position does not move.

Strategy: each check makes a frozen value from the one before. Time counts only while the replica is expected to move. A late
check counts like one in time, because a suspended process has not watched. After each restart of the query the patience doubles,
up to a maximum, until the position moves: a stall that no restart ends cannot become a loop of restarts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

CHECK_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 25.0
PATIENCE_SECONDS_MAX: Final = 600.0


@dataclass(frozen=True, slots=True)
class StallWatch:
    """Hold the result of the last check of one replica."""

    position: int = -1
    checked_at: float = 0.0
    waited_seconds: float = 0.0
    """How long the replica was expected to move and did not."""
    restarts: int = 0
    """Restarts of the query since the position last moved."""
    stalled: bool = False


def next_watch(before: StallWatch | None, position: int, expected: bool, now: float) -> StallWatch:
    """Return the watch after a check. `expected`: there is a record, and ingest reports that it streams; `now` is monotonic."""
    if before is None or position != before.position:
        return StallWatch(position, now)
    if not expected:
        return replace(before, checked_at=now, waited_seconds=0.0)
    waited = before.waited_seconds + min(now - before.checked_at, 2 * CHECK_SECONDS)
    return replace(before, checked_at=now, waited_seconds=waited)


def restart_is_due(watch: StallWatch) -> bool:
    """Return whether the query must restart now."""
    return watch.waited_seconds >= min(
        PATIENCE_SECONDS * 2.0 ** min(watch.restarts, 16), PATIENCE_SECONDS_MAX
    )


def after_restart(watch: StallWatch) -> StallWatch:
    """Return the watch after a restart of the query."""
    return replace(watch, waited_seconds=0.0, restarts=watch.restarts + 1, stalled=True)
