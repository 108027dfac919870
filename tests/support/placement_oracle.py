"""Compute the fewest replicas that a change of the placement has to copy, as a flow of least cost found by search."""

from __future__ import annotations

from queryable_app.placement.assignment import DesiredPlacement, Placement


def hosts(placement: Placement, partition: int) -> tuple[int, ...]:
    """Return the nodes of a partition, serving or hydrating."""
    return placement.serving[partition] + placement.hydrating[partition]


def fewest_copied(before: Placement, desired: DesiredPlacement) -> int:
    """Return how many replicas the best balanced placement has to copy."""
    replicas, nodes = min(desired.replicas, len(desired.nodes)), desired.nodes
    edges: list[list[int]] = []  # from, to, room, cost; each followed by its way back
    numbers: dict[object, int] = {}

    def edge(start: object, end: object, room: int, cost: int) -> None:
        a, b = (numbers.setdefault(place, len(numbers)) for place in (start, end))
        edges.extend(([a, b, room, cost], [b, a, 0, -cost]))

    for partition in range(before.partitions):
        edge("source", partition, replicas, 0)
        for domain in {desired.domain_of(o) for o in nodes}:
            edge(partition, (partition, domain), 1, 0)
        for node in nodes:
            has = node in hosts(before, partition)
            edge((partition, desired.domain_of(node)), ("node", node), 1, 0 if has else 1)
    for node in nodes:
        edge(("node", node), "sink", replicas * before.partitions // len(nodes), -1000)
        edge(("node", node), "sink", 1, 0)

    cost = 0
    for _ in range(replicas * before.partitions):
        cheapest: dict[int, tuple[int, int]] = {numbers["source"]: (0, -1)}
        changed = True
        while changed:
            changed = False
            for index, (start, end, room, price) in enumerate(edges):
                if (
                    room
                    and start in cheapest
                    and (end not in cheapest or cheapest[start][0] + price < cheapest[end][0])
                ):
                    cheapest[end] = (cheapest[start][0] + price, index)
                    changed = True
        place = numbers["sink"]
        cost += cheapest[place][0]
        while place != numbers["source"]:
            index = cheapest[place][1]
            edges[index][2] -= 1
            edges[index ^ 1][2] += 1
            place = edges[index][0]
    return cost % 1000
