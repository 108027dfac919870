"""Simulate query nodes: disks with replicas, and processes that follow placements and hydrate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from queryable_app.placement.assignment import Placement, refusal
from queryable_app.placement.controller import NodeObservation
from queryable_app.wire.ingest_failures import IngestFailure
from queryable_operator.spec.observed import NodeStatus
from queryable_operator.spec.rekeying import is_rekeyed

NEVER = "SELECT never"  # a view with this SQL never hydrates
REFUSED = "SELECT nope"  # nor does one with this SQL, and its nodes report the reason
SENTENCE = "spec.transform.sql: `nope` cannot be resolved; line 1 pos 7"
REFUSED_SETTINGS = {
    "fetch.max.bytes": "many"
}  # only Kafka's Java client refuses these; no new record is read


NodeKey = tuple[str, int]
"""The uid of a pod or of its volume claim, and a port: that of the node in the pod."""


@dataclass
class Disk:
    """Store a node's replicas, which outlive its process. A replica's number is its progress: 1.0 is complete."""

    uid: str
    host: str
    workers: int = 1
    """The workers among which the pod's volume was divided at first."""

    replicas: dict[int, float] = field(default_factory=dict)
    placement: Placement | None = None
    lost_at: float | None = None


@dataclass
class Node:
    """Simulate one process that serves: of a pod, or one of a pod's workers."""

    pod: str
    uid: str
    revision: int
    ordinal: int
    host: str
    disk: Disk
    spec: Mapping[str, Any]
    read: Mapping[str, Any]
    placement: Placement
    started: float
    port: int
    answers: bool = True
    full: bool = False
    read_settings_sent: bool = False

    @staticmethod
    def start(
        pod: str,
        uid: str,
        revision: int,
        ordinal: int,
        host: str,
        disk: Disk,
        config_map: Any,
        now: float,
        port: int,
    ) -> Node:
        spec = json.loads(config_map["data"]["spec.json"])
        mounted = Placement.from_json(config_map["data"]["placement.json"])
        there = disk.placement
        newest = there if there and there.epoch > mounted.epoch else mounted
        node = Node(pod, uid, revision, ordinal, host, disk, spec, spec["read"], newest, now, port)
        node._assign_replicas()
        return node

    @property
    def key(self) -> NodeKey:
        return self.uid, self.port

    @property
    def ready(self) -> bool:
        return all(self.disk.replicas[p] >= 1 for p in self._serves())

    def follow(self, placement: Placement) -> set[int]:
        """Follow a placement, and return the complete replicas that the node abandons."""
        if placement.epoch <= self.placement.epoch or refusal(placement, self.placement):
            return set()
        self.placement = placement
        return self._assign_replicas()

    def hydrate(self, speed: float) -> None:
        if self._sql == NEVER or self._failure or self.full:
            return
        for partition, there in self.disk.replicas.items():
            self.disk.replicas[partition] = min(1.0, there + speed)

    def report(
        self, now: float, kafka_is_there: bool, with_placement: bool, lag: int, partitions: int | None
    ) -> NodeStatus:
        complete = {p for p, there in self.disk.replicas.items() if there >= 1}
        caught_up = frozenset(complete if kafka_is_there and not self.full and not self._failure else ())
        return NodeStatus(
            seen=NodeObservation(now, self.placement.epoch, caught_up),
            ready=self.ready,
            read=dict(self.read),
            replicas=len(self.disk.replicas),
            complete=len(complete),
            lag_records=lag if len(complete) == len(self.disk.replicas) else 1000,
            records_per_second=100.0,
            remaining_seconds=None if len(complete) == len(self.disk.replicas) else 30.0,
            topic_partitions=partitions,
            partitioner="murmur2",
            mismatches=0,
            disk_paused=self.full,
            placement=self.placement if with_placement else None,
            ingest_error=self._failure.message if self._failure else None,
            failure=self._failure,
        )

    @property
    def is_rekeyed(self) -> bool:
        return is_rekeyed(self.spec)

    @property
    def _failure(self) -> IngestFailure | None:
        if self._sql == REFUSED and not self.is_rekeyed:  # otherwise only the rekey job reads the SQL
            return IngestFailure("TransformRefused", SENTENCE)
        if self.spec["kafka"].get("config") == REFUSED_SETTINGS:
            return IngestFailure("KafkaSettingsRefused", "spec.kafka: fetch.max.bytes")
        return None

    @property
    def _sql(self) -> str:
        return str(self.spec.get("transform", {}).get("sql", ""))

    def _serves(self) -> set[int]:
        return {p for p, serving in enumerate(self.placement.serving) if self.ordinal in serving}

    def _assign_replicas(self) -> set[int]:
        assigned = set(self.placement.assigned_to(self.ordinal))
        abandoned = {p for p, there in self.disk.replicas.items() if there >= 1 and p not in assigned}
        self.disk.replicas = {p: self.disk.replicas.get(p, 0.0) for p in sorted(assigned)}
        self.disk.placement = self.placement
        return abandoned


def silent(node_status: NodeStatus) -> NodeStatus:
    return replace(node_status, seen=replace(node_status.seen, caught_up=frozenset()), placement=None)
