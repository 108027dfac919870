"""Whom to ask for a partition, in which order.

Strategy: the order only says who is likely to answer; whether a copy may answer it decides itself. So nobody is left
out: a node that does not answer heartbeats may be the only one that is left, one that was behind may have caught up, and
a copy that this node takes for unfinished may have been moved by a newer placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from queryable_app.placement.assignment import Placement
from queryable_app.policy.freshness import Consistency, ReadOptions

_FAR_BEHIND_MS: Final = 10_000  # a copy older than that comes later, also for a read that names no bound
_OUTDATED_SECONDS: Final = 1.0  # what a node said longer ago than that says nothing of now


class ReportedReplica(NamedTuple):
    """How a copy stands, as its node said."""

    position: int
    lag_ms: int  # -1: not known
    complete: bool


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """What a node said of itself, and when: seconds of the clock that `now` is of."""

    at: float
    epoch: int
    mismatches: tuple[int, int, int]
    replicas: Mapping[int, ReportedReplica]  # by partition
    draining: bool = False  # it still answers, and will end soon


@dataclass(frozen=True, slots=True)
class PeerStates:
    """What this node knows of the others, by ordinal."""

    suspected: frozenset[int] = frozenset()
    heard: Mapping[int, LastHeartbeat] = field(default_factory=dict)


def route(
    partition: int,
    placement: Placement,
    own_ordinal: int,
    view: PeerStates,
    now: float,
    asked: ReadOptions = ReadOptions(),  # noqa: B008  (frozen)
) -> tuple[int, ...]:
    """The ordinals to ask: this node first, then copies that serve before those being built, suspects last of each,
    those that were behind what is asked after the others, nodes that will end soon behind their like, else in the
    placement's order."""

    def rank(ordinal: int) -> tuple[bool, bool, bool, bool, bool]:
        heard = view.heard.get(ordinal)
        return (
            ordinal != own_ordinal,
            ordinal not in serving,
            ordinal in view.suspected,
            _falls_short(heard, partition, asked, now),
            heard is not None and heard.draining,
        )

    serving = placement.serving[partition]
    return tuple(sorted((*serving, *placement.hydrating[partition]), key=rank))


def _falls_short(node: LastHeartbeat | None, partition: int, asked: ReadOptions, now: float) -> bool:
    """Whether the copy there is known to be of no use to this read."""
    if node is None or now - node.at > _OUTDATED_SECONDS:
        return False
    replica = node.replicas.get(partition)
    if replica is None:
        return True  # it has dropped the copy, or not begun with it
    if asked.consistency is not Consistency.ANY and not replica.complete:
        return True
    if replica.position < asked.min_positions.get(partition, 0):
        return True
    # Where the lag is not known the node has just come back, with what it had when it went.
    return not 0 <= replica.lag_ms <= (_FAR_BEHIND_MS if asked.max_lag_ms is None else asked.max_lag_ms)
