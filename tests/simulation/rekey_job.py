"""Simulate the rekey jobs of a world: one that always restarts, and at times a second one.

Strategy: a job does what `ingest/rekey_job.py` and `RekeyRun.java` do, over the simulated network. It asks the nodes for the
least source positions, begins a run there, and numbers what it writes of each source partition to each internal partition. What
it has sent waits for its producer, which writes some of it at a time. So a killed job leaves off anywhere, also in the middle of
a record.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from queryable_app.contract import NODE_HEADER, REKEY_PATH
from queryable_app.policy.source_positions import SourceStart, least_starts
from queryable_app.serve.peers.client import PeerClient, PeerUnavailable
from queryable_app.wire.disk_format import ROW_HEADER_SIZE
from queryable_app.wire.envelopes import MARKER_KEY, Envelope, encode_envelope
from queryable_app.wire.partitioners import partition_for
from tests.simulation.clock import Process
from tests.simulation.nodes import TOKEN
from tests.simulation.rekeyed_checks import groups_of
from tests.simulation.views import contribution

if TYPE_CHECKING:
    from tests.simulation.world import World

_REPORT_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 2.0
_MARKER_SECONDS: Final = 0.05
_GAP_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = (0.1, 0.8)
_FLUSH_SECONDS: Final = (0.001, 0.03)
_KAFKA_AWAY_SECONDS: Final = 2.0
"""A producer gives up after that long."""
_LATE_SECONDS: Final = (0.01, 2.0)
_SOURCE_ID: Final = b"source-1"
_HEADERS: Final = f"{NODE_HEADER}: {TOKEN}\r\n".encode()


class RekeyJobs:
    """Hold the jobs of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.processes: list[Process] = []
        """All that ever ran."""
        self.running: list[RekeyJob] = []

    def start(self) -> RekeyJob:
        process = self._world.spawn(f"rekey{len(self.processes)}")
        self.processes.append(process)
        job = RekeyJob(self._world, process)
        self.running.append(job)
        process.call_soon(lambda: process.create_task(job.run()))
        self._world.note(f"{process.name} starts")
        return job

    def kill(self, job: RekeyJob) -> None:
        """Kill a job. What its producer has sent may still arrive."""
        if job not in self.running:
            return
        self.running.remove(job)
        job.process.kill()
        self._world.network.kill(job.process.name)
        self._world.note(f"{job.process.name} is killed")
        if job.writes is not None:
            job.writes.abandon()


class RekeyJob:
    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self.process = process
        self._random = world.rng("rekey job")
        self._clients: dict[str, PeerClient] = {}
        self._run = 0
        self.writes: _Run | None = None

    async def run(self) -> None:
        while True:
            self._world.note(f"{self.process.name}: {await self._run_once()}")
            await asyncio.sleep(self._random.uniform(*_RETRY_SECONDS))

    async def _run_once(self) -> str:
        """Run until the run ends, and return why."""
        world = self._world
        if world.topic.away:
            return "Kafka is away"
        replicas = [
            (partition, [*map(SourceStart, offsets)], self._run in refused)
            for partition, offsets, refused in await self._report("starting")
        ]
        starts = least_starts(replicas, world.partitions)
        if starts is None:
            return "some partition has no replica that can be written"
        least = [start.offset for start in starts]
        self._run = self._random.getrandbits(62) + 1
        writes = self.writes = _Run(world, self._random, self._run, least)
        world.note(f"{self.process.name} begins run {self._run} at {least}")
        tasks = [asyncio.ensure_future(work) for work in writes.parts()]
        try:
            while writes.failed is None:
                await asyncio.sleep(_REPORT_SECONDS)
                if any(self._run in refused for _, _, refused in await self._report("streaming")):
                    return "a replica needs earlier records than this run has"
            return writes.failed
        finally:
            for task in tasks:
                task.cancel()
            writes.abandon()

    async def _report(self, state: str) -> Sequence[tuple[int, tuple[int, ...], frozenset[int]]]:
        """Report the state, and return the replicas of all nodes that answer."""
        report = {"state": state, "detail": "", "run": self._run, "sourcePartitions": self._world.partitions}
        body = json.dumps(report).encode()
        replicas: list[tuple[int, tuple[int, ...], frozenset[int]]] = []
        for address in self._world.placement.addresses:
            client = self._clients.setdefault(address, PeerClient(address))
            deadline = asyncio.get_running_loop().time() + _ANSWER_SECONDS
            try:
                answer = await client.request(b"PUT", REKEY_PATH.encode(), _HEADERS, body, deadline)
            except PeerUnavailable:
                continue
            if answer.status == 200:
                replicas += [
                    (each["partition"], tuple(each["sources"]), frozenset(each["refused"]))
                    for each in json.loads(answer.body)["replicas"]
                ]
        return replicas


