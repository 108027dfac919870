"""Return the replicas of a partition in the order to try them.

Strategy: the order only says which replica is likely to answer, and the replica itself decides whether it can. So no replica is
left out: a suspected node may be the only one, a replica that lagged may have caught up, and one that this node takes for
incomplete may serve under a newer placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from queryable_app.errors import Failure, Reason
from queryable_app.placement.assignment import Placement
from queryable_app.policy.freshness import Consistency, ReadOptions

_FAR_BEHIND_MS: Final = 10_000  # a replica with a larger lag comes later, also for a read without a bound


class ReportedReplica(NamedTuple):
    """Describe a replica in a heartbeat."""

    position: int
    lag_ms: int  # -1: unknown
    complete: bool


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """Hold the last heartbeat of a node. `at` is in seconds of the clock of `now`."""

    at: float
    epoch: int
    mismatches: tuple[int, int, int]
    replicas: Mapping[int, ReportedReplica]  # by partition
    draining: bool = False  # it still answers, and stops soon


@dataclass(frozen=True, slots=True)
class PeerStates:
    """Hold what this node knows about the others, by ordinal."""

    suspected: frozenset[int] = frozenset()
    last_heartbeats: Mapping[int, LastHeartbeat] = field(default_factory=dict)
    current_seconds: float = 1.0
    """An older heartbeat is ignored."""


def route(
    partition: int,
    placement: Placement,
    own_ordinal: int,
    states: PeerStates,
    now: float,
    options: ReadOptions = ReadOptions(),  # noqa: B008  (frozen)
) -> tuple[int, ...]:
    """Return the ordinals to try: first this node, then serving replicas, then hydrating ones.

    Within each group suspected nodes come last. Before them come replicas that do not satisfy the options, and before these
    draining nodes. The rest keeps the order of the placement.
    """

    def rank(ordinal: int) -> tuple[bool, bool, bool, bool, bool]:
        heartbeat = states.last_heartbeats.get(ordinal)
        return (
            ordinal != own_ordinal,
            ordinal not in serving,
            ordinal in states.suspected,
            _falls_short(heartbeat, partition, options, now - states.current_seconds),
            heartbeat is not None and heartbeat.draining,
        )

    serving = placement.serving[partition]
    return tuple(sorted((*serving, *placement.hydrating[partition]), key=rank))


def _falls_short(
    heartbeat: LastHeartbeat | None, partition: int, options: ReadOptions, oldest: float
) -> bool:
    """Return whether the last heartbeat, if it is current, shows that the replica cannot answer this read."""
    if heartbeat is None or heartbeat.at < oldest:
        return False
    replica = heartbeat.replicas.get(partition)
    if replica is None:
        return True  # the node has removed the replica, or not added it yet
    if options.consistency is not Consistency.ANY and not replica.complete:
        return True
    if replica.position < options.min_positions.get(partition, 0):
        return True
    # If the lag is unknown, the node has just restarted, with the data that it had when it stopped.
    return not 0 <= replica.lag_ms <= (_FAR_BEHIND_MS if options.max_lag_ms is None else options.max_lag_ms)


def not_hosted_here(partition: int) -> Failure:
    """Return why a node cannot answer for a partition that only other nodes host."""
    return Failure(
        Reason.WRONG_OWNER,
        f"this node does not host partition {partition}",
        "see /v1/placement for the nodes that do, or ask with route=forward",
        partition=partition,
    )
