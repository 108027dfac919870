"""What the operator has seen of one resource at one moment: the whole input of `plan`, as frozen values.

Live objects are plain mappings, as the API server gives them; what else there is to know has a type of its own. Times are
seconds since 1970 by the operator's clock, but for those that stand in live objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from queryable_app.placement.assignment import Placement
from queryable_app.placement.controller import NodeObservation
from queryable_app.wire.ingest_failures import IngestFailure

Manifest = Mapping[str, Any]
"""A Kubernetes object."""


@dataclass(frozen=True, slots=True)
class Ref:
    """An object of the resource's namespace."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class TopicFound:
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicMissing:
    pass


@dataclass(frozen=True, slots=True)
class KafkaUnreachable:
    reason: str


@dataclass(frozen=True, slots=True)
class KafkaSettingsInvalid:
    """The Secret is not there, or a setting can not be followed. Never holds a value."""

    reason: str


TopicObservation = TopicFound | TopicMissing | KafkaUnreachable | KafkaSettingsInvalid


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node last said of itself, at `seen.at`."""

    seen: NodeObservation
    ready: bool
    """Whether every copy that it serves is complete."""

    read: Mapping[str, Any]
    """The read settings that it follows."""

    copies: int
    complete: int
    lag_records: int
    """Over its copies; -1: not known."""

    records_per_second: float
    remaining_seconds: float | None
    topic_partitions: int | None
    partitioner: str
    mismatches: int
    """Rows that were not where the declared partitioner puts them."""

    disk_paused: bool
    failed: Mapping[int, str] = field(default_factory=dict)
    """By partition, why its copy does not go on."""

    ingest_failed: str | None = None
    failure: IngestFailure | None = None
    """Why its ingest has failed, if waiting cannot mend it."""

    placement: Placement | None = None
    """The placement that it follows. Asked for only when its revision's ConfigMap has none that can be read, or one with
    another epoch: a ConfigMap that somebody deleted or broke is made again from what nodes follow."""


@dataclass(frozen=True, slots=True)
class Host:
    """A Kubernetes node."""

    ready: bool
    schedulable: bool
    zone: str | None


@dataclass(frozen=True, slots=True)
class Observed:
    now: float
    resource: Manifest
    """The QueryableTopic itself, with its status."""

    children: Mapping[Ref, Manifest]
    """Objects that carry this resource's owner reference, and the pods and volume claims of its StatefulSets."""

    name_conflicts: frozenset[Ref] = frozenset()
    """Names of our children that objects of somebody else have."""

    hosts: Mapping[str, Host] | None = None
    """By name. None: the operator may not look at them."""

    topic: TopicObservation | None = None
    """None: not looked at yet."""

    kafka_secret_digest: str = ""
    """Of the contents of `spec.kafka.secretRef`; empty without one."""

    node_statuses: Mapping[int, Mapping[int, NodeStatus]] = field(default_factory=dict)
    """By revision and ordinal."""

    endpoints: frozenset[str] = frozenset()
    """Pods that the view's Service sends requests to."""

    kafka_cleaned: bool = False
    """While the resource is being deleted: whether nothing of it is left in Kafka."""

    kafka_retained: tuple[str, ...] = ()
    """While the resource is being deleted: what was left in Kafka, since a view of another cluster may own it."""

    kafka_cleanup_error: str | None = None
    """While the resource is being deleted: why Kafka could not be cleaned the last time."""
