"""Define the placement, which assigns replicas to nodes, and compute its next step.

`serving[p]` lists the ordinals of the nodes with a complete replica of partition p, in the order to try them: first the active
replica, then the standby replicas. `hydrating[p]` lists the nodes that build a replica.

Strategy: the placement controller calls `next_placement` repeatedly with the current state. Each call goes one step towards the
desired placement (`target`), and makes before it breaks. A new replica is first in `hydrating`, then in `serving` when it has
caught up, and only a later epoch removes the replica that it replaces. Leaving replicas stand last in `serving`, so a placement
shows its own target: the first ones in `serving`, and those in `hydrating`. Therefore a step does not plan a running change
again.
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
    """Assign the replicas of all partitions to nodes."""

    epoch: int
    application_id: str
    addresses: tuple[str, ...]  # advertised URL of each node, by ordinal
    serving: tuple[tuple[int, ...], ...]
    hydrating: tuple[tuple[int, ...], ...]

    @property
    def partitions(self) -> int:
        return len(self.serving)

    def assigned_to(self, ordinal: int) -> tuple[int, ...]:
        """Return the partitions with a replica on this node, complete or not."""
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
        """Parse a placement, or raise ValueError."""
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
    """Return why a node with the placement `present` cannot follow another one, or None if it can."""
    if placement.application_id != present.application_id:
        return f"it belongs to {placement.application_id}, and this node to {present.application_id}"
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
    """Describe what a placement must become."""

    addresses: tuple[str, ...]  # of the nodes that may host replicas, by ordinal
    replicas: int  # of each partition, at most one on a node
    domains: tuple[
        str, ...
    ] = ()  # each node's failure domain; empty: every node is its own domain. `a/b`: b inside a
    lost: frozenset[int] = frozenset()  # nodes that do not return; their replicas are lost

    def __post_init__(self) -> None:
        if self.replicas < 1 or len(self.domains) not in (0, len(self.addresses)):
            raise ValueError(
                "a partition has at least one replica, and either every node has a domain or none"
            )
        if len({domain.count("/") for domain in self.domains}) > 1:
            raise ValueError("the domains of all nodes are nested equally deep")

    @property
    def nodes(self) -> list[int]:
        """Return the ordinals that may host replicas."""
        return [ordinal for ordinal in range(len(self.addresses)) if ordinal not in self.lost]

    def domain_of(self, ordinal: int) -> str:
        return self.domains[ordinal] if self.domains else str(ordinal)


def initial_placement(
    application_id: str, partitions: int, addresses: Sequence[str], replicas: int, domains: Sequence[str] = ()
) -> Placement:
    """Return the placement of a view without data, in which every replica serves at once."""
    desired = DesiredPlacement(tuple(addresses), replicas, tuple(domains))
    nothing: tuple[tuple[int, ...], ...] = ((),) * partitions
    serving = _target(Placement(0, application_id, desired.addresses, nothing, nothing), desired)
    level_active_replicas(serving, desired.nodes)
    return Placement(1, application_id, desired.addresses, _replicas(serving), nothing)


def next_placement(
    previous: Placement, desired: DesiredPlacement, caught_up: Collection[tuple[int, int]]
) -> Placement:
    """Return the next step towards the desired placement, or `previous` itself if no step is possible now.

    `caught_up` has the (partition, ordinal) of each replica that is complete and near the end offset at this moment.
    """
    if not desired.nodes:
        return previous
    caught_up = frozenset(caught_up)
    staying: list[list[int]] = []
    leaving: list[list[int]] = []
    hydrating: list[list[int]] = []
    for partition, target in enumerate(_target(previous, desired)):
        present = [o for o in previous.serving[partition] if o not in desired.lost]
        building = [o for o in previous.hydrating[partition] if o not in desired.lost]
        joining = [o for o in building if (partition, o) in caught_up]
        # If all replicas are lost, they stay listed, because no other node has the data.
        serving = present + joining or list(previous.serving[partition])
        proven = {o for o in present if (partition, o) in caught_up}
        # What is being built may be complete before a replica that is only listed has any data.
        kept = [] if proven or joining else [o for o in building if o not in target and o in desired.nodes]
        staying.append([o for o in target if o in serving])
        hydrating.append([o for o in target if o not in serving] + kept)
        leaving.append(_replicas_to_keep([o for o in serving if o not in target], proven, len(target)))
    level_active_replicas(staying, desired.nodes)

    served = [stay + leave for stay, leave in zip(staying, leaving, strict=True)]
    nodes = 1 + max((o for replicas in served + hydrating for o in replicas), default=-1)
    following = Placement(
        previous.epoch,
        previous.application_id,
        desired.addresses + previous.addresses[len(desired.addresses) : nodes],
        _replicas(served),
        _replicas(hydrating),
    )
    return previous if following == previous else replace(following, epoch=previous.epoch + 1)


def settled(placement: Placement, desired: DesiredPlacement) -> bool:
    """Return whether the placement is as desired: no step follows even if every replica has caught up."""
    everywhere = {(p, o) for p in range(placement.partitions) for o in range(len(placement.addresses))}
    return next_placement(placement, desired, everywhere) is placement


def _target(previous: Placement, desired: DesiredPlacement) -> list[list[int]]:
    """Return the nodes that should host each partition."""
    nodes = desired.nodes
    replicas = min(desired.replicas, len(nodes))
    retained, hosts = [], []
    for serving, hydrating in zip(previous.serving, previous.hydrating, strict=True):
        intended = (*serving[: max(0, replicas - len(hydrating))], *hydrating)[:replicas]
        retained.append([o for o in intended if o in nodes])
        hosts.append({*serving, *hydrating}.difference(desired.lost))
    return balanced_assignment(retained, hosts, nodes, replicas, {o: desired.domain_of(o) for o in nodes})


def _replicas_to_keep(leaving: Sequence[int], proven: set[int], enough: int) -> list[int]:
    """Return the leaving replicas that must stay until enough others, which served before, have caught up."""
    left = list(leaving)
    for ordinal in reversed(leaving):
        if len(proven - {ordinal}) >= enough:
            left.remove(ordinal)
            proven = proven - {ordinal}
    return left
