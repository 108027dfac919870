"""Simulate a machine, and run the product's own node on it, from the HTTP protocol to the store.

Simulated are the disk (`disks`), Kafka (`topic`), and ingest, which sends the log's records as frames at a speed of its own.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uvicorn.server import ServerState

from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import Placement
from queryable_app.policy.attempts import HedgeBudget
from queryable_app.serve.api.app import create_app
from queryable_app.serve.base.background import Background, supervise
from queryable_app.serve.feed.data_loss import check_topic
from queryable_app.serve.node import Node
from queryable_app.serve.process import server_config
from queryable_app.serve.replication.assigned_replicas import AssignedReplicas
from queryable_app.wire.partitioners import count_mismatches
from queryable_app.wire.row_frames import DROPPED, SliceHeader, encode_slice
from tests.simulation.clock import Process
from tests.simulation.topic import Topic
from tests.simulation.views import View
from tests.support.fold import LogRecord

SOURCE_TOPIC = "users"
APPLICATION_ID = "simulation.users.r1"
TOKEN = "simulated"
CLIENT, PLACER = "client", "placer"  # hosts beside the nodes
HEDGE_SHARE, HEDGE_BURST = 0.05, 1.0

_TOPIC_ID = "topic-1"
_SETTLE_SECONDS = 0.05
_SWEEP_SECONDS = 3.0
_START_SECONDS = (0.05, 0.4)
_RECORDS_MIN = 20  # a replica with fewer records is streamed


@dataclass(slots=True)
class Feed:
    """Hold the speed and the stalls of one node's ingest."""

    batch_records: int = 20
    pause_seconds: float = 0.02
    stalled: bool = False
    stalled_partitions: set[int] = field(default_factory=set)


def host_of(ordinal: int) -> str:
    return f"node{ordinal}"


def address_of(ordinal: int) -> str:
    return f"http://{host_of(ordinal)}:8080"


class Machine:
    """Simulate a machine; its directory outlives its process."""

    def __init__(self, directory: Path, ordinal: int, partitioner: str, view: View | None = None) -> None:
        self.ordinal = ordinal
        self.host = host_of(ordinal)
        self.directory = directory / self.host
        self.feed = Feed()
        self.disk_used_percent = 10.0
        self.disk_refuses = False
        """The disk refuses all writes."""
        self.ingest: Ingest | None = None
        self.process: Process | None = None
        self.bootstrap: Placement | None = None
        """The placement of its first start, which becomes much older than the present one."""
        self.node: Node | None = None
        """None until its process has opened it."""
        self.view = view or View(0, "latest")
        self._partitioner = partitioner
        self.directory.mkdir()
        (self.directory / "token").write_text(TOKEN)

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def up(self) -> bool:
        return self.process is not None

    def wipe(self) -> None:
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def settings(self) -> NodeSettings:
        assert self.bootstrap is not None
        placement = self.directory / "bootstrap.json"
        placement.write_text(self.bootstrap.to_json())
        spec: dict[str, Any] = {
            "kafka": {"bootstrapServers": "kafka:9092"},
            "topic": SOURCE_TOPIC,
            "partitioner": self._partitioner,
            "onDataLoss": "Rebuild",
            **self.view.spec,
        }
        spec_path = self.directory / "spec.json"
        spec_path.write_text(json.dumps(spec))
        return NodeSettings(
            name=self.host,
            ordinal=self.ordinal,
            application_id=APPLICATION_ID,
            spec_path=str(spec_path),
            bootstrap_servers="kafka:9092",
            advertised_url=address_of(self.ordinal),
            data_dir=str(self.data_dir),
            run_dir=str(self.directory / "run"),
            placement_path=str(placement),
            internal_token_path=str(self.directory / "token"),
            block_cache_mb=1,
            write_buffer_mb=4,
            group_key_format="string" if self.view.rekeyed else "",
        )


def background_of(node: Node) -> tuple[Background, ...]:
    """Return the background parts of a simulated node."""
    sweeps = node.windows or node.entries or node.spec.changes or node.spec.history
    sweeper = (node.sweeper,) if sweeps else ()
    gaps, watchdog = node._gaps, node.watchdog
    return (node.peers, node.disk_guard, node.end_offsets, gaps, watchdog, node.checkpoints, *sweeper)


