"""Simulate the rekey jobs of a world: one that always restarts, and at times a second one.

Strategy: a job does what `ingest/rekey_job.py` and `RekeyRun.java` do, over the simulated network. It asks the nodes for the
least source positions, begins a run there, and numbers what it writes of each source partition to each internal partition. What
it has sent waits for its producer, which writes some of it at a time. So a killed job leaves off anywhere, also in the middle of
a record.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from queryable_app.contract import NODE_HEADER, REKEY_PATH
from queryable_app.ingest.rekey_nodes import ReplicaSources, replica_sources
from queryable_app.policy.source_positions import SourceStart, least_starts, trusted_offsets
from queryable_app.serve.peers.client import PeerClient, PeerUnavailable
from queryable_app.wire.envelopes import MARKER_KEY, Envelope, encode_envelope
from tests.simulation.clock import Process
from tests.simulation.nodes import TOKEN
from tests.simulation.rekeyed_records import AggregateRecords, KeyedRecords, Message, WindowRecords
from tests.support.fold import LogRecord

if TYPE_CHECKING:
    from tests.simulation.world import World

_REPORT_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 2.0
_MARKER_SECONDS: Final = 0.05
_GAP_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = (0.1, 0.8)
_READ_SECONDS: Final = (0.005, 0.03)
_READ_SLOWLY_SECONDS: Final = (0.1, 0.6)
_READ_RECORDS: Final = 20
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
        self.world = world
        self.process = process
        self.random = world.rng("rekey job")
        self._clients: dict[str, PeerClient] = {}
        self._run = 0
        self.slow = False
        """It reads one record at a time, with pauses."""
        self.writes: _Run | None = None

    async def run(self) -> None:
        while True:
            self.world.note(f"{self.process.name}: {await self._run_once()}")
            await asyncio.sleep(self.random.uniform(*_RETRY_SECONDS))

    async def _run_once(self) -> str:
        """Run until the run ends, and return why."""
        world = self.world
        if world.topic.away:
            return "Kafka is away"
        ends = [world.topic.end(partition) for partition in range(world.partitions)]
        replicas = await self._report("starting")
        refused = any(self._run in each.refused for each in replicas)
        starts = least_starts(
            [(each.partition, each.starts, self._run in each.refused) for each in replicas], world.partitions
        )
        if starts is None:
            return "some partition has no replica that can be written"
        self._run = self.random.getrandbits(62) + 1
        records = self._records(starts, replicas, ends if refused else None)
        writes = self.writes = _Run(self, self._run, starts, records)
        world.note(f"{self.process.name} begins run {self._run} at {[(s.offset, s.row) for s in starts]}")
        tasks = [asyncio.ensure_future(work) for work in writes.parts()]
        try:
            while writes.failed is None:
                await asyncio.sleep(_REPORT_SECONDS)
                if any(self._run in each.refused for each in await self._report("streaming")):
                    return "a replica needs earlier records than this run has"
            return writes.failed
        finally:
            for task in tasks:
                task.cancel()
            writes.abandon()

    def _records(
        self, starts: Sequence[SourceStart], replicas: Sequence[ReplicaSources], latest: Sequence[int] | None
    ) -> AggregateRecords:
        view, partitions = self.world.view, self.world.partitions
        if view.kind == "keyed":
            reached = [[start.offset for start in each.starts] for each in replicas]
            return KeyedRecords(partitions, trusted_offsets(reached, latest), self.random)
        if view.windowed:
            return WindowRecords(partitions, view.windows, starts)
        return AggregateRecords(partitions)

    async def _report(self, state: str) -> Sequence[ReplicaSources]:
        """Report the state, and return the replicas of all nodes that answer."""
        report = {"state": state, "detail": "", "run": self._run, "sourcePartitions": self.world.partitions}
        body = json.dumps(report).encode()
        replicas: list[ReplicaSources] = []
        for address in self.world.placement.addresses:
            client = self._clients.setdefault(address, PeerClient(address))
            deadline = asyncio.get_running_loop().time() + _ANSWER_SECONDS
            try:
                answer = await client.request(b"PUT", REKEY_PATH.encode(), _HEADERS, body, deadline)
            except PeerUnavailable:
                continue
            if answer.status == 200:
                replicas += map(replica_sources, json.loads(answer.body)["replicas"])
        return replicas


class _Run:
    """Number and write what one run has to say."""

    def __init__(
        self, job: RekeyJob, run: int, starts: Sequence[SourceStart], records: AggregateRecords
    ) -> None:
        self._job, self._run, self._records = job, run, records
        self._world, self._random = job.world, job.random
        self.failed: str | None = None
        self.loses_batch = False
        """The next batch with a row is lost, and the run goes on."""
        self.repeats_batch = False
        """The next batch with a row is written twice."""
        partitions = self._world.partitions
        self._next = [start.offset for start in starts]
        self._sequence = [[0] * partitions for _ in starts]
        self._marked = [[offset] * partitions for offset in self._next]
        self._queues: list[list[tuple[bytes, bytes]]] = [[] for _ in range(partitions)]
        for source, start in enumerate(starts):
            for to in range(partitions):
                self._mark(source, to, start.offset, start.row, _SOURCE_ID)

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
            slow = self._job.slow
            await asyncio.sleep(self._random.uniform(*(_READ_SLOWLY_SECONDS if slow else _READ_SECONDS)))
            offset = self._next[source]
            records = [] if topic.away else _records_from(log, offset, 1 if slow else _READ_RECORDS)
            if not records and offset < len(log) and not topic.away:
                await self._skip_gap(source, offset)
            for record in records:
                await self._write(source, record)

    async def _write(self, source: int, record: LogRecord) -> None:
        for message in self._records.messages(record):
            if message.row > 0 and self._random.random() < 0.1:
                await asyncio.sleep(0.06)  # markers may come between the rows of a record
            self._send(source, message)
            if message.row + 1 == message.rows:
                self._marked[source][message.to] = record.offset + 1
        self._next[source] = record.offset + 1

    async def _skip_gap(self, source: int, offset: int) -> None:
        """Move over offsets without a record, once the run has stood there for a while."""
        await asyncio.sleep(_GAP_SECONDS)
        log = self._world.topic.records[source]
        found = _records_from(log, offset, 1)
        self._next[source] = max(self._next[source], found[0].offset if found else len(log))

    async def _write_markers(self) -> None:
        while True:
            await asyncio.sleep(_MARKER_SECONDS)
            for source, offset in enumerate(self._next):
                for to, marked in enumerate(self._marked[source]):
                    if marked < offset and self._records.may_mark(source, offset):
                        self._mark(source, to, offset)
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

    def _mark(self, source: int, to: int, offset: int, row: int = 0, content: bytes = b"") -> None:
        now_ms = self._world.scheduler.wall_ns() // 1_000_000
        self._send(source, Message(to, MARKER_KEY, offset, row, 0, now_ms, content))

    def _send(self, source: int, message: Message) -> None:
        to, key, offset, row, rows, timestamp_ms, content = message
        sequence = self._sequence[source][to]
        self._sequence[source][to] += 1
        envelope = Envelope(source, offset, row, rows, self._run, sequence, timestamp_ms)
        prefix = self._records.prefix(source, to, offset)
        self._queues[to].append((key, encode_envelope(envelope, prefix + content)))


def _records_from(log: Sequence[LogRecord | None], offset: int, count: int) -> Sequence[LogRecord]:
    """Return the next records. Offsets without one are skipped only if a record follows."""
    return [*islice((record for record in log[offset:] if record is not None), count)]
