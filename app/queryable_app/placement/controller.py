"""When the next step of a placement is taken, from what nodes have said: for whoever is the placer.

Strategy: the next step is taken when every node knows the last one, or has been silent for long: no node sends a read to a
copy that went two steps ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from queryable_app.placement.assignment import DesiredPlacement, Placement, next_placement

_FRESH_SECONDS: Final = 3.0  # what a node said of its copies is believed for so long
_SILENT_SECONDS: Final = 10.0  # a node that says nothing for so long is not waited for
_CAUGHT_UP_MS: Final = 2_000  # a copy that is further behind takes no other one's place


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """What a node said when it last answered."""

    at: float  # by the placer's clock
    epoch: int
    caught_up: frozenset[int]  # partitions


def next_step(
    placement: Placement, wanted: DesiredPlacement, seen: Mapping[int, NodeObservation], now: float
) -> Placement:
    """The placement that comes next; the same while a node that can be heard does not know it yet."""
    if any(s.epoch < placement.epoch and now - s.at < _SILENT_SECONDS for s in seen.values()):
        return placement
    caught_up = {
        (partition, ordinal)
        for ordinal, said in seen.items()
        if now - said.at < _FRESH_SECONDS
        for partition in said.caught_up
    }
    return next_placement(placement, wanted, caught_up)


def unresponsive(seen: NodeObservation) -> NodeObservation:
    """Of a node that does not answer. No copy elsewhere is given up for those that it had."""
    return replace(seen, caught_up=frozenset())


def parse_observation(status: Mapping[str, Any], now: float) -> NodeObservation:
    """From a node's `/v1/status`."""
    caught_up = frozenset(
        replica["partition"]
        for replica in status["partitions"]
        if replica["complete"]
        and replica["failed"] is None
        and not replica.get("damaged")  # a node of an earlier version does not say
        and 0 <= replica["lagMs"] <= _CAUGHT_UP_MS
    )
    return NodeObservation(now, status["epoch"], caught_up)