async def run_node(machine: Machine, settings: NodeSettings, topic: Topic, seed: random.Random) -> Any:
    """Start a node like `python -m queryable_app.serve`, and return the factory of its HTTP protocol."""
    node = Node.open(settings)
    ingest = Ingest(node, machine.feed, topic, machine.view, seed)
    machine.ingest = ingest
    node.assigned_replicas._changed = ingest.announce
    node.watchdog.restart = ingest.announce
    node.disk_guard._used = lambda directory: machine.disk_used_percent
    node.hydration.records_min = _RECORDS_MIN
    node.peers.hedges = HedgeBudget(HEDGE_SHARE, HEDGE_BURST)
    node.sweeper._pass_seconds = _SWEEP_SECONDS
    config = server_config(node, create_app(node))
    config.load()
    machine.node = node
    first, later = background_of(node)[:2], background_of(node)[2:]
    parts: list[Background | AssignedReplicas] = [*first, node.assigned_replicas, *later]
    for part in parts:
        await part.start()
    node._measuring = asyncio.create_task(supervise("Node.measure", node._measure))
    ingest.announce()
    state, loop = ServerState(), asyncio.get_running_loop()
    return lambda: config.http_protocol_class(config=config, server_state=state, app_state={}, _loop=loop)  # type: ignore[call-arg]


class Ingest:
    """Replace the control socket, Spark and the row socket: one query over all wanted partitions.

    It runs one generation at a time, and slices of an older one are refused.
    """

    def __init__(self, node: Node, feed: Feed, topic: Topic, view: View, seed: random.Random) -> None:
        self._node, self._feed, self._topic, self._view, self._random = node, feed, topic, view, seed
        self._announcing: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None
        self._streams: list[asyncio.Task[None]] = []

    def announce(self) -> None:
        if self._announcing is None:
            self._announcing = asyncio.get_running_loop().call_later(_SETTLE_SECONDS, self._restart)

    def _restart(self) -> None:
        self._announcing = None
        if self._starting is not None:
            self._starting.cancel()
        self._starting = asyncio.create_task(self._start())

    def lose_task(self, choice: int) -> None:
        """End one of the query's tasks silently."""
        if self._streams:
            self._streams[choice % len(self._streams)].cancel()

    @property
    def whole(self) -> bool:
        """Tell whether all tasks of the query run. A lost task goes unnoticed until a record arrives."""
        return not any(stream.done() for stream in self._streams)

    async def _start(self) -> None:
        self._node.ingest_status.enter("starting")
        await asyncio.sleep(self._random.uniform(*_START_SECONDS))
        for stream in self._streams:
            stream.cancel()
        replicas = self._node.replicas
        replicas.note_topic_partitions(self._topic.partitions)
        self._streams = []
        for partition in replicas.partitions_to_ingest():
            replica = replicas.by_partition[partition]
            if replica.writable:
                check_topic(replica, self._topic.observed(_TOPIC_ID), True, self._node.spec.on_data_loss)
            if not replica.writable:
                continue
            replica.accepts_slices = True
            begin = max(self._topic.starts[partition], replica.position)
            self._streams.append(asyncio.create_task(self._stream(partition, begin)))
        self._node.ingest_status.enter("streaming")

    async def _stream(self, partition: int, offset: int) -> None:
        feed, log = self._feed, self._topic.records[partition]
        while True:
            await asyncio.sleep(feed.pause_seconds * self._random.uniform(0.5, 1.5))
            if feed.stalled or partition in feed.stalled_partitions or self._topic.away:
                continue
            if offset < self._topic.starts[partition]:  # its records are gone, so Spark ends the query
                self.announce()
                continue
            records: list[LogRecord] = []
            while offset < len(log) and len(records) < feed.batch_records:
                record = log[offset]
                if record is not None:
                    records.append(record)
                offset += 1
            if records:
                self._node.slices.apply(_slice(self._view, records, self._topic.partitions))


def _slice(view: View, records: list[LogRecord], partitions: int) -> bytes:
    rows = [view.slice_row(record) for record in records]
    first, last = records[0], records[-1]
    keys = [record.key for record in records if record.key is not None]
    header = SliceHeader(
        first.partition,
        first.offset,
        last.offset,
        last.timestamp_ms,
        len(rows),
        len(records) - len(keys),
        0,
        sum(row.kind == DROPPED for row in rows),
        *count_mismatches(keys, first.partition, partitions),
    )
    return encode_slice(header, rows)[4:]
