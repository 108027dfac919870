"""Measure the progress of a revision from the reports of its pods and nodes."""

from __future__ import annotations

from typing import Final

from queryable_app.placement.assignment import Placement
from queryable_app.wire.ingest_failures import IngestFailure
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.spec.pods import PodIndex

_FRESH_SECONDS: Final = 5.0  # how long a node's report about its replicas stays valid


def is_available(live: LiveRevision) -> bool:
    """Return whether every partition has a ready pod that serves it. If the placement is unreadable, all pods must be ready."""
    if live.record is None:
        return bool(live.pods) and live.ready == live.pods.keys()
    return served_partitions(live, live.record.placement) == live.record.partitions


def served_partitions(live: LiveRevision, placement: Placement) -> int:
    """Count the partitions with a complete replica on a ready pod."""
    ready = live.ready_nodes
    return sum(any(ordinal in ready for ordinal in serving) for serving in placement.serving)


def hydrated_partitions(live: LiveRevision) -> int:
    """Count the partitions with a complete replica."""
    if live.record is None:
        return 0
    ready = live.ready_nodes
    return sum(
        any(
            ordinal in ready
            or (ordinal in live.node_statuses and partition in live.node_statuses[ordinal].seen.caught_up)
            for ordinal in serving
        )
        for partition, serving in enumerate(live.record.placement.serving)
    )


def is_fully_replicated(live: LiveRevision, placement: Placement, pods: int, replicas: int) -> bool:
    """Return whether every pod is ready, every partition has all its replicas, and no replica is moving."""
    return (
        len(live.ready) >= pods
        and live.ready == live.pods.keys()
        and not any(placement.hydrating)
        and all(len(serving) == replicas for serving in placement.serving)
    )


def has_caught_up(live: LiveRevision, placement: Placement, pod: PodIndex, now: float) -> bool:
    """Return whether every replica that a pod's nodes serve is complete and near the end offset."""
    return all(_node_has_caught_up(live, placement, o, now) for o in live.layout.nodes_of(pod))


def _node_has_caught_up(live: LiveRevision, placement: Placement, ordinal: int, now: float) -> bool:
    node_status = live.node_statuses.get(ordinal)
    serves = {p for p, serving in enumerate(placement.serving) if ordinal in serving}
    return (
        node_status is not None
        and now - node_status.seen.at < _FRESH_SECONDS
        and serves <= node_status.seen.caught_up
    )


def is_caught_up(live: LiveRevision, pods: int, replicas: int, now: float) -> bool:
    """Return whether every replica of every partition is complete and near the end offset."""
    if live.record is None or not is_fully_replicated(live, live.record.placement, pods, replicas):
        return False
    return all(has_caught_up(live, live.record.placement, pod, now) for pod in live.pods)


def permanent_failure(live: LiveRevision) -> IngestFailure | None:
    """Return why the revision can never hydrate, or None while it may.

    Every node that runs a spec reaches the same verdict on it, so one node is enough. Any other failure may come from one
    node's machine or its pulled image: then every node must report it.
    """
    nodes = live.nodes
    failures = [
        node_status.failure
        for ordinal, node_status in sorted(live.node_statuses.items())
        if ordinal in nodes and node_status.failure is not None
    ]
    of_spec = [failure for failure in failures if failure.caused_by_spec]
    if (job := live.rekey_job.failure) is not None and job.caused_by_spec:
        of_spec.append(job)
    if of_spec:
        return of_spec[0]
    wanted = max(len(nodes), len(live.layout.nodes(live.replicas)))
    return failures[0] if failures and len(failures) == wanted else None


def has_reported(live: LiveRevision) -> bool:
    """Return whether at least one node, and every node of a ready pod, has reported its status."""
    return bool(live.node_statuses) and live.ready_nodes <= live.node_statuses.keys()


def lag(live: LiveRevision) -> int | None:
    """Return the summed lag in records, or None unless every node reports it."""
    nodes = live.nodes
    lags = [
        node_status.lag_records for ordinal, node_status in live.node_statuses.items() if ordinal in nodes
    ]
    if not lags or len(lags) < len(nodes) or min(lags) < 0:
        return None
    return sum(lags)


def records_per_second(live: LiveRevision) -> float:
    return sum(node_status.records_per_second for node_status in live.node_statuses.values())


def remaining_seconds(live: LiveRevision) -> float | None:
    waits = [
        node_status.remaining_seconds
        for node_status in live.node_statuses.values()
        if node_status.remaining_seconds is not None
    ]
    return max(waits, default=None)
