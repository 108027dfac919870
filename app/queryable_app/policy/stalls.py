"""Whether a replica has stalled: records are there for it, ingest says that it streams, and the position does not move.

Strategy: one look after the other, each a frozen value. Time counts only while the replica is expected to move, and a look that
comes late counts as one that comes in time: a process that was suspended has not watched. After a restart of the query the
patience doubles, up to a maximum, until the position moves: a stall that no restart ends cannot become a loop of restarts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

CHECK_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 25.0
PATIENCE_SECONDS_MAX: Final = 600.0


@dataclass(frozen=True, slots=True)
class StallWatch:
    position: int = -1
    looked_at: float = 0.0
    waited_seconds: float = 0.0
    """For how long it has been expected to move, and did not."""
    restarts: int = 0
    """Starts of the query since the position last moved."""
    stalled: bool = False


def look(before: StallWatch | None, position: int, expected: bool, now: float) -> StallWatch:
    """Return what follows from one look. `expected`: a record is there, and ingest says that it streams; `now` is monotonic."""
    if before is None or position != before.position:
        return StallWatch(position, now)
    if not expected:
        return replace(before, looked_at=now, waited_seconds=0.0)
    waited = before.waited_seconds + min(now - before.looked_at, 2 * CHECK_SECONDS)
    return replace(before, looked_at=now, waited_seconds=waited)


def restart_is_due(watch: StallWatch) -> bool:
    """Return whether the query is to be started again now."""
    return watch.waited_seconds >= min(
        PATIENCE_SECONDS * 2.0 ** min(watch.restarts, 16), PATIENCE_SECONDS_MAX
    )


def after_restart(watch: StallWatch) -> StallWatch:
    return replace(watch, waited_seconds=0.0, restarts=watch.restarts + 1, stalled=True)
