"""State how far a replica is, as the answers of this node and of its peers do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from queryable_app.aggregates.clock import NO_TIME_MS
from queryable_app.policy.freshness import lag_ms, lag_records, next_offset, source_positions_text
from queryable_app.serve.store.replica import Replica


class ReplicaProgress(NamedTuple):
    """The position of a replica, and how far it lags."""

    partition: int
    position: int
    role: str
    lag_records: int
    lag_ms: int
    complete: bool
    sources: tuple[int, ...] = ()
    """The next offset of each source partition, in a rekeyed view."""
    max_event_ms: int = NO_TIME_MS
    """What the replica's clock of event time shows, where the view has windows."""


def progress_of(replica: Replica, now_ms: int) -> ReplicaProgress:
    """Return the progress of a replica at a moment of `platform/clock.py`."""
    return ReplicaProgress(
        replica.partition,
        next_offset(replica),
        replica.role,
        lag_records(replica),
        lag_ms(replica, now_ms),
        replica.complete,
        replica.source_offsets,
        replica.max_event_ms,
    )


def progress_to_json(progress: ReplicaProgress) -> Sequence[object]:
    """Return the progress as other nodes parse it. One of an earlier version knows neither sources nor event time, and no view
    that has them."""
    if progress.max_event_ms != NO_TIME_MS:
        return progress
    return progress[:-1] if progress.sources else progress[:-2]


def positions_of(progress: Sequence[ReplicaProgress]) -> dict[int, int]:
    """Return the positions by partition: in a rekeyed view the source positions that all of the replicas have reached."""
    if progress and progress[0].sources:
        return dict(enumerate(map(min, zip(*(each.sources for each in progress), strict=True))))
    return {replica.partition: replica.position for replica in progress}


def positions_text(progress: Sequence[ReplicaProgress]) -> str:
    """Return the positions as `Qt-Position` has them and `min-position` takes them."""
    if progress and progress[0].sources:  # what all of them have
        return source_positions_text([*positions_of(progress).values()])
    return ",".join(f"{replica.partition}:{replica.position}" for replica in progress)
