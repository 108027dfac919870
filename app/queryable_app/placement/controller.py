"""Decide when a placement takes its next step, from the reports of the nodes.

Strategy: the next step comes when every node has the last placement or has been silent for long. So no node sends a read to a
replica that was removed two steps ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from queryable_app.placement.assignment import DesiredPlacement, Placement, next_placement

_FRESH_SECONDS: Final = 3.0  # how long a report is valid
_SILENT_SECONDS: Final = 10.0  # after so long a silent node is not waited for
_CAUGHT_UP_MS: Final = 2_000  # a replica with a larger lag replaces no other


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """Hold the last report of a node."""

    at: float  # by the placement controller's clock
    epoch: int
    caught_up: frozenset[int]  # partitions


def next_step(
    placement: Placement, desired: DesiredPlacement, observations: Mapping[int, NodeObservation], now: float
) -> Placement:
    """Return the next placement, or the same one while a responsive node does not have it yet."""
    if any(
        node.epoch < placement.epoch and now - node.at < _SILENT_SECONDS for node in observations.values()
    ):
        return placement
    caught_up = {
        (partition, ordinal)
        for ordinal, node in observations.items()
        if now - node.at < _FRESH_SECONDS
        for partition in node.caught_up
    }
    return next_placement(placement, desired, caught_up)


def unresponsive(observation: NodeObservation) -> NodeObservation:
    """Return the observation of a node that does not answer: none of its replicas counts as caught up."""
    return replace(observation, caught_up=frozenset())


def parse_observation(status: Mapping[str, Any], now: float) -> NodeObservation:
    """Parse the answer of a node's `/v1/status`."""
    caught_up = frozenset(
        replica["partition"]
        for replica in status["partitions"]
        if replica["complete"]
        and replica["failed"] is None
        and not replica.get("damaged")  # absent in an earlier version
        and 0 <= replica["lagMs"] <= _CAUGHT_UP_MS
    )
    return NodeObservation(now, status["epoch"], caught_up)
