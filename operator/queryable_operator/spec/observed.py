"""Describe what the operator observed of one resource at one moment: the whole input of `plan`, as frozen values.

Live objects are plain mappings from the API server; everything else has a type. Times are seconds since 1970 by the operator's
clock, except times inside live objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from queryable_app.placement.assignment import Placement
from queryable_app.placement.controller import NodeObservation
from queryable_app.wire.ingest_failures import IngestFailure
from queryable_operator.spec.certificates import NodeCertificate

Manifest = Mapping[str, Any]
"""A Kubernetes object."""


def is_owned(live: Manifest, uid: str) -> bool:
    """Return whether an object has the resource with this uid as an owner."""
    return any(owner.get("uid") == uid for owner in live["metadata"].get("ownerReferences") or ())


@dataclass(frozen=True, slots=True)
class Ref:
    """Identify an object in the resource's namespace."""

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
    """Report that the Secret is missing or a setting is invalid. `reason` never contains a value."""

    reason: str


TopicObservation = TopicFound | TopicMissing | KafkaUnreachable | KafkaSettingsInvalid


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Describe what a node reported last, at `seen.at`."""

    seen: NodeObservation
    ready: bool
    """Whether every replica that the node serves is complete."""

    read: Mapping[str, Any]
    """The read settings that the node uses."""

    replicas: int
    complete: int
    lag_records: int
    """Summed over the node's replicas. -1: unknown."""

    records_per_second: float
    remaining_seconds: float | None
    topic_partitions: int | None
    partitioner: str
    mismatches: int
    """Rows in another partition than the declared partitioner's."""

    disk_paused: bool
    failed: Mapping[int, str] = field(default_factory=dict)
    """By partition: why its replica stopped."""

    ingest_error: str | None = None
    failure: IngestFailure | None = None
    """Why ingest failed, if waiting cannot fix it."""

    rekey_error: str | None = None
    """Why the rekey job cannot continue, as it reported to the node. It keeps trying."""

    placement: Placement | None = None
    """The placement that the node follows. Requested only if the revision's ConfigMap is unreadable or has another epoch, since
    a ConfigMap that was deleted or edited is recovered from what nodes follow."""


@dataclass(frozen=True, slots=True)
class Host:
    """Describe a Kubernetes node."""

    ready: bool
    schedulable: bool
    zone: str | None


@dataclass(frozen=True, slots=True)
class Observed:
    now: float
    resource: Manifest
    """The QueryableTopic itself, with its status."""

    children: Mapping[Ref, Manifest]
    """Objects with this resource's owner reference, and the pods and volume claims of its StatefulSets."""

    name_conflicts: frozenset[Ref] = frozenset()
    """Names of our children that other owners' objects use."""

    hosts: Mapping[str, Host] | None = None
    """By name. None: the operator may not read Kubernetes nodes."""

    topic: TopicObservation | None = None
    """None: not observed yet."""

    kafka_secret_digest: str = ""
    """Digest of the contents of `spec.kafka.secretRef`. Empty without a Secret."""

    node_certificate: NodeCertificate | None = None
    """The certificate that the nodes show each other. None: no revision needs one, or it is missing."""

    secret_problem: str | None = None
    """Why nodes cannot use a Secret that `spec.tls` or `spec.auth` names. It never contains a value."""

    node_statuses: Mapping[int, Mapping[int, NodeStatus]] = field(default_factory=dict)
    """By revision and ordinal."""

    endpoints: frozenset[str] = frozenset()
    """Pods that the view's Service sends requests to."""

    topic_deletions: Mapping[str, str | None] = field(default_factory=dict)
    """Why the last deletion of each internal topic failed, by `TopicDeletion.key`; None if it has been deleted."""

    kafka_cleaned: bool = False
    """During deletion: whether nothing of the resource is left in Kafka."""

    kafka_retained: tuple[str, ...] = ()
    """During deletion: what stays in Kafka, since a view in another cluster may own it."""

    kafka_cleanup_error: str | None = None
    """During deletion: why the last Kafka cleanup failed."""
