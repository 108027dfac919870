"""Everything a running node has, in one place.

Strategy: `Node.open` needs nothing but a directory: it opens the stores and can answer reads from them. `start` begins
what talks to others, ingest and Kafka, and returns at once whether they are there or not; `stop` ends it all and closes
the stores cleanly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from queryable_app.config.kafka_settings import kafka_connection
from queryable_app.config.topic_spec import Read, TopicSpec
from queryable_app.contract import (
    CHECKPOINTS_DIRECTORY,
    CONTRADICTIONS_FILE,
    CONTROL_SOCKET,
    PLACEMENT_FILE,
    ROW_SOCKET,
    NodeSettings,
)
from queryable_app.placement.assignment import Placement, refusal
from queryable_app.platform.clock import moment_ms
from queryable_app.platform.descriptors import descriptor_limit
from queryable_app.platform.kafka_clients import client_arguments
from queryable_app.platform.log import event
from queryable_app.platform.mounted_files import read_spec
from queryable_app.policy.descriptor_plan import DescriptorPlan, plan_descriptors
from queryable_app.serve.base.admission import Turns
from queryable_app.serve.base.background import supervise
from queryable_app.serve.base.byte_budget import ByteBudget
from queryable_app.serve.base.counters import Counters
from queryable_app.serve.feed.control_socket import ControlSocket, IngestStatus
from queryable_app.serve.feed.dead_letters import DeadLetterTopic
from queryable_app.serve.feed.row_socket import RowSocket
from queryable_app.serve.feed.slices import Slices
from queryable_app.serve.feed.watchdog import Watchdog
from queryable_app.serve.kafka.end_offsets import LogEnd
from queryable_app.serve.kafka.gaps import Gaps
from queryable_app.serve.kafka.group_positions import GroupPositions
from queryable_app.serve.kafka.producer import Producer
from queryable_app.serve.peers.peers import Peers
from queryable_app.serve.replication.assigned_replicas import Holdings, role_of, store_path
from queryable_app.serve.replication.checkpoints import Checkpoints
from queryable_app.serve.replication.hydration import PeerHydration
from queryable_app.serve.store.disk_guard import DiskGuard
from queryable_app.serve.store.partitioner_mismatches import Contradictions
from queryable_app.serve.store.replicas import Copies, Copy
from queryable_app.serve.store.store import SharedMemory, Store, StoreError, StoreUnavailable
from queryable_app.serve.store.sweeper import Sweeper
from queryable_app.wire.disk_format import Identity
from queryable_app.wire.serde import key_codec

_MEASURE_SECONDS: Final = 0.5


class Node:
    """Build it with `Node.open`."""

    def __init__(
        self,
        settings: NodeSettings,
        spec: TopicSpec,
        copies: Copies,
        memory: SharedMemory,
        descriptors: DescriptorPlan,
    ) -> None:
        self.settings = settings
        self.spec = spec
        self.read = spec.read
        """What a read gets that asks for nothing, and what else clients may do: of the spec, until `follow_read`."""
        self.read_changed: list[Callable[[], None]] = []
        """To be called when `read` has changed."""
        self.codec = key_codec(spec.key_format)
        self.copies = copies
        self.memory = memory
        self.ingest_status = IngestStatus(since_ms=moment_ms())
        self.started_at = time.time()
        self._began = time.monotonic()
        self.last_read_at = -1.0
        """Monotonic time of the last answered read, kept by whoever answers. Ingest then leaves room for reads."""
        self.counters = Counters()
        self.turns = Turns()
        self.answers = ByteBudget(settings.untaken_bytes_max)
        """What large answers take, from their first row to their last byte."""
        self.bodies = ByteBudget(settings.bodies_bytes_max)
        """What the bodies of requests take."""
        self.descriptors = descriptors
        self.peers = Peers(settings, copies, descriptors.node_connections)
        application = settings.application_id
        self.checkpoints = Checkpoints(
            Path(settings.data_dir, application, CHECKPOINTS_DIRECTORY),
            application,
            copies,
            settings.peer_copy_mb_per_second_max,
        )
        self.hydration = PeerHydration(self.peers, application, spec.topic)

        kafka = client_arguments(kafka_connection(settings.bootstrap_servers, spec.kafka_config))
        self.producer = Producer(kafka, spec.topic)
        self.dead_letters = DeadLetterTopic(kafka, spec.topic, settings.application_id)
        self.log_end = LogEnd(kafka, spec.topic, copies, settings.log_end_interval_ms)
        self.slices = Slices(copies, self.codec, spec.on_bad_record, self.dead_letters)
        run_dir = Path(settings.run_dir)
        self._rows = RowSocket(run_dir / ROW_SOCKET, self.slices, lambda: self.last_read_at)
        self._control = ControlSocket(
            run_dir / CONTROL_SOCKET,
            Path(settings.data_dir),
            spec.topic,
            spec.on_data_loss,
            copies,
            self._rows,
            self.ingest_status,
            settings.topic_wait_seconds,
        )
        self.holdings = Holdings(
            settings, spec.topic, copies, memory, self.peers, self.hydration, self._control.announce
        )
        self.disk_guard = DiskGuard(Path(settings.data_dir), spec.high_water_percent, self.holdings.pause)
        self._gaps = Gaps(kafka, spec.topic, copies)
        self.watchdog = Watchdog(
            copies, lambda: self.ingest_status.state, self.dead_letters.waiting, self._control.restart
        )
        self._group_positions = GroupPositions(kafka, spec.topic, settings.application_id, copies)
        self._sweeper = Sweeper(copies, spec.ttl_ms)
        self._measuring: asyncio.Task[None] | None = None

    @staticmethod
    def open(settings: NodeSettings) -> Node:
        """Open the stores of the partitions that the placement gives this node. One that cannot be opened is failed; the
        others serve."""
        spec = read_spec(settings)
        placement = load_placement(settings)
        run_dir = Path(settings.run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # in a pod it is a volume of the pod's own, which belongs to root
            run_dir.chmod(0o700)  # the sockets are nobody else's business on this machine
        held = placement.held_by(settings.ordinal)
        descriptors = _plan_descriptors(settings, placement, len(held))
        memory = SharedMemory(
            settings.block_cache_mb, settings.write_buffer_mb, len(held), descriptors.store_files
        )
        copies = [_open_copy(settings, spec, placement, partition, memory) for partition in held]
        known = Contradictions(Path(settings.data_dir, settings.application_id, CONTRADICTIONS_FILE))
        return Node(settings, spec, Copies(placement, spec.partitioner, copies, known), memory, descriptors)

    @property
    def placement(self) -> Placement:
        return self.copies.placement

    @property
    def connections_max(self) -> int:
        """Client connections that may be open."""
        return self.descriptors.connections

    @property
    def draining(self) -> bool:
        """The node was asked to end. It still answers, and tells whoever asks to go elsewhere."""
        return self.peers.draining

    def drain(self) -> None:
        self.peers.draining = True

    def follow_read(self, read: Read) -> None:
        self.read = read
        for changed in self.read_changed:
            changed()

    async def start(self) -> None:
        """Begin to listen to ingest and to ask Kafka. Neither needs to be there."""
        for part in (
            self._rows,
            self.peers,
            self.disk_guard,
            self.holdings,
            self._control,
            self.log_end,
            self._gaps,
            self.watchdog,
            self._group_positions,
            self._sweeper,
            self.checkpoints,
        ):
            await part.start()
        self._measuring = asyncio.create_task(supervise("Node.measure", self._measure))

    async def stop(self) -> None:
        """End what `start` began, and close the stores."""
        for part in (
            self.holdings,
            self.disk_guard,
            self.peers,
            self.checkpoints,
            self._control,
            self._rows,
            self._sweeper,
            self._group_positions,
            self.watchdog,
            self._gaps,
            self.log_end,
            self.producer,
            self.dead_letters,
        ):
            await part.stop()
        if self._measuring is not None:
            self._measuring.cancel()
        self.copies.close()

    def _share_descriptors(self) -> None:
        """Replicas that come, and nodes, take descriptors from clients; they get them back when those go."""
        stores = len(self.copies.by_partition) + len(self.copies.leaving)
        now = _plan_descriptors(self.settings, self.placement, stores)
        if now != self.descriptors:
            self.descriptors = now
            say_descriptors(self.settings, now)

    async def _measure(self) -> None:
        ready = False
        while True:
            self.copies.measure()
            self._share_descriptors()
            if self.copies.ready and not ready:
                ready = True
                self._control.tell_hydrated()
                event(
                    "ready",
                    partitions=len(self.copies.by_partition),
                    seconds=round(time.monotonic() - self._began, 3),
                )
            await asyncio.sleep(_MEASURE_SECONDS)


def _plan_descriptors(settings: NodeSettings, placement: Placement, stores: int) -> DescriptorPlan:
    return plan_descriptors(
        descriptor_limit(),
        partitions=placement.partitions,
        stores=stores,
        other_nodes=len(placement.addresses) - 1,
        connections_max=settings.connections_max,
    )


def say_descriptors(settings: NodeSettings, plan: DescriptorPlan) -> None:
    """Log a plan that gives clients fewer connections than the settings."""
    if plan.connections < settings.connections_max or not plan.fits:
        event(
            "few-descriptors",
            limit=plan.limit,
            reserved=plan.reserved,
            connections=plan.connections,
            connections_max=settings.connections_max,
            advice=f"allow the process {plan.reserved + settings.connections_max} open files (ulimit -n)",
        )


def load_placement(settings: NodeSettings) -> Placement:
    """The newer of the one on the node's disk and the one it was started with."""
    first = Placement.from_json(Path(settings.placement_path).read_text())
    kept = Path(settings.data_dir, PLACEMENT_FILE)
    try:
        latest = Placement.from_json(kept.read_text())
    except FileNotFoundError:
        return first
    except (ValueError, KeyError, TypeError) as error:  # the machine went down before it was on disk
        event("placement-unreadable", path=kept, reason=repr(error), instead=first.epoch)
        return first
    return latest if refusal(latest, first) is None and latest.epoch > first.epoch else first


def _open_copy(
    settings: NodeSettings, spec: TopicSpec, placement: Placement, partition: int, memory: SharedMemory
) -> Copy:
    role = role_of(placement, partition, settings.ordinal)
    identity = Identity(settings.application_id, spec.topic, partition)
    path = store_path(Path(settings.data_dir), settings.application_id, partition)
    try:
        return Copy(partition, role, Store.open(path, identity, memory))
    except (StoreUnavailable, OSError) as error:
        copy = Copy(partition, role, None)
        copy.absent = f"cannot be opened at present: {error}"
        copy.suspend(str(error))
        return copy
    except StoreError as error:
        event("failed", partition=partition, reason=str(error))
        return Copy(partition, role, None, failed=str(error))
