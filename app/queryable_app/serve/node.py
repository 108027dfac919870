"""Hold the parts of a running node, and start and stop them.

Strategy: `Node.open` needs only a directory. It opens the stores and can answer reads from them. `start` connects to ingest,
to Kafka and to the other nodes, and returns at once whether they are available or not. `stop` ends all of it and closes the
stores cleanly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from queryable_app.aggregates.entry_retention import EntryRetention
from queryable_app.aggregates.merging import state_merger
from queryable_app.aggregates.rendering import value_renderer
from queryable_app.aggregates.session_states import session_merger
from queryable_app.aggregates.windows import Windows
from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.config.kafka_settings import kafka_connection
from queryable_app.config.topic_spec import Read, TopicSpec
from queryable_app.contract import (
    CHECKPOINTS_DIRECTORY,
    CONTROL_SOCKET,
    PARTITIONER_MISMATCHES_FILE,
    PLACEMENT_FILE,
    ROW_SOCKET,
    NodeSettings,
    SettingsError,
)
from queryable_app.placement.assignment import Placement, refusal
from queryable_app.platform.clock import monotonic_ms
from queryable_app.platform.descriptors import descriptor_limit
from queryable_app.platform.kafka_clients import client_arguments
from queryable_app.platform.log import event
from queryable_app.platform.mounted_files import read_node_spec
from queryable_app.policy.descriptor_plan import DescriptorPlan, plan_descriptors
from queryable_app.policy.freshness import DEADLINE_MS_MAX
from queryable_app.policy.write_rates import WriteRates
from queryable_app.serve.auth.audit import Audit
from queryable_app.serve.auth.opening import open_authenticator
from queryable_app.serve.base.admission import ReadAdmission
from queryable_app.serve.base.background import supervise
from queryable_app.serve.base.byte_budget import ByteBudget
from queryable_app.serve.base.combining import merged_row, newer_row
from queryable_app.serve.base.counters import Counters
from queryable_app.serve.base.node_tls import node_tls
from queryable_app.serve.feed.control_socket import ControlSocket
from queryable_app.serve.feed.dead_letters import DeadLetterTopic
from queryable_app.serve.feed.entry_rows import EntryRows
from queryable_app.serve.feed.ingest_status import IngestStatus
from queryable_app.serve.feed.keyed_rows import KeyedRows
from queryable_app.serve.feed.logged_changes import CHANGES_RETENTION_MS, LoggedChanges
from queryable_app.serve.feed.rekey_job_status import RekeyJobStatus
from queryable_app.serve.feed.rekeyed_rows import RekeyedRows
from queryable_app.serve.feed.row_socket import RowSocket
from queryable_app.serve.feed.slices import LatestRows, Slices, View
from queryable_app.serve.feed.watchdog import Watchdog
from queryable_app.serve.feed.window_slices import aggregate_view
from queryable_app.serve.kafka.end_offsets import EndOffsets, SourceEndOffsets
from queryable_app.serve.kafka.gaps import OffsetGaps, PendingRecords
from queryable_app.serve.kafka.group_offsets import GroupOffsets
from queryable_app.serve.kafka.producer import Producer
from queryable_app.serve.kafka.remembered_writes import RememberedWrites
from queryable_app.serve.peers.forwarded_reads import ForwardedReads
from queryable_app.serve.peers.peers import Peers
from queryable_app.serve.replication.assigned_replicas import AssignedReplicas
from queryable_app.serve.replication.checkpoints import Checkpoints
from queryable_app.serve.replication.hydration import PeerHydration
from queryable_app.serve.replication.replica_builder import role_of, store_path
from queryable_app.serve.store.disk_guard import DiskGuard
from queryable_app.serve.store.partitioner_in_use import PartitionerInUse
from queryable_app.serve.store.rekeyed_replica import new_replica
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.replicas import Replicas
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.serve.store.store_errors import StoreError, StoreUnavailable
from queryable_app.serve.store.sweeper import Sweeper
from queryable_app.wire.avro_forms import avro_forms, record_encoding
from queryable_app.wire.disk_format import Identity
from queryable_app.wire.encoded_keys import key_codec_of
from queryable_app.wire.index_entries import RowIndexes

_MEASURE_SECONDS: Final = 0.5


class Node:
    """Hold the parts of one node. `Node.open` creates it."""

    def __init__(
        self,
        settings: NodeSettings,
        spec: TopicSpec,
        replicas: Replicas,
        memory: SharedMemory,
        descriptors: DescriptorPlan,
    ) -> None:
        self.settings = settings
        self.spec = spec
        self.read_settings = spec.read  # until `apply_read_settings`
        self.listeners: list[
            Callable[[], None]
        ] = []  # called when the read settings change, and when the node drains
        self.codec = key_codec_of(spec.key_format, spec.key_schema)
        self.render = value_renderer(spec)
        self.avro_forms = avro_forms(spec)
        """By media type: what makes a value's other representations of its JSON."""
        self.encode_record = record_encoding(spec)
        self.combine = newer_row if spec.aggregate is None else merged_row(_row_merger(spec.aggregate))
        """Makes one row of the two that a key has in two partitions."""
        window = None if spec.aggregate is None else spec.aggregate.window
        self.windows = None if window is None else Windows(window)
        self.entries = None if spec.entries is None else EntryRetention(spec.entries)
        self.has_single_rows = self.windows is None and self.entries is None
        """Whether a key has one row, which is its value."""
        self.replicas = replicas
        self.memory = memory
        self.ingest_status = IngestStatus(since_ms=monotonic_ms())
        self.started_at = time.time()
        self._opened_at = time.monotonic()
        self.last_read_ms = -1  # of `platform/clock.py`; ingest then leaves room for reads
        self.counters = Counters()
        self.read_admission = ReadAdmission()
        self.answer_budget = ByteBudget(settings.untaken_bytes_max)
        self.body_budget = ByteBudget(settings.bodies_bytes_max)
        self.parsing_large_body = asyncio.Lock()
        self.descriptors = descriptors
        self._create_kafka_parts()
        self._create_peer_parts()
        self._create_ingest_parts()
        self.disk_guard = DiskGuard(
            Path(settings.data_dir), spec.high_water_percent, self.assigned_replicas.pause
        )
        retention_ms = None if window is None else window.retention_ms
        if spec.entries is not None:
            retention_ms = spec.entries.retention_ms
        changes_ms = CHANGES_RETENTION_MS if spec.changes else None
        if spec.history is not None:
            retention_ms = spec.history.retention_ms
        event_time = self.windows or self.entries
        self.sweeper = Sweeper(replicas, spec.ttl_ms or retention_ms, event_time, changes_ms)
        self.audit = Audit(spec.auth is not None and spec.auth.audit_plain_keys)
        self.authenticator = open_authenticator(settings, spec.auth, self.codec.format)
        """None: every client that reaches the port may do everything."""
        self._measuring: asyncio.Task[None] | None = None

    def _create_kafka_parts(self) -> None:
        settings, spec, replicas = self.settings, self.spec, self.replicas
        kafka = client_arguments(kafka_connection(settings.bootstrap_servers, spec.kafka_config))
        self.producer = Producer(kafka, spec.topic)
        self.remembered_writes = RememberedWrites(lambda *record: self.producer.send(*record))
        self.write_rates = WriteRates()
        self.dead_letters = DeadLetterTopic(kafka, spec.topic, settings.application_id)
        ends = SourceEndOffsets if spec.source_topic else EndOffsets
        self.end_offsets = ends(
            kafka, spec.source_topic or spec.topic, replicas, settings.log_end_interval_ms
        )
        gaps = PendingRecords if spec.source_topic else OffsetGaps
        self._gaps = gaps(kafka, spec.topic, replicas)
        self._group_offsets = GroupOffsets(kafka, spec.topic, settings.application_id, replicas)

    def _create_peer_parts(self) -> None:
        settings, application = self.settings, self.settings.application_id
        self.tls = node_tls(settings, self.spec)
        self.peers = Peers(
            settings,
            self.replicas,
            self.descriptors.node_connections,
            None if self.tls is None else self.tls.to_node,
        )
        self.forwarded_reads = ForwardedReads(self.peers, self.note_read)
        self.checkpoints = Checkpoints(
            Path(settings.data_dir, application, CHECKPOINTS_DIRECTORY),
            application,
            self.replicas,
            settings.peer_copy_mb_per_second_max,
        )
        self.hydration = PeerHydration(
            self.peers, application, self.spec.topic, indexes=self.replicas.indexes
        )

    def _create_ingest_parts(self) -> None:
        settings, spec, replicas = self.settings, self.spec, self.replicas
        view: View | None = None
        if spec.aggregate is not None:
            view = aggregate_view(spec.aggregate, self.windows)
            if spec.source_topic:
                view = RekeyedRows(view, replicas.source_partitions, self.windows is not None)
        elif spec.source_topic:
            view = KeyedRows(replicas.source_partitions)
        elif self.entries is not None:
            view = EntryRows(self.entries)
        if spec.changes:
            view = LoggedChanges(view or LatestRows())
        self.slices = Slices(replicas, self.codec, spec.on_bad_record, self.dead_letters, view)
        run_dir = Path(settings.run_dir)
        self._rows = RowSocket(run_dir / ROW_SOCKET, self.slices, lambda: self.last_read_ms)
        self._control = ControlSocket(
            run_dir / CONTROL_SOCKET,
            Path(settings.data_dir),
            spec.topic,
            spec.on_data_loss,
            replicas,
            self._rows,
            self.ingest_status,
            settings.topic_wait_seconds,
        )
        self.rekey_job = RekeyJobStatus()
        self.assigned_replicas = AssignedReplicas(
            settings, spec.topic, replicas, self.memory, self.peers, self.hydration, self._control.announce
        )
        self.watchdog = Watchdog(
            replicas, lambda: self.ingest_status.state, self.dead_letters.waiting, self._control.restart
        )

    @staticmethod
    def open(settings: NodeSettings) -> Node:
        """Open the stores of this node's assigned partitions. A store that cannot be opened fails alone."""
        if not 1 <= settings.read_deadline_ms <= DEADLINE_MS_MAX:
            raise SettingsError(
                f"QT_READ_DEADLINE_MS must be from 1 to {DEADLINE_MS_MAX}, not {settings.read_deadline_ms}"
            )
        spec = read_node_spec(settings)
        placement = load_placement(settings)
        run_dir = Path(settings.run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # in a pod root owns the volume
            run_dir.chmod(0o700)  # other users of the machine may not reach the sockets
        assigned = placement.assigned_to(settings.ordinal)
        descriptors = _descriptor_plan(settings, placement, len(assigned))
        memory = SharedMemory(
            settings.block_cache_mb, settings.write_buffer_mb, len(assigned), descriptors.store_files
        )
        indexes = RowIndexes(spec.indexes, value_renderer(spec)) if spec.indexes else None
        replicas = [
            _open_replica(settings, spec, placement, partition, memory, indexes) for partition in assigned
        ]
        mismatches_path = Path(settings.data_dir, settings.application_id, PARTITIONER_MISMATCHES_FILE)
        partitioner = PartitionerInUse(spec.partitioner, placement.partitions, mismatches_path)
        sources = _source_partitions(spec, placement)
        held = Replicas(placement, replicas, partitioner, sources, indexes, spec.history)
        return Node(settings, spec, held, memory, descriptors)

    @property
    def placement(self) -> Placement:
        return self.replicas.placement

    @property
    def connections_max(self) -> int:
        """Return how many client connections may be open."""
        return self.descriptors.connections

    @property
    def draining(self) -> bool:
        """Return whether the node drains: it still answers, and sends clients to other nodes."""
        return self.peers.draining

    def note_read(self) -> None:
        """Remember the time of a read that is answered or forwarded: ingest leaves room for reads while there are some.

        A read that is refused is none of them: clients repeat it until the replica here is complete, so room for it would make
        all of them wait longer.
        """
        self.last_read_ms = monotonic_ms()

    def drain(self) -> None:
        self.peers.draining = True
        self._call_listeners()

    def apply_read_settings(self, read: Read) -> None:
        # The record key of a write would be another one than the group key of a read.
        self.read_settings = replace(read, ingest=False) if self.spec.source_topic else read
        self._call_listeners()

    def _call_listeners(self) -> None:
        for listener in self.listeners:
            listener()

    async def start(self) -> None:
        """Start every part. Neither ingest nor Kafka nor another node needs to be available."""
        for part in (
            self._rows,
            self.peers,
            self.disk_guard,
            self.assigned_replicas,
            self._control,
            self.end_offsets,
            self.sweeper,
            self.checkpoints,
            self._gaps,
            self.watchdog,
            self._group_offsets,
        ):
            await part.start()
        if self.authenticator is not None:
            await self.authenticator.source.start()
        if self.tls is not None:
            await self.tls.start()
        self._measuring = asyncio.create_task(supervise("Node.measure", self._measure))

    async def stop(self) -> None:
        """Stop every part, and close the stores."""
        for part in (
            self._gaps,
            self.watchdog,
            self._group_offsets,
            self.assigned_replicas,
            self.disk_guard,
            self.peers,
            self.checkpoints,
            self._control,
            self._rows,
            self.sweeper,
            self.end_offsets,
            self.remembered_writes,
            self.producer,
            self.dead_letters,
        ):
            await part.stop()
        if self.authenticator is not None:
            await self.authenticator.source.stop()
        if self.tls is not None:
            await self.tls.stop()
        if self._measuring is not None:
            self._measuring.cancel()
        self.replicas.close()

    def _update_descriptor_plan(self) -> None:
        """Divide the descriptors again between stores, other nodes and clients, as replicas and nodes come and go."""
        stores = len(self.replicas.by_partition) + len(self.replicas.removing)
        plan = _descriptor_plan(self.settings, self.placement, stores)
        if plan != self.descriptors:
            self.descriptors = plan
            log_descriptor_plan(self.settings, plan)

    async def _measure(self) -> None:
        ready = False
        while True:
            self.replicas.measure()
            self._update_descriptor_plan()
            if self.replicas.ready and not ready:
                ready = True
                self._control.send_hydrated()
                event(
                    "ready",
                    partitions=len(self.replicas.by_partition),
                    seconds=round(time.monotonic() - self._opened_at, 3),
                )
            await asyncio.sleep(_MEASURE_SECONDS)


def _row_merger(spec: AggregateSpec) -> Callable[[bytes, bytes], bytes]:
    has_sessions = spec.window is not None and spec.window.gap_ms > 0
    return session_merger(spec) if has_sessions else state_merger(spec)


def _descriptor_plan(settings: NodeSettings, placement: Placement, stores: int) -> DescriptorPlan:
    return plan_descriptors(
        descriptor_limit(),
        partitions=placement.partitions,
        stores=stores,
        other_nodes=len(placement.addresses) - 1,
        connections_max=settings.connections_max,
        tls=bool(settings.tls_dir),
    )


def log_descriptor_plan(settings: NodeSettings, plan: DescriptorPlan) -> None:
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
    """Return the newer of the placement on the node's disk and the one that the node was started with."""
    initial = Placement.from_json(Path(settings.placement_path).read_text())
    stored_path = Path(settings.data_dir, PLACEMENT_FILE)
    try:
        stored = Placement.from_json(stored_path.read_text())
    except FileNotFoundError:
        return initial
    except (ValueError, KeyError, TypeError) as error:  # the machine failed before the file was on disk
        event("placement-unreadable", path=stored_path, reason=repr(error), instead=initial.epoch)
        return initial
    return stored if refusal(stored, initial) is None and stored.epoch > initial.epoch else initial


def _source_partitions(spec: TopicSpec, placement: Placement) -> int:
    """Return the partitions of the source of a rekeyed view, which are as many as those of its internal topic; 0 for others."""
    return placement.partitions if spec.source_topic else 0


def _open_replica(
    settings: NodeSettings,
    spec: TopicSpec,
    placement: Placement,
    partition: int,
    memory: SharedMemory,
    indexes: RowIndexes | None,
) -> Replica:
    role = role_of(placement, partition, settings.ordinal)
    identity = Identity(settings.application_id, spec.topic, partition)
    path = store_path(Path(settings.data_dir), settings.application_id, partition)
    sources = _source_partitions(spec, placement)
    try:
        store = Store.open(path, identity, memory, indexes, spec.history)
        return new_replica(partition, role, store, sources)
    except (StoreUnavailable, OSError) as error:
        replica = new_replica(partition, role, None, sources)
        replica.absent = f"cannot be opened at present: {error}"
        replica.suspend(str(error))
        return replica
    except StoreError as error:
        event("failed", partition=partition, reason=str(error))
        return new_replica(partition, role, None, sources, failed=str(error))
