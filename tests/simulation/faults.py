"""Inject faults, and change what users can change. Each fault ends by itself, and `heal` ends them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from queryable_app.placement.assignment import DesiredPlacement
from tests.simulation.controller_process import push_outdated
from tests.simulation.nodes import CLIENT, PLACER, address_of, host_of
from tests.simulation.rekey_faults import RekeyFaults
from tests.simulation.world import SIMULATED, World

_NODES_MAX = 6
_PROBES = 3
_PROBE_SECONDS = (0.0, 0.4)


class Faults:
    """Inject faults. `probe` is called shortly after each one, when its effects show."""

    def __init__(self, world: World, probe: Callable[[], None]) -> None:
        self._world = world
        self._probe = probe
        self._random = world.rng("faults")
        self._ended = False
        self._ends: list[Callable[[], None]] = []
        unchanged = self._random.choice((0.3, 0.8, 2.0, 4.0))
        self._between = (unchanged / 2, unchanged * 2)
        self._kinds: list[tuple[Callable[[], None], int]] = [
            (self._crash, 6),
            (self._stop, 6),
            (self._wipe, 3),
            (self._spoil, 3),
            (self._cut_one_way, 4),
            (self._cut_pair, 4),
            (self._isolate, 3),
            (self._slow_link, 3),
            (self._lose_packets, 2),
            (self._kafka_away, 2),
            (self._stall, 4),
            (self._slow_feed, 3),
            (self._fill_disk, 2),
            (self._refuse_writes, 3),
            (self._take_descriptors, 3),
            (self._lose_task, 3),
            (self._fail_part, 3),
            (self._restart_placer, 3),
            (self._push_late, 4),
            (self._scale, 6),
            (self._change_replicas, 4),
            (self._lose_node, 2),
        ]
        self._kinds += RekeyFaults(world, self._random, self._until).kinds

    def begin(self) -> None:
        self._later(self._random.uniform(*self._between), self._next)

    def heal(self) -> None:
        self._ended = True
        for job in self._world.jobs.running:
            if job.writes is not None:
                job.writes.loses_batch = False
        for end in list(self._ends):
            end()
        self._world.repair_disks()

    def _next(self) -> None:
        if self._ended:
            return
        kinds, weights = zip(*self._kinds, strict=True)
        self._random.choices(kinds, weights)[0]()
        for _ in range(_PROBES):
            self._later(self._random.uniform(*_PROBE_SECONDS), self._probe)
        self._later(self._random.uniform(*self._between), self._next)

    def _later(self, seconds: float, run: Callable[[], None]) -> None:
        self._world.scheduler.after(seconds, run)

    def _until(self, seconds: float, end: Callable[[], None]) -> None:
        """End the fault at that time, or when all faults end."""

        def once() -> None:
            if once in self._ends:
                self._ends.remove(once)
                end()

        self._ends.append(once)
        self._later(seconds, once)

    # Machines.

    def _machine(self, seconds: float) -> int | None:
        """Reserve a machine without a fault for so long."""
        world = self._world
        nodes = len(world.placement.addresses)
        there = [
            o
            for o, machine in sorted(world.machines.items())
            if o < nodes and machine.up and machine.node is not None and not world.busy(o)
        ]
        if not there:
            return None
        ordinal = self._random.choice(there)
        world.busy_until[host_of(ordinal)] = world.scheduler.now + seconds
        return ordinal

    def _crash(self) -> None:
        seconds = self._random.choice((0.3, 1.0, 4.0, 13.0)) * self._random.uniform(0.5, 1.5)
        ordinal = self._machine(seconds)
        if ordinal is None:
            return
        self._world.kill(ordinal)
        what = self._random.random()
        if what < 0.3:
            self._world.lose_power(ordinal, self._random.randint(1, 30))
        elif what < 0.45:
            self._world.damage(ordinal, self._random.randrange(100))
        self._until(seconds, lambda: self._free(ordinal))

    def _stop(self) -> None:
        seconds = self._random.choice((0.2, 1.0, 3.0, 12.0)) * self._random.uniform(0.5, 1.5)
        ordinal = self._machine(seconds)
        if ordinal is not None:
            self._world.stop_signal(ordinal)
            self._until(seconds, lambda: self._world.continue_signal(ordinal))

    def _spoil(self) -> None:
        ordinal = self._machine(0.0)
        if ordinal is not None:
            self._world.corrupt_rows(ordinal, self._random.randrange(100))

    def _wipe(self) -> None:
        """Replace the disk of a machine by an empty one; only rarely that with the last complete replica."""
        seconds = self._random.choice((0.05, 0.5, 4.0))
        ordinal = self._machine(seconds)
        if ordinal is None:
            return
        replicas = self._world.invariants.complete_replicas()
        if any(there == {ordinal} for there in replicas.values()) and self._random.random() < 0.8:
            self._world.busy_until.pop(host_of(ordinal))
            return
        self._world.kill(ordinal)
        self._world.wipe(ordinal)
        self._until(seconds, lambda: self._free(ordinal))

    def _free(self, ordinal: int) -> None:
        self._world.busy_until.pop(host_of(ordinal), None)

    # The network.

    def _hosts(self) -> list[str]:
        return [host_of(o) for o in range(len(self._world.placement.addresses))]

    def _cut(self, links: list[tuple[str, str]]) -> None:
        for link in links:
            self._world.cut(*link)
        seconds = self._random.choice((0.4, 2.0, 6.0, 14.0)) * self._random.uniform(0.5, 1.5)

        def mend() -> None:
            for link in links:
                self._world.mend(*link)

        self._until(seconds, mend)

    def _cut_one_way(self) -> None:
        one, other = self._random.sample([*self._hosts(), CLIENT, PLACER], 2)
        self._cut([(one, other)])

    def _cut_pair(self) -> None:
        one, other = self._random.sample([*self._hosts(), PLACER], 2)
        self._cut([(one, other), (other, one)])

    def _isolate(self) -> None:
        """Cut all links between a node and its peers; clients may reach it."""
        hosts = self._hosts()
        one = self._random.choice(hosts)
        others = [host for host in [*hosts, PLACER] if host != one]
        if self._random.random() < 0.5:
            others.append(CLIENT)
        self._cut([link for other in others for link in ((one, other), (other, one))])

    def _slow_link(self) -> None:
        network, hosts = self._world.network, self._hosts()
        link = (self._random.choice(hosts), self._random.choice(hosts))
        network.extra_seconds[link] = self._random.choice((0.02, 0.1, 0.4))
        self._world.reachability.mark_broken(link, "slow")
        self._world.note(f"slow {link}")

        def end() -> None:
            network.extra_seconds.pop(link, None)
            self._world.reachability.end_cause(link, "slow")

        self._until(self._random.uniform(0.5, 5), end)

    def _lose_packets(self) -> None:
        self._world.network.loss = self._random.choice((0.002, 0.01))
        self._world.note("packets are lost")
        self._until(self._random.uniform(0.5, 5), lambda: setattr(self._world.network, "loss", 0.0))

    # Kafka, ingest, disks.

    def _kafka_away(self) -> None:
        topics = self._world.topics.values()
        self._world.note("Kafka is away")

        def set_away(away: bool) -> None:
            for topic in topics:
                topic.away = away

        set_away(True)
        self._until(self._random.uniform(0.3, 4), lambda: set_away(False))

    def _stall(self) -> None:
        world = self._world
        machine = world.machines[self._random.choice(sorted(world.machines))]
        world.note(f"{machine.host} gets nothing")
        machine.feed.stalled = True
        self._until(self._random.uniform(0.5, 12), lambda: setattr(machine.feed, "stalled", False))

    def _slow_feed(self) -> None:
        world = self._world
        machine = world.machines[self._random.choice(sorted(world.machines))]
        world.note(f"{machine.host} gets little")
        feed = machine.feed
        feed.batch_records, feed.pause_seconds = 1, self._random.choice((0.1, 0.4))

        def end() -> None:
            feed.batch_records, feed.pause_seconds = 20, 0.02

        self._until(self._random.uniform(2, 12), end)

    def _fill_disk(self) -> None:
        world = self._world
        machine = world.machines[self._random.choice(sorted(world.machines))]
        machine.disk_used_percent = self._random.choice((86.0, 95.0))
        world.note(f"the disk of {machine.host} is full to {machine.disk_used_percent}")
        self._until(self._random.uniform(1, 8), lambda: setattr(machine, "disk_used_percent", 10.0))

    # Resources.

    def _refuse_writes(self) -> None:
        """Refuse writes, briefly or for long: a full disk, or one with errors."""
        world = self._world
        machine = world.machines[self._random.choice(sorted(world.machines))]
        world.note(f"the disk of {machine.host} takes nothing")
        machine.disk_refuses = True
        seconds = self._random.choice((0.1, 1.0, 8.0)) * self._random.uniform(0.5, 1.5)
        self._until(seconds, lambda: setattr(machine, "disk_refuses", False))

    def _take_descriptors(self) -> None:
        """Take all free descriptors: nothing can be opened, connected or accepted, and open ones stay open."""
        world = self._world
        seconds = self._random.choice((0.3, 2.0, 8.0)) * self._random.uniform(0.5, 1.5)
        ordinal = self._machine(seconds)
        if ordinal is None:
            return
        machine = world.machines[ordinal]
        world.note(f"{machine.host} has no descriptors")
        machine.disk_refuses = True
        world.network.exhaust_descriptors(machine.host)
        world.reachability.mark_broken(machine.host, "no descriptors")

        def end() -> None:
            self._free(ordinal)
            machine.disk_refuses = False
            world.network.feed(machine.host)
            world.reachability.end_cause(machine.host, "no descriptors")
            world.note(f"{machine.host} has descriptors again")

        self._until(seconds, end)

    def _lose_task(self) -> None:
        world = self._world
        machine = world.machines[self._random.choice(sorted(world.machines))]
        if machine.up and machine.ingest is not None:
            world.note(f"{machine.host} loses a task of its query")
            machine.ingest.lose_task(self._random.randrange(100))

    def _fail_part(self) -> None:
        """Raise an error in a background task of a node, as a defect would."""
        machine = self._world.machines[self._random.choice(sorted(self._world.machines))]
        if machine.node is None:
            return
        node = machine.node
        owner, name = self._random.choice(
            (
                (node.end_offsets, "_look_up"),
                (node._gaps, "_quiet"),
                (node.disk_guard, "look"),
                (node.watchdog, "look"),
                (node.assigned_replicas, "_check"),
                (node.replicas, "measure"),
            )
        )

        def fail(*_: object) -> None:
            delattr(owner, name)
            raise RuntimeError(SIMULATED)

        if name not in vars(owner):
            self._world.note(f"{machine.host}: {type(owner).__name__}.{name} fails")
            setattr(owner, name, fail)

    # People.

    def _restart_placer(self) -> None:
        world = self._world
        if PLACER in world.busy_until:
            return
        world.busy_until[PLACER] = 1.0
        world.kill_placer()
        world.note("the placer is killed")

        def again() -> None:
            del world.busy_until[PLACER]
            world.start_placer()
            world.note("the placer starts")

        self._until(self._random.uniform(0.1, 3), again)

    def _push_late(self) -> None:
        world = self._world
        old = self._random.choice(world.history)
        ordinal = self._random.randrange(len(world.placement.addresses))
        world.note(f"epoch {old.epoch} arrives late at {host_of(ordinal)}")
        push = push_outdated(address_of(ordinal), old)
        world.client.call_soon(lambda: world.client.create_task(push))

    def _scale(self) -> None:
        world = self._world
        if world.leaving or world.wanted.lost:
            return
        nodes = self._random.randint(1, _NODES_MAX)
        replicas = min(nodes, world.wanted.replicas)
        known = world.placement.addresses
        addresses = known[:nodes] + tuple(address_of(o) for o in range(len(known), nodes))
        world.want(DesiredPlacement(addresses, replicas))

    def _change_replicas(self) -> None:
        world = self._world
        replicas = self._random.randint(1, min(3, len(world.wanted.nodes)))
        world.want(replace(world.wanted, replicas=replicas))

    def _lose_node(self) -> None:
        """Lose a machine for good; report it as lost after a while, and replace it later."""
        world = self._world
        if world.wanted.lost or len(world.wanted.addresses) < 2:
            return
        there, back = self._random.uniform(0.1, 4), self._random.uniform(5, 15)
        ordinal = self._machine(there + back)
        if ordinal is None:
            return
        if ordinal >= len(world.wanted.addresses) or any(
            there_ == {ordinal} for there_ in world.invariants.complete_replicas().values()
        ):
            self._free(ordinal)
            return
        world.kill(ordinal)
        world.wipe(ordinal)

        def tell() -> None:
            others = set(world.wanted.nodes) - {ordinal}
            if ordinal in world.wanted.nodes and others and not self._ended:
                replicas = min(world.wanted.replicas, len(others))
                world.want(replace(world.wanted, replicas=replicas, lost=frozenset({ordinal})))

        def end() -> None:
            self._free(ordinal)
            if world.wanted.lost:
                world.want(replace(world.wanted, lost=frozenset()))

        self._later(there, tell)
        self._until(there + back, end)
