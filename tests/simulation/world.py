"""Simulate the world of one seed: machines, a network, a topic, a placement controller.

`faults` changes the world, and `readers` read from it. The world records which hosts and links were up, and
since when, for the checks; `invariants` checks every moment.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path

from queryable_app.config.rekey import internal_topic
from queryable_app.placement.assignment import DesiredPlacement, Placement, initial_placement
from queryable_app.serve.store.replica import Replica
from tests.simulation.clock import Process, Scheduler
from tests.simulation.controller_process import ControllerProcess
from tests.simulation.disks import Disks, Rows
from tests.simulation.invariants import Invariants
from tests.simulation.keyed_checks import KeyedRows
from tests.simulation.network import Network
from tests.simulation.nodes import (
    APPLICATION_ID,
    CLIENT,
    PLACER,
    SOURCE_TOPIC,
    Machine,
    address_of,
    host_of,
    run_node,
)
from tests.simulation.observations import HedgeCounts, Reachability
from tests.simulation.rekey_job import RekeyJobs
from tests.simulation.rekeyed_checks import SourceRows
from tests.simulation.topic import Topic
from tests.simulation.views import Kind, View

SIMULATED = "a failure that the world has made"
_WATCH_SECONDS = 0.2
_NOTICE_SECONDS = 2.0
_TRACE_LINES = 400
_WIND_UP_SECONDS = 1.0


class World:
    def __init__(self, seed: int, kind: Kind | None = None) -> None:
        self.seed = seed
        self.view = View(seed, kind)
        choice = random.Random(f"{seed}/world")
        self.scheduler = Scheduler(random.Random(f"{seed}/threads"))
        self.network = Network(self.scheduler, random.Random(f"{seed}/network"))
        self.network.watch = self._watch
        self.partitions = choice.choice((1, 2, 3, 4, 6))
        nodes = choice.choice((2, 3, 3, 4, 5))
        replicas = min(nodes, choice.choice((1, 2, 2, 2, 3)))
        # The states of a key that is in several partitions are merged, and have no row for each record.
        self.mixed = choice.random() < 0.2 and self.view.kind == "latest" and not self.view.history
        self.topic = Topic(self.scheduler, self.partitions, self.view.row_after)
        self.topic.compacted = self.view.history and choice.random() < 0.2
        self.ingested = Topic(self.scheduler, self.partitions) if self.view.rekeyed else self.topic
        """The topic that the nodes read: that of the view, or the internal topic of a rekeyed view."""
        self.topics = {SOURCE_TOPIC: self.topic}
        if self.view.rekeyed:
            self.topics[internal_topic(APPLICATION_ID)] = self.ingested
        self.source_rows = KeyedRows(self.topic) if self.view.kind == "keyed" else SourceRows(self.topic)
        self.compacts = self.view.kind == "keyed" and choice.random() < 0.6
        """The source topic is compacted at times."""
        self.jobs = RekeyJobs(self)
        self.disks = Disks()
        self.disks.refuses = self._refuses_writes
        self.reachability = Reachability(self.scheduler)
        self.hedges = HedgeCounts()
        self.invariants = Invariants(self)
        self.disks.corruption_found = self.invariants.note_destruction
        self.directory = Path(tempfile.mkdtemp(prefix="qt-simulation-", dir=_memory()))
        self.machines: dict[int, Machine] = {}
        self.trace: list[str] = []
        self.event_counts: Counter[str] = Counter()
        self.busy_until: dict[str, float] = {}
        """The time until which a fault has a machine, by host."""
        self.ready = False
        """Every replica has been complete once: from now on none may be lost."""
        self.unwritten_keys: dict[bytes, str] = {}
        """The node that a read of a never written key was sent to, by key."""
        self._digest = blake2b(digest_size=16)
        self._random = choice
        self._seeds: Counter[str] = Counter()
        self._buried: list[Process] = []
        self._leaving_since: dict[int, float] = {}
        self.closing = False
        self.settling = False
        """All faults have ended, and readers pause no longer."""
        self.wanted = DesiredPlacement(tuple(address_of(o) for o in range(nodes)), replicas)
        self.placement = initial_placement(APPLICATION_ID, self.partitions, self.wanted.addresses, replicas)
        self.history = [self.placement]
        self.on_step: Callable[[], None] = lambda: None
        self.client = self.spawn(CLIENT)
        self.placer = ControllerProcess(self.placement, self.wanted, self._stepped)
        self.note(
            f"world: {self.view.kind} {sorted(self.view.features)}, {nodes} nodes, "
            f"{self.partitions} partitions, {replicas} replicas, "
            f"mixed={self.mixed}, compacts={self.compacts}"
        )

    def _refuses_writes(self, path: Path) -> bool:
        return any(m.disk_refuses and path.is_relative_to(m.directory) for m in self.machines.values())

    # The trace.

    def note(self, what: str) -> None:
        line = f"{self.scheduler.now - 1000:9.4f} {what.replace(f'{self.directory}/', '')}"
        self._digest.update(line.encode(errors="replace"))
        self.trace.append(line)
        if len(self.trace) > _TRACE_LINES:
            del self.trace[: _TRACE_LINES // 2]

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def rng(self, name: str) -> random.Random:
        self._seeds[name] += 1
        return random.Random(f"{self.seed}/{name}/{self._seeds[name]}")

    # Processes.

    def spawn(self, name: str, skew_seconds: float = 0.0) -> Process:
        return Process(  # type: ignore[abstract]
            name, self.scheduler, self._defect, self.network.connect, skew_seconds
        )

    def start_placer(self) -> None:
        process = self.spawn(PLACER)
        self._placer_process = process
        placer = self.placer = ControllerProcess(self.placement, self.wanted, self._stepped)
        process.call_soon(lambda: process.create_task(placer.run()))
        self.reachability.end_cause(PLACER, "down")

    def kill_placer(self) -> None:
        self._placer_process.kill()
        self._buried.append(self._placer_process)
        self.network.kill(PLACER)
        self.reachability.mark_broken(PLACER, "down")

    def start(self, ordinal: int) -> None:
        machine = self.machines.get(ordinal)
        if machine is None:
            name = "auto" if self.mixed else self._random.choice(("auto", "murmur2"))
            machine = self.machines[ordinal] = Machine(self.directory, ordinal, name, self.view)
            machine.bootstrap = self.placement
        process = machine.process = self.spawn(machine.host, self._skew_seconds())
        self.network.listen(machine.host, process)
        settings = machine.settings()
        seed = self.rng(f"ingest{ordinal}")

        async def serve() -> None:
            self.network.serve(machine.host, await run_node(machine, settings, self.ingested, seed))
            self.reachability.end_cause(machine.host, "down")
            self.note(f"{machine.host} serves")

        self.reachability.mark_broken(machine.host, "down")
        process.call_soon(lambda: process.create_task(serve()))
        self.note(f"{machine.host} starts")

    def _skew_seconds(self) -> float:
        """Return how far a machine's clock is off. History speaks of the time of the machines, so there they have the same."""
        return 0.0 if self.view.history else self._random.uniform(-5, 5)

    def kill(self, ordinal: int) -> None:
        machine = self.machines[ordinal]
        if machine.process is not None:
            machine.process.kill()
            self._buried.append(machine.process)
            self._check_hedges(machine)
            self.network.kill(machine.host)
            machine.process = machine.node = None
            self.reachability.mark_broken(machine.host, "down")
            self.reachability.end_cause(machine.host, "stopped")
            self.note(f"{machine.host} is killed")

    def wipe(self, ordinal: int) -> None:
        self.note(f"{host_of(ordinal)} is wiped")
        self.machines[ordinal].wipe()
        self.invariants.forget_epoch(ordinal)
        self.invariants.note_destruction()

    def lose_power(self, ordinal: int, batches: int) -> None:
        """Lose the batches that were not synced."""
        self.note(f"{host_of(ordinal)} loses power, and up to {batches} batches of each replica")
        for rows in self.disks.below(self.machines[ordinal].data_dir):
            for _ in range(rows.lose_batches(batches)):
                self.invariants.undo_creation(ordinal, rows.identity.partition)
        self.invariants.note_destruction()

    def damage(self, ordinal: int, choice: int) -> None:
        """Damage one replica of a machine so that it cannot be opened, if another replica exists."""
        rows = self._spare(ordinal, choice)
        if rows is not None:
            rows.damaged = True
            self.note(f"{host_of(ordinal)}: the replica of partition {rows.identity.partition} is damaged")
            self.invariants.note_destruction()

    def corrupt_rows(self, ordinal: int, choice: int) -> None:
        """Damage some rows of one replica, if another replica exists."""
        rows = self._spare(ordinal, choice)
        if rows is not None:
            rows.corrupt_keys = True
            self.event_counts["corrupted rows"] += 1
            self.note(f"{host_of(ordinal)}: rows of partition {rows.identity.partition} cannot be read")

    def _spare(self, ordinal: int, choice: int) -> Rows | None:
        complete = self.invariants.complete_replicas()
        spare = [
            rows
            for rows in self.disks.below(self.machines[ordinal].data_dir)
            if complete[rows.identity.partition] - {ordinal}
            and rows.identity.partition not in self.invariants.destroyed
        ]
        return spare[choice % len(spare)] if spare else None

    def repair_disks(self) -> None:
        """Repair damaged disks as an administrator would, and restart the nodes that had failed replicas."""
        for ordinal, machine in self.machines.items():
            for rows in self.disks.below(machine.data_dir):
                rows.corrupt_keys = rows.found_corrupt = False
            replicas = machine.node.replicas.by_partition.values() if machine.node is not None else ()
            if any(replica.damaged is not None for replica in replicas):
                self.kill(ordinal)

    def stop_signal(self, ordinal: int) -> None:
        process = self.machines[ordinal].process
        if process is not None:
            process.stop_signal()
            self.reachability.mark_broken(process.name, "stopped")
            self.note(f"{process.name} is stopped")

    def continue_signal(self, ordinal: int) -> None:
        process = self.machines[ordinal].process
        if process is not None and process.stopped:
            process.continue_signal()
            self.reachability.end_cause(process.name, "stopped")
            self.note(f"{process.name} goes on")

    def cut(self, one: str, other: str) -> None:
        self.network.cut((one, other))
        self.reachability.mark_broken((one, other), "cut")
        self.note(f"cut {one} -> {other}")

    def mend(self, one: str, other: str) -> None:
        if self.network.is_cut((one, other)):
            self.network.mend((one, other))
            self.reachability.end_cause((one, other), "cut")
            self.note(f"mend {one} -> {other}")

    def want(self, wanted: DesiredPlacement) -> None:
        self.wanted = self.placer.wanted = wanted
        self.note(
            f"wanted: {len(wanted.addresses)} nodes, {wanted.replicas} replicas, lost {set(wanted.lost)}"
        )

    # Reactions.

    def reconcile_machines(self) -> None:
        """Start machines that the placement names, end the others, and check the invariants."""
        now, nodes = self.scheduler.now, len(self.placement.addresses)
        if self.closing:
            return
        for ordinal in range(nodes):
            if ordinal not in self.machines or (
                not self.machines[ordinal].up and ordinal not in self.wanted.lost and not self.busy(ordinal)
            ):
                self.start(ordinal)
        for ordinal, machine in self.machines.items():
            if ordinal < nodes:
                self._leaving_since.pop(ordinal, None)
            elif now - self._leaving_since.setdefault(ordinal, now) > _NOTICE_SECONDS and machine.up:
                self.kill(ordinal)
                self.wipe(ordinal)
                machine.bootstrap = self.placement
        self.invariants.check_machines()
        self.scheduler.after(_WATCH_SECONDS, self.reconcile_machines)

    def one_replica(self, positions: Mapping[int, int]) -> bool:
        """Tell whether the answer for one key at these positions comes from one replica."""
        return len(positions) == 1 or self.view.rekeyed

    def has_all(self, replica: Replica, moment: float) -> bool:
        """Tell whether a replica has every record that was there at an earlier moment."""
        if not self.view.rekeyed:
            return max(0, replica.position) >= self.topic.end_at(replica.partition, moment)
        return all(
            offset >= self.topic.end_at(partition, moment)
            for partition, offset in enumerate(replica.source_offsets)
        )

    def busy(self, ordinal: int) -> bool:
        return self.busy_until.get(host_of(ordinal), 0.0) > self.scheduler.now

    @property
    def leaving(self) -> bool:
        """Tell whether a machine has left the placement and still runs."""
        nodes = len(self.placement.addresses)
        return any(ordinal >= nodes and machine.up for ordinal, machine in self.machines.items())

    def _stepped(self, before: Placement, placement: Placement) -> None:
        self.placement = placement
        self.history.append(placement)
        self.on_step()
        self.note(f"epoch {placement.epoch}: serving {placement.serving}, hydrating {placement.hydrating}")
        self.invariants.check_step(before, placement)

    def _defect(self, what: str) -> None:
        self.invariants.note_violation(f"a defect: {what}")

    def _watch(self, source: str, target: str, data: bytes) -> None:
        if b"/v1/keys/bait-" in data:
            for request in data.split(b"GET /v1/keys/bait-")[1:]:
                key = b"bait-" + request.split(b" ", 1)[0].split(b"?", 1)[0]
                if source not in (CLIENT, self.unwritten_keys.get(key)):
                    self.invariants.note_violation(
                        f"{source} passes {key!r} on to {target}, and it was passed on to {source}"
                    )

    def note_event(self, name: str, fields: dict[str, object]) -> None:
        """Note an event of the product's log."""
        self.event_counts[name] += 1
        if name == "internal-error" and SIMULATED not in str(fields["error"]):
            self.invariants.note_violation(f"a defect: {fields}")
        process = self.scheduler.running
        if name == "placement" and process is not None:
            epoch = fields["epoch"]
            assert isinstance(epoch, int)
            self.invariants.check_epoch(int(process.name.removeprefix("node")), epoch)
        shown = {k: v for k, v in fields.items() if k not in ("lease", "path", "id", "trace", "bytes")}
        self.note(f"{process.name if process else '-'}: {name} {shown}")

    # The end.

    def account(self) -> None:
        for machine in self.machines.values():
            self._check_hedges(machine)

    def _check_hedges(self, machine: Machine) -> None:
        if machine.node is not None and (why := self.hedges.refusal(machine.node.peers.hedges)):
            self.invariants.note_violation(f"{machine.host} {why}")

    def close(self) -> None:
        self.closing = True
        there = [machine.process for machine in self.machines.values() if machine.process is not None]
        processes = [*self._buried, *there, self.client, self._placer_process, *self.jobs.processes]
        for process in processes:
            process.cancel_all()
        self.scheduler.run_until(self.scheduler.now + _WIND_UP_SECONDS)
        for process in processes:
            process.discard()
        shutil.rmtree(self.directory, ignore_errors=True)


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
