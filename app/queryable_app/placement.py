"""Who holds which partition: a value that the placer computes and every node follows.

`serving[p]` lists the nodes (by ordinal) that hold a complete copy of partition p, in the order in which they
are asked; the first is the active copy, the others are standbys. `hydrating[p]` lists nodes that are building
one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any


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

    def held_by(self, ordinal: int) -> tuple[int, ...]:
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
    def from_json(text: str) -> Placement:
        raw: Mapping[str, Any] = json.loads(text)
        return Placement(
            epoch=int(raw["epoch"]),
            application_id=str(raw["applicationId"]),
            addresses=tuple(str(a) for a in raw["addresses"]),
            serving=_copies(raw["serving"]),
            hydrating=_copies(raw["hydrating"]),
        )


def _copies(raw: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(o) for o in copies) for copies in raw)


def first_placement(application_id: str, partitions: int, addresses: Sequence[str], copies: int) -> Placement:
    """The placement of a view that has no data yet: copies and first copies are balanced to one.

    Copies are dealt round like cards. After `round_length` partitions the same nodes come together again: then the
    next of them goes first, or some nodes would never.
    """
    nodes = len(addresses)
    each = min(copies, nodes)
    round_length = nodes // gcd(each, nodes)
    serving = []
    for partition in range(partitions):
        dealt = [(partition * each + copy) % nodes for copy in range(each)]
        first = partition // round_length % each
        serving.append(tuple(dealt[first:] + dealt[:first]))
    return Placement(1, application_id, tuple(addresses), tuple(serving), tuple(() for _ in serving))
