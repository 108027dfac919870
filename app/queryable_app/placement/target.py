"""Where the copies should be in the end: as balanced as can be, with the fewest copies moved.

Strategy: keep the copies that are, give each partition what it lacks, then level. Levelling shifts copies along the
shortest chain of nodes (from an overloaded one, to another, ... to one with at least two less) and ends when there is no
such chain: as in a flow, nothing more balanced exists then. A direct shift is nearly always possible; chains are
for what failure domains forbid. Shifts that copy no data come first. Ties go to the lower number, so that the same
input always has the same goal, and a goal that is reached is its own goal.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

Loads = dict[int, set[int]]  # node → the partitions that it has, or has first
Shift = tuple[int, int, int]  # partition, from, to
Shifts = Callable[[int, set[int]], Iterator[tuple[int, int]]]
"""From a node to some of the given ones: (partition, to)."""


def balanced_assignment(
    kept: Sequence[Sequence[int]],
    holders: Sequence[Collection[int]],
    nodes: Sequence[int],
    replicas: int,
    domains: Mapping[int, str],
) -> list[list[int]]:
    """For each partition its `replicas` nodes. `kept` are at most so many, on `nodes`; `holders` have data already."""
    goal = _Goal(kept, holders, nodes, domains)
    for partition in range(len(kept)):
        goal.fill(partition, replicas)
        goal.spread(partition)
    _level(goal.on, goal.free_shifts, goal.shift)
    _level(goal.on, goal.shifts, goal.shift)
    return goal.replicas


class _Goal:
    def __init__(
        self,
        kept: Sequence[Sequence[int]],
        holders: Sequence[Collection[int]],
        nodes: Sequence[int],
        domains: Mapping[int, str],
    ) -> None:
        self._holders, self._nodes, self._domains = holders, nodes, domains
        self.replicas = [list(here) for here in kept]
        self.on: Loads = {node: set() for node in nodes}
        for partition, here in enumerate(kept):
            for node in here:
                self.on[node].add(partition)

    def fill(self, partition: int, replicas: int) -> None:
        here = self.replicas[partition]
        while len(here) < replicas:
            node = self._best(partition)
            here.append(node)
            self.on[node].add(partition)

    def spread(self, partition: int) -> None:
        """Copies that share a domain move apart while there is a domain with fewer."""
        here = self.replicas[partition]
        while len(here) < len(self._nodes):
            crowds, best = self._crowds(partition), self._best(partition)
            crowded = max(crowds, key=lambda domain: crowds[domain])
            if crowds[crowded] - crowds[self._domains[best]] < 2:
                return
            moved = [node for node in here if self._domains[node] == crowded]
            self.shift(partition, max(moved, key=lambda node: len(self.on[node])), best)

    def shift(self, partition: int, source: int, target: int) -> None:
        here = self.replicas[partition]
        here[here.index(source)] = target
        self.on[source].remove(partition)
        self.on[target].add(partition)

    def shifts(self, node: int, targets: set[int]) -> Iterator[tuple[int, int]]:
        """A copy moves within its domain, or to one with fewer copies of its partition."""
        own = self._domains[node]
        for partition in self.on[node]:
            crowds = self._crowds(partition)
            for target in sorted(targets.difference(self.replicas[partition])):
                if self._domains[target] == own or crowds[self._domains[target]] < crowds[own]:
                    yield partition, target

    def free_shifts(self, node: int, targets: set[int]) -> Iterator[tuple[int, int]]:
        """Those that copy no data: of a copy that is not there yet, or to where there is one already."""
        for partition, target in self.shifts(node, targets):
            if target in self._holders[partition] or node not in self._holders[partition]:
                yield partition, target

    def _best(self, partition: int) -> int:
        """The node for one more copy."""
        crowds, holders = self._crowds(partition), self._holders[partition]
        others = (node for node in self._nodes if node not in self.replicas[partition])
        return min(
            others,
            key=lambda node: (crowds[self._domains[node]], node not in holders, len(self.on[node]), node),
        )

    def _crowds(self, partition: int) -> Counter[str]:
        """How many copies of the partition each domain has."""
        return Counter(self._domains[node] for node in self.replicas[partition])


def level_active_replicas(replicas: Sequence[list[int]], nodes: Sequence[int]) -> None:
    """Reorders the copies of each partition so that each node is the first of as many. One without copies stays so."""
    on: Loads = {node: set() for node in nodes}
    for partition, here in enumerate(replicas):
        if here:
            on[here[0]].add(partition)

    def shift(partition: int, source: int, target: int) -> None:
        here = replicas[partition]
        here.remove(target)
        here.insert(0, target)
        on[source].remove(partition)
        on[target].add(partition)

    def shifts(node: int, targets: set[int]) -> Iterator[tuple[int, int]]:
        return ((partition, to) for partition in on[node] for to in replicas[partition] if to in targets)

    _level(on, shifts, shift)


def _level(on: Loads, shifts: Shifts, shift: Callable[[int, int, int], None]) -> None:
    while chain := _levelling_chain(on, shifts):
        for step in chain:
            shift(*step)


def _levelling_chain(on: Loads, shifts: Shifts) -> list[Shift]:
    """Shifts that take one from a node and give it to one that has at least two less; empty when there are none."""
    least = min(len(partitions) for partitions in on.values())
    hopeless: set[int] = set()  # no node that can be reached from these has little enough
    for start in sorted(on, key=lambda node: (-len(on[node]), node)):
        if len(on[start]) - least < 2:
            break
        if start in hopeless:
            continue
        came: dict[int, Shift] = {}
        unseen = on.keys() - hopeless - {start}
        waiting = deque([start])
        while waiting and unseen:
            node = waiting.popleft()
            reached = []
            for partition, target in shifts(node, unseen):
                if target in unseen:
                    unseen.remove(target)
                    came[target] = (partition, node, target)
                    reached.append(target)
            end = min(reached, key=lambda other: (len(on[other]), other), default=start)
            if len(on[start]) - len(on[end]) >= 2:
                return _back(came, end, start)
            waiting.extend(reached)
        hopeless |= {start, *came}
    return []


def _back(came: Mapping[int, Shift], end: int, start: int) -> list[Shift]:
    chain = []
    while end != start:
        chain.append(came[end])
        end = came[end][1]
    return chain
