"""Run one seed: start a world, inject faults, heal it, and check that it converges."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.simulation.change_follower import ChangeFollower
from tests.simulation.checks import GuaranteeBroken, ReadRequest
from tests.simulation.client_reader import ClientReader, ScanReader
from tests.simulation.clock import TimeStandsStill
from tests.simulation.entry_reader import EntryPagesReader, EntryReader
from tests.simulation.faults import Faults
from tests.simulation.folded_feeds import FoldedFeed, feed_of
from tests.simulation.index_reader import IndexReader
from tests.simulation.multi_partition_reader import MultiPartitionReader
from tests.simulation.nodes import background_of, host_of
from tests.simulation.past_reader import PastReader
from tests.simulation.product import inside
from tests.simulation.readers import PlainReader, Reader, UnwrittenKeyReader
from tests.simulation.replica_checks import check_replicas
from tests.simulation.views import Kind
from tests.simulation.window_reader import WindowReader
from tests.simulation.world import World
from tests.simulation.writer import Writer
from tests.simulation.writer_keys import CHANGING_KEYS, STABLE_KEYS, changing_key, stable_key

_START_SECONDS = 20.0
_FAULTS_SECONDS = (8.0, 25.0)
_HEAL_SECONDS = 60.0
_STEP_SECONDS = 0.25
_PROBED_AFTER_SECONDS = (0.001, 0.02, 0.1, 0.3)  # a step of the placer


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    violation: str | None
    digest: str
    trace: tuple[str, ...]
    event_counts: Counter[str]
    steps: int


def run(seed: int, kind: Kind | None = None) -> Outcome:
    """Run the world of a seed, from which everything follows; `kind` replaces the kind of its view."""
    collecting = gc.isenabled()
    gc.disable()  # what is freed when, and with it what `finally` runs when, must not depend on other tests
    world = World(seed, kind)
    violation: str | None = None
    try:
        with inside(world):
            try:
                _Run(world).all()
            except (GuaranteeBroken, TimeStandsStill) as error:
                violation = str(error)
                world.note(f"WRONG: {violation}")
            finally:
                digest, trace = world.digest, tuple(world.trace)
                world.close()
    finally:
        if collecting:
            gc.enable()
    return Outcome(seed, violation, digest, trace, world.event_counts, world.scheduler.steps)


class _Run:
    def __init__(self, world: World) -> None:
        self._world = world
        self._wrong = world.invariants.violations
        self._missing = ""

    def all(self) -> None:
        world = self._world
        choice = world.rng("run")
        writer = Writer(world)
        writer.fill(choice.choice((0, 30, 150, 400)))
        world.start_placer()
        if world.view.rekeyed:
            world.jobs.start()
        world.reconcile_machines()
        self._wait("all replicas are complete", _START_SECONDS, self._all_complete)
        world.ready = True
        by_time = world.view.windowed or world.view.kind == "entries"
        reader = EntryReader if world.view.kind == "entries" else WindowReader if by_time else PlainReader
        plain = [reader(world, f"plain{n}") for n in range(2)]
        others: list[Reader] = []
        if not by_time:  # where keys have no single value
            others += [ClientReader(world, "smart", writer), ScanReader(world, "scan", writer)]
            others += [UnwrittenKeyReader(world, "bait"), MultiPartitionReader(world, "many")]
        follower, feed = None, feed_of(world)
        if feed is not None:
            follower = ChangeFollower(world, "follower", feed)
            others.append(follower)
        if "indexes" in world.view.features:
            others.append(IndexReader(world, "index"))
        if world.view.kind == "entries":
            others.append(EntryPagesReader(world, "pages"))
        if world.view.history:
            others.append(PastReader(world, "past"))
        self._begin(writer.run())
        for each in (*plain, *others):
            self._begin(each.run())
        prober = reader(world, "prober")

        def probe() -> None:
            self._begin(prober.read_everywhere())

        def probe_soon() -> None:
            for seconds in _PROBED_AFTER_SECONDS:
                world.scheduler.after(seconds, probe)

        world.on_step = probe_soon
        faults = Faults(world, probe)
        faults.begin()
        self._pass(choice.uniform(*_FAULTS_SECONDS))
        world.note("all faults end")
        faults.heal()
        world.settling = True
        self._wait("the world has converged", _HEAL_SECONDS, self._converged)
        self._pass(1.0)
        writer.stopped = True
        self._wait("all replicas are at the end", _HEAL_SECONDS, self._at_end)
        if follower is not None:
            self._wait(
                "the follower has all changes", _HEAL_SECONDS, lambda: follower.at_end and self._at_end()
            )
        if isinstance(feed, FoldedFeed):
            feed.check_end()
        check_replicas(world)
        self._begin(self._read_all(plain[0]))
        self._wait("everything can be read", 30.0, lambda: self._read)
        world.account()

    # Passing time.

    def _pass(self, seconds: float) -> None:
        until = self._world.scheduler.now + seconds
        while self._world.scheduler.now < until:
            self._world.scheduler.run_until(min(until, self._world.scheduler.now + _STEP_SECONDS))
            if self._wrong:
                raise self._wrong[0]

    def _wait(self, what: str, seconds: float, check: Callable[[], bool]) -> None:
        until = self._world.scheduler.now + seconds
        while not check():
            if self._world.scheduler.now >= until:
                raise GuaranteeBroken(f"not within {seconds:.0f} s: {what} {self._missing}")
            self._pass(_STEP_SECONDS)
        self._world.note(what)

    def _begin(self, work: Awaitable[Any]) -> None:
        client = self._world.client

        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                self._wrong.append(error)

        client.call_soon(lambda: client.create_task(guarded()))

    # Convergence.

    def _all_complete(self) -> bool:
        world = self._world
        return all(
            machine.node is not None and machine.node.replicas.ready
            for ordinal, machine in world.machines.items()
            if ordinal < len(world.placement.addresses)
        )

    def _at_end(self) -> bool:
        return not self._missing_at(self._world.scheduler.now)

    def _converged(self) -> bool:
        self._missing = self._missing_for_convergence()
        return not self._missing

    def _missing_for_convergence(self) -> str:
        return self._missing_at(self._world.scheduler.now - 1.5)

    def _missing_at(self, moment: float) -> str:
        """Return what is missing for convergence; an empty text if nothing is."""
        world = self._world
        if not world.placer.settled or world.leaving:
            return f"settled: {world.placer.placement}, wanted {world.wanted}"
        for ordinal in range(len(world.placement.addresses)):
            host, node = host_of(ordinal), world.machines[ordinal].node
            if node is None or node.placement.epoch != world.placement.epoch:
                return f"{host} follows {node and node.placement.epoch}"
            if (
                set(node.replicas.by_partition) != set(world.placement.assigned_to(ordinal))
                or node.replicas.removing
            ):
                return f"{host} holds {set(node.replicas.by_partition)}, and lets go {set(node.replicas.removing)}"
            tasks = [part._running for part in background_of(node)] + [
                node.assigned_replicas._checks,
                node._measuring,
            ]
            if any(task is None or task.done() for task in tasks):
                return f"{host} has a background task that has ended"
            ingest = world.machines[ordinal].ingest
            if ingest is None or not ingest.whole:
                return f"{host} lacks a task of its query"
            for partition, replica in node.replicas.by_partition.items():
                if not replica.writable or not replica.complete or not world.has_all(replica, moment):
                    reached = replica.source_offsets or replica.position
                    return f"{host} has partition {partition} up to {reached}, {replica.complete}"
        return ""

    _read = False

    async def _read_all(self, reader: PlainReader) -> None:
        keys = [stable_key(n) for n in range(STABLE_KEYS)] + [changing_key(n) for n in range(CHANGING_KEYS)]
        for ordinal in range(len(self._world.placement.addresses)):
            for number, key in enumerate(keys):
                read_request = (ReadRequest(), ReadRequest("strong"), ReadRequest(max_lag_ms=5000))[
                    number % 3
                ]
                await reader.read(ordinal, key, read_request, must=True)
        self._read = True
        await asyncio.sleep(0)
