"""Compute where the replicas should be: as balanced as possible, with the fewest replicas moved.

Failure domains nest: `zone-a/pod-3` is a domain inside `zone-a`. The innermost domains count first, so a partition has two
replicas in a pod only if it has one in every pod; and then the outer ones.

Strategy: keep the present replicas, add what each partition lacks, then level. Levelling moves replicas along the shortest chain
of nodes (from an overloaded node to another, and so on to a node with at least two fewer) until there is no such chain. As in a
flow, no placement is then more balanced. A direct move is nearly always possible; failure domains make chains necessary. Moves
that copy no data come first. Ties go to the lower number, so equal inputs have equal targets, and a target is its own target.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

Loads = dict[int, set[int]]  # node → the partitions that it hosts, or hosts actively
Shift = tuple[int, int, int]  # partition, from, to
Shifts = Callable[[int, set[int]], Iterator[tuple[int, int]]]
"""The possible moves from a node to some of the given ones: (partition, to)."""


def balanced_assignment(
    retained: Sequence[Sequence[int]],
    hosts: Sequence[Collection[int]],
    nodes: Sequence[int],
    replicas: int,
    domains: Mapping[int, str],
) -> list[list[int]]:
    """Return the nodes of each partition. `retained` are at most `replicas`, on `nodes`; `hosts` already have the data."""
    balancer = _Balancer(retained, hosts, nodes, domains)
    for partition in range(len(retained)):
        balancer.fill(partition, replicas)
        balancer.spread(partition)
    _level(balancer.on, balancer.free_shifts, balancer.shift)
    _level(balancer.on, balancer.shifts, balancer.shift)
    return balancer.replicas


class _Balancer:
    def __init__(
        self,
        retained: Sequence[Sequence[int]],
        hosts: Sequence[Collection[int]],
        nodes: Sequence[int],
        domains: Mapping[int, str],
    ) -> None:
        self._hosts, self._nodes = hosts, nodes
        self._domains = {node: _with_outer_domains(domain) for node, domain in domains.items()}
        self.replicas = [list(here) for here in retained]
        self.on: Loads = {node: set() for node in nodes}
        for partition, here in enumerate(retained):
            for node in here:
                self.on[node].add(partition)

    def fill(self, partition: int, replicas: int) -> None:
        here = self.replicas[partition]
        while len(here) < replicas:
            node = self._best(partition)
            here.append(node)
            self.on[node].add(partition)

    def spread(self, partition: int) -> None:
        """Move replicas out of a shared domain while another domain has fewer."""
        here = self.replicas[partition]
        while len(here) < len(self._nodes):
            crowds, best = self._crowds(partition), self._best(partition)
            gains = {node: self._gain(crowds, node, best) for node in here}
            worst = max(here, key=lambda node: gains[node])
            if gains[worst] < 2:
                return
            outer = self._domains[worst][-1]
            moved = [n for n in here if gains[n] == gains[worst] and self._domains[n][-1] == outer]
            self.shift(partition, max(moved, key=lambda node: len(self.on[node])), best)

    def shift(self, partition: int, source: int, target: int) -> None:
        here = self.replicas[partition]
        here[here.index(source)] = target
        self.on[source].remove(partition)
        self.on[target].add(partition)

    def shifts(self, node: int, targets: set[int]) -> Iterator[tuple[int, int]]:
        """Yield the moves within a domain, or to a domain with fewer replicas of the partition."""
        own = self._domains[node]
        for partition in self.on[node]:
            crowds = self._crowds(partition)
            for target in sorted(targets.difference(self.replicas[partition])):
                pairs = zip(own, self._domains[target], strict=True)
                if all(other == mine or crowds[other] < crowds[mine] for mine, other in pairs):
                    yield partition, target

    def free_shifts(self, node: int, targets: set[int]) -> Iterator[tuple[int, int]]:
        """Yield the moves that copy no data: of a replica that does not exist yet, or to a node with the data."""
        for partition, target in self.shifts(node, targets):
            if target in self._hosts[partition] or node not in self._hosts[partition]:
                yield partition, target

    def _best(self, partition: int) -> int:
        """Return the node for one more replica."""
        crowds, hosts = self._crowds(partition), self._hosts[partition]
        others = (node for node in self._nodes if node not in self.replicas[partition])
        return min(
            others,
            key=lambda node: (
                [crowds[domain] for domain in self._domains[node]],
                node not in hosts,
                len(self.on[node]),
                node,
            ),
        )

    def _gain(self, crowds: Counter[str], source: int, target: int) -> int:
        """Return how many replicas more the source's domain has than the target's, in the first domains that this move evens
        out or crowds. Less than 2: nothing is evened out."""
        for mine, other in zip(self._domains[source], self._domains[target], strict=True):
            if mine != other and crowds[mine] - crowds[other] != 1:
                return crowds[mine] - crowds[other]
        return 0

    def _crowds(self, partition: int) -> Counter[str]:
        """Count the replicas of the partition in each domain."""
        return Counter(domain for node in self.replicas[partition] for domain in self._domains[node])


def _with_outer_domains(domain: str) -> tuple[str, ...]:
    """Return a domain and those around it, the innermost first."""
    parts = domain.split("/")
    return tuple("/".join(parts[:length]) for length in range(len(parts), 0, -1))


def level_active_replicas(replicas: Sequence[list[int]], nodes: Sequence[int]) -> None:
    """Reorder the replicas of each partition so that every node has as many active ones as the others."""
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
    """Return moves from a node to one with at least two fewer partitions, or none."""
    least = min(len(partitions) for partitions in on.values())
    hopeless: set[int] = set()  # no chain from these ends at a node with few enough
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
