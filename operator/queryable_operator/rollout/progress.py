"""How far a revision is, from what its pods and nodes say."""

from __future__ import annotations

from typing import Final

from queryable_app.placement.assignment import Placement
from queryable_app.wire.ingest_failures import IngestFailure
from queryable_operator.rollout.live import LiveRevision

_FRESH_SECONDS: Final = 5.0  # what a node said of its copies is believed for so long


def is_available(live: LiveRevision) -> bool:
    """Whether every partition has a pod that is ready with it. While the placement cannot be read, pods alone speak."""
    if live.record is None:
        return bool(live.pods) and live.ready == live.pods.keys()
    return served_partitions(live, live.record.placement) == live.record.partitions


def served_partitions(live: LiveRevision, placement: Placement) -> int:
    """Partitions that have a complete copy on a pod that is ready."""
    return sum(any(ordinal in live.ready for ordinal in serving) for serving in placement.serving)


def hydrated_partitions(live: LiveRevision) -> int:
    """Partitions that have a complete copy."""
    if live.record is None:
        return 0
    return sum(
        any(
            ordinal in live.ready
            or (ordinal in live.node_statuses and partition in live.node_statuses[ordinal].seen.caught_up)
            for ordinal in serving
        )
        for partition, serving in enumerate(live.record.placement.serving)
    )


def is_fully_replicated(live: LiveRevision, placement: Placement, nodes: int, copies: int) -> bool:
    """Every pod is there and ready, and every partition has all its copies. Nothing is moving."""
    return (
        len(live.ready) >= nodes
        and live.ready == live.pods.keys()
        and not any(placement.hydrating)
        and all(len(serving) == copies for serving in placement.serving)
    )


def has_caught_up(live: LiveRevision, placement: Placement, ordinal: int, now: float) -> bool:
    """Whether all that a node serves is complete and near the log's end."""
    said = live.node_statuses.get(ordinal)
    serves = {p for p, serving in enumerate(placement.serving) if ordinal in serving}
    return said is not None and now - said.seen.at < _FRESH_SECONDS and serves <= said.seen.caught_up


def is_caught_up(live: LiveRevision, nodes: int, copies: int, now: float) -> bool:
    """Whether nothing more can be waited for: every copy of every partition is complete and near the log's end."""
    if live.record is None or not is_fully_replicated(live, live.record.placement, nodes, copies):
        return False
    return all(has_caught_up(live, live.record.placement, ordinal, now) for ordinal in live.pods)


def permanent_failure(live: LiveRevision) -> IngestFailure | None:
    """Return why the revision can never hydrate, None while it may.

    Every node that runs a spec comes to the same verdict on it, so that one node is enough. The machine of a node, or its copy of
    the image, can be the cause of any other failure: then every node must have it."""
    failures = [
        said.failure
        for ordinal, said in sorted(live.node_statuses.items())
        if ordinal in live.pods and said.failure is not None
    ]
    of_spec = [failure for failure in failures if failure.caused_by_spec]
    if of_spec:
        return of_spec[0]
    return failures[0] if failures and len(failures) == max(len(live.pods), live.replicas) else None


def has_reported(live: LiveRevision) -> bool:
    """Return whether every pod that is ready has said how it is, and any pod at all."""
    return bool(live.node_statuses) and live.ready <= live.node_statuses.keys()


def lag(live: LiveRevision) -> int | None:
    """Records that its copies are behind, together. None: not every node says it."""
    lags = [said.lag_records for ordinal, said in live.node_statuses.items() if ordinal in live.pods]
    if not lags or len(lags) < len(live.pods) or min(lags) < 0:
        return None
    return sum(lags)


def records_per_second(live: LiveRevision) -> float:
    return sum(said.records_per_second for said in live.node_statuses.values())


def remaining_seconds(live: LiveRevision) -> float | None:
    waits = [
        said.remaining_seconds for said in live.node_statuses.values() if said.remaining_seconds is not None
    ]
    return max(waits, default=None)