class _Run:
    """Number and write what one run has to say."""

    def __init__(self, world: World, choice: random.Random, run: int, covered: Sequence[int]) -> None:
        self._world, self._random, self._run = world, choice, run
        self.failed: str | None = None
        self.loses_batch = False
        """The next batch with a row is lost, and the run goes on."""
        self.repeats_batch = False
        """The next batch with a row is written twice."""
        partitions = world.partitions
        self._next = list(covered)
        self._sequence = [[0] * partitions for _ in covered]
        self._marked = [[offset] * partitions for offset in covered]
        self._queues: list[list[tuple[bytes, bytes]]] = [[] for _ in range(partitions)]
        for source, offset in enumerate(covered):
            for to in range(partitions):
                self._send(source, to, MARKER_KEY, offset, 0, 0, _SOURCE_ID)

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        partitions = range(self._world.partitions)
        reads = [self._read(source) for source in partitions]
        return [*reads, *[self._flush(to) for to in partitions], self._write_markers()]

    def abandon(self) -> None:
        """End the run. A part of what was sent and not written may still arrive, later."""
        queues, self._queues = self._queues, [[] for _ in self._queues]
        for to, queue in enumerate(queues):
            some = queue[: self._random.randint(0, len(queue))]
            if some:
                late = self._random.uniform(*_LATE_SECONDS)
                self._world.scheduler.after(late, partial(self._append, to, some))

    async def _read(self, source: int) -> None:
        topic = self._world.topic
        log = topic.records[source]
        while True:
            await asyncio.sleep(self._random.uniform(0.005, 0.03))
            offset = self._next[source]
            records = [record for record in log[offset : offset + 20] if record is not None]
            if topic.away or not records:
                if offset < len(log) and not topic.away:
                    await self._skip_gap(source, offset)
                continue
            for record in records:
                rows = groups_of(record)
                for row, (key, serial) in enumerate(rows):
                    if self._random.random() < 0.02:
                        await asyncio.sleep(0.002)  # markers may come between the rows of a record
                    to = partition_for(key, "murmur2", self._world.partitions)
                    added = contribution(0, record.timestamp_ms, serial)[ROW_HEADER_SIZE:]
                    self._send(source, to, key, record.offset, row, len(rows), added)
                    if row + 1 == len(rows):
                        self._marked[source][to] = record.offset + 1
                self._next[source] = record.offset + 1

    async def _skip_gap(self, source: int, offset: int) -> None:
        """Move over offsets without a record, once the run has stood there for a while."""
        await asyncio.sleep(_GAP_SECONDS)
        log = self._world.topic.records[source]
        reached = next((o for o in range(offset, len(log)) if log[o] is not None), len(log))
        self._next[source] = max(self._next[source], reached)

    async def _write_markers(self) -> None:
        while True:
            await asyncio.sleep(_MARKER_SECONDS)
            for source, offset in enumerate(self._next):
                for to, marked in enumerate(self._marked[source]):
                    if marked < offset:
                        self._send(source, to, MARKER_KEY, offset, 0, 0, b"")
                        self._marked[source][to] = offset

    async def _flush(self, to: int) -> None:
        away_seconds = 0.0
        while True:
            pause = self._random.uniform(*_FLUSH_SECONDS)
            await asyncio.sleep(pause)
            queue = self._queues[to]
            if self._world.topic.away:
                away_seconds += pause
                if away_seconds > _KAFKA_AWAY_SECONDS:
                    self.failed = "the internal topic cannot be written"
                continue
            away_seconds = 0.0
            if queue and self.failed is None:
                count = self._random.randint(1, len(queue))
                batch, queue[:] = queue[:count], queue[count:]
                has_row = any(key != MARKER_KEY for key, _ in batch)
                if self.loses_batch and has_row:
                    self.loses_batch = False
                    self._world.note(f"run {self._run} loses {count} records to partition {to}")
                    continue
                self._append(to, batch)
                if self.repeats_batch and has_row:
                    self.repeats_batch = False
                    self._append(to, batch)

    def _append(self, to: int, batch: Sequence[tuple[bytes, bytes]]) -> None:
        now_ms = self._world.scheduler.wall_ns() // 1_000_000
        for key, value in batch:
            self._world.ingested.append(to, key, value, now_ms)

    def _send(self, source: int, to: int, key: bytes, offset: int, row: int, rows: int, added: bytes) -> None:
        sequence = self._sequence[source][to]
        self._sequence[source][to] += 1
        now_ms = self._world.scheduler.wall_ns() // 1_000_000
        envelope = Envelope(source, offset, row, rows, self._run, sequence, now_ms)
        self._queues[to].append((key, encode_envelope(envelope, added)))
