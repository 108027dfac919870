"""What `plan` says is to be done, in the order in which it is done. Doing any part of it twice does no harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from queryable_app.placement.assignment import Placement
from queryable_operator.spec.observed import Manifest, Ref


@dataclass(frozen=True, slots=True)
class NodeUpdate:
    """A node is to follow this. None: that it follows already."""

    revision: int
    ordinal: int
    placement: Placement | None = None
    read: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Event:
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    apply: tuple[Manifest, ...] = ()
    """As they shall be; whoever applies them leaves alone what is so already."""

    expect_unchanged: frozenset[Ref] = frozenset()
    """Of those, the ones that may only be written over what was observed: the placement."""

    token_secrets: tuple[Ref, ...] = ()
    """Token Secrets that shall exist. Their contents are made once, at random, where they are made."""

    node_updates: tuple[NodeUpdate, ...] = ()
    evict: tuple[str, ...] = ()
    """Pods, by the eviction API, so that no PodDisruptionBudget is broken. Here and in what is deleted the very object that
    was observed is meant (its uid is a precondition), never one that has come under its name since."""

    delete: tuple[Ref, ...] = ()
    force_delete: tuple[Ref, ...] = ()
    """Pods whose host is gone, and nobody is left to say that they have ended."""

    clean_kafka: bool = False
    status: Mapping[str, Any] | None = None
    """The whole status. None: it stays as it is."""

    events: tuple[Event, ...] = ()
    remove_finalizer: bool = False
    """The finalizer goes: nothing is left to do for a resource that is being deleted."""

    requeue_seconds: float = 10.0
