"""Define the actions that `plan` decides, in the order of their execution. Every action may be repeated without harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from queryable_app.placement.assignment import Placement
from queryable_operator.spec.certificates import CertificateStep
from queryable_operator.spec.observed import Manifest, Ref


@dataclass(frozen=True, slots=True)
class NodeUpdate:
    """Send a node what it must follow. None: it follows that already."""

    revision: int
    ordinal: int
    placement: Placement | None = None
    read: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """Delete the internal topic of a revision. Its name contains the resource's uid."""

    bootstrap_servers: str
    """Those of the revision; the spec may name another Kafka by now."""

    topic: str
    config_map: str = ""
    """The uid of the revision's ConfigMap. A resource whose status was lost may use the number of a revision again."""

    before_start: bool = False
    """Whether the revision has not started, so that the topic is that of an earlier revision with its number."""

    @property
    def key(self) -> str:
        """Return by what the operator remembers the result."""
        return f"{self.topic} {self.config_map} {'before start' if self.before_start else 'after end'}"


@dataclass(frozen=True, slots=True)
class CertificateWork:
    step: CertificateStep
    hosts: tuple[str, ...]
    """The names in a new certificate."""


@dataclass(frozen=True, slots=True)
class Event:
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    apply: tuple[Manifest, ...] = ()
    """Desired objects. The executor skips those that need no change."""

    expect_unchanged: frozenset[Ref] = frozenset()
    """The objects that may only replace the observed version: the ConfigMap with the placement."""

    token_secrets: tuple[Ref, ...] = ()
    """Token Secrets that must exist. The executor generates their contents once."""

    certificate: CertificateWork | None = None
    """What the certificate needs that the nodes show each other. The executor generates its contents."""

    node_updates: tuple[NodeUpdate, ...] = ()
    evict: tuple[str, ...] = ()
    """Pods to evict; the eviction API respects PodDisruptionBudgets. Evictions and deletions have the observed uid as a
    precondition, so they never hit a newer object with the same name."""

    delete: tuple[Ref, ...] = ()
    force_delete: tuple[Ref, ...] = ()
    """Pods whose host is lost, so that nothing confirms their end."""

    delete_topics: tuple[TopicDeletion, ...] = ()
    clean_kafka: bool = False
    status: Mapping[str, Any] | None = None
    """The whole status. None: it stays as it is."""

    events: tuple[Event, ...] = ()
    remove_finalizer: bool = False
    """Remove the finalizer: nothing is left to do for a deleted resource."""

    requeue_seconds: float = 10.0
