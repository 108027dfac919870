"""Whom to ask for a partition, in which order."""

from __future__ import annotations

from queryable_app.placement import Placement


def route(
    partition: int, placement: Placement, own_ordinal: int, suspects: frozenset[int]
) -> tuple[int, ...]:
    """The ordinals that serve the partition: this node first, suspects last, else in the placement's order.

    A suspect is never left out: it may be the only one that is left.
    """
    return tuple(
        sorted(
            placement.serving[partition], key=lambda ordinal: (ordinal != own_ordinal, ordinal in suspects)
        )
    )
