"""Who holds which partition: a value that the placer computes and every node follows.

`serving[p]` lists the nodes (by ordinal) that hold a complete copy of partition p, in the order in which they
are asked; the first is the active copy, the others are standbys. `hydrating[p]` lists nodes that are building
one.

Strategy: `next_placement` is called again and again with what is. It goes one step towards a goal (`placement_goal`), and
makes before it breaks: a copy is listed in `hydrating` first, in `serving` when it has caught up, and only in a later epoch
does the one that it replaces go. Copies that are to go stand last in `serving`, so that a placement shows its own goal:
those in front and those that hydrate. Therefore a change that is under way is not thought over at each step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from queryable_app.placement.target import balanced_assignment, level_active_replicas
from queryable_app.wire.checked import field, list_of, text, whole

_EPOCH_MAX: Final = 2**53
_NODES_MAX: Final = 1000
_ORDINALS: Final = list_of(list_of(whole(0, _NODES_MAX)))
_ADDRESS: Final = re.compile(r"https?://[!-~]{1,300}")


@dataclass(frozen=True, slots=True)
class Placement:
    epoch: int
    application_id: str
    addresses: tuple[str, ...]  # advertised URL of each node, by ordinal
    serving: tuple[tuple[int, ...], ...]
    hydrating: tuple[tuple[int, ...], ...]

    @property
    def partitions(self) -> int:
        return len(self.serving)

    def assigned_to(self, ordinal: int) -> tuple[int, ...]:
        """The partitions of which this node keeps a copy, complete or not."""
        return tuple(
            p for p in range(self.partitions) if ordinal in self.serving[p] or ordinal in self.hydrating[p]
        )

    def to_json(self) -> str:
        return json.dumps(
            {
                "epoch": self.epoch,
                "applicationId": self.application_id,
                "partitions": self.partitions,
                "addresses": list(self.addresses),
                "serving": [list(c) for c in self.serving],
                "hydrating": [list(c) for c in self.hydrating],
            }
        )

    @staticmethod
    def from_json(document: str) -> Placement:
        """Raises ValueError for a document that is no placement."""
        return Placement.from_raw(json.loads(document))

    @staticmethod
    def from_raw(raw: Any) -> Placement:
        return Placement(
            epoch=field(raw, "epoch", whole(0, _EPOCH_MAX)),
            application_id=field(raw, "applicationId", text),
            addresses=tuple(field(raw, "addresses", list_of(text))),
            serving=_replicas(field(raw, "serving", _ORDINALS)),
            hydrating=_replicas(field(raw, "hydrating", _ORDINALS)),
        )


def _replicas(raw: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(replicas) for replicas in raw)


def refusal(placement: Placement, present: Placement) -> str | None:
    """Why a node that follows `present` cannot follow this one; None when it can."""
    if placement.application_id != present.application_id:
        return f"it is of {placement.application_id}, and this node is of {present.application_id}"
    if placement.partitions != present.partitions or len(placement.hydrating) != present.partitions:
        return f"it has {placement.partitions} partitions, and the view has {present.partitions}"
    if placement.epoch > _EPOCH_MAX or len(placement.addresses) > _NODES_MAX:
        return f"its epoch is above {_EPOCH_MAX}, or it has more than {_NODES_MAX} nodes"
    if not all(_ADDRESS.fullmatch(address) for address in placement.addresses):
        return "an address is no http:// or https:// URL"
    nodes = range(len(placement.addresses))
    for partition, (serving, hydrating) in enumerate(
        zip(placement.serving, placement.hydrating, strict=True)
    ):
        replicas = (*serving, *hydrating)
        if len(set(replicas)) < len(replicas) or any(ordinal not in nodes for ordinal in replicas):
            return f"partition {partition} names a node twice, or one that has no address"
    return None


@dataclass(frozen=True, slots=True)
class DesiredPlacement:
    """What a placement is to become."""

    addresses: tuple[str, ...]  # of the nodes that shall hold copies, by ordinal
    replicas: int  # of each partition; no more than there are nodes
    domains: tuple[str, ...] = ()  # each node's failure domain; empty: every node is its own
    lost: frozenset[int] = frozenset()  # nodes that do not come back: what they hold is gone

    def __post_init__(self) -> None:
        if self.replicas < 1 or len(self.domains) not in (0, len(self.addresses)):
            raise ValueError("a partition has at least one copy, and every node a domain or none")

    @property
    def nodes(self) -> list[int]:
        """The ordinals that may get copies."""
        return [ordinal for ordinal in range(len(self.addresses)) if ordinal not in self.lost]

    def domain_of(self, ordinal: int) -> str:
        return self.domains[ordinal] if self.domains else str(ordinal)


def initial_placement(
    application_id: str, partitions: int, addresses: Sequence[str], replicas: int, domains: Sequence[str] = ()
) -> Placement:
    """The placement of a view that has no data yet: nothing needs to be made before it serves."""
    wanted = DesiredPlacement(tuple(addresses), replicas, tuple(domains))
    nothing: tuple[tuple[int, ...], ...] = ((),) * partitions
    serving = _goal(Placement(0, application_id, wanted.addresses, nothing, nothing), wanted)
    level_active_replicas(serving, wanted.nodes)
    return Placement(1, application_id, wanted.addresses, _replicas(serving), nothing)


def next_placement(
    previous: Placement, wanted: DesiredPlacement, caught_up: Collection[tuple[int, int]]
) -> Placement:
    """The next step towards what is wanted; `previous` itself when there is none to take now.

    `caught_up` are the (partition, ordinal) of the copies that are complete and near the log's end at this moment.
    """
    if not wanted.nodes:
        return previous
    caught_up = frozenset(caught_up)
    staying: list[list[int]] = []
    leaving: list[list[int]] = []
    hydrating: list[list[int]] = []
    for partition, goal in enumerate(_goal(previous, wanted)):
        there = [o for o in previous.serving[partition] if o not in wanted.lost]
        building = [o for o in previous.hydrating[partition] if o not in wanted.lost]
        joining = [o for o in building if (partition, o) in caught_up]
        # When all are lost they stay listed: nothing better is known.
        serving = there + joining or list(previous.serving[partition])
        staying.append([o for o in goal if o in serving])
        hydrating.append([o for o in goal if o not in serving])
        proven = {o for o in there if (partition, o) in caught_up}
        leaving.append(_still_leaving([o for o in serving if o not in goal], proven, len(goal)))
    level_active_replicas(staying, wanted.nodes)

    served = [stay + leave for stay, leave in zip(staying, leaving, strict=True)]
    nodes = 1 + max((o for replicas in served + hydrating for o in replicas), default=-1)
    following = Placement(
        previous.epoch,
        previous.application_id,
        wanted.addresses + previous.addresses[len(wanted.addresses) : nodes],
        _replicas(served),
        _replicas(hydrating),
    )
    return previous if following == previous else replace(following, epoch=previous.epoch + 1)


def settled(placement: Placement, wanted: DesiredPlacement) -> bool:
    """Whether it is as wanted: nothing would change even if every copy were caught up."""
    everywhere = {(p, o) for p in range(placement.partitions) for o in range(len(placement.addresses))}
    return next_placement(placement, wanted, everywhere) is placement


def _goal(previous: Placement, wanted: DesiredPlacement) -> list[list[int]]:
    """The copies that each partition should have."""
    nodes = wanted.nodes
    replicas = min(wanted.replicas, len(nodes))
    kept, holders = [], []
    for serving, hydrating in zip(previous.serving, previous.hydrating, strict=True):
        intended = (*serving[: max(0, replicas - len(hydrating))], *hydrating)[:replicas]
        kept.append([o for o in intended if o in nodes])
        holders.append({*serving, *hydrating}.difference(wanted.lost))
    return balanced_assignment(kept, holders, nodes, replicas, {o: wanted.domain_of(o) for o in nodes})


def _still_leaving(leaving: Sequence[int], proven: set[int], enough: int) -> list[int]:
    """Of the copies that are to go, those that cannot go yet: enough others that served before must be caught up."""
    left = list(leaving)
    for ordinal in reversed(leaving):
        if len(proven - {ordinal}) >= enough:
            left.remove(ordinal)
            proven = proven - {ordinal}
    return left
