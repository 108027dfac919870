"""Hold the persisted state of a rollout, and the observed facts that decide its next step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from queryable_app.wire.ingest_failures import IngestFailure
from queryable_operator.spec.resource import Rollout

Phase = Literal[
    "Pending",
    "Provisioning",
    "Hydrating",
    "Failed",
    "Ready",
    "HydratingCandidate",
    "CuttingOver",
    "Retiring",
]
Outcome = Literal["Active", "Retired", "Failed", "Replaced"]


@dataclass(frozen=True, slots=True)
class RevisionReference:
    """Refer to a revision, as status does."""

    number: int
    spec_hash: str
    since: float
    partitions: int
    application_id: str
    caught_up_since: float | None = None


@dataclass(frozen=True, slots=True)
class RolloutState:
    """Hold all that is persisted of a rollout."""

    phase: Phase = "Pending"
    active: RevisionReference | None = None
    candidate: RevisionReference | None = None
    previous: RevisionReference | None = None
    """The last active revision or candidate. It is being removed."""

    failed_hash: str | None = None
    failure: IngestFailure | None = None
    """Why the revision with `failed_hash` can never hydrate. None: it missed its deadline."""

    history: tuple[Mapping[str, Any], ...] = ()

    @property
    def retained(self) -> tuple[RevisionReference, ...]:
        """Return the revisions that must exist."""
        return tuple(reference for reference in (self.active, self.candidate) if reference is not None)

    @property
    def changing(self) -> bool:
        return self.phase in ("HydratingCandidate", "CuttingOver")


@dataclass(frozen=True, slots=True)
class DesiredRevision:
    """Describe the revision that the spec asks for."""

    spec_hash: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ObservedFacts:
    """Hold the facts that decide the next step."""

    now: float
    rollout: Rollout
    next_number: int
    next_application_id: str
    desired: DesiredRevision | None = None
    """None: unknown at this time."""

    suspended: bool = False
    active_exists: bool = False
    active_provisioned: bool = False
    active_available: bool = False
    """Whether the active revision has any object; whether all its pods have hosts; whether every partition is served."""

    active_cannot_hydrate: bool = False
    active_can_hydrate: bool = False
    """Whether the active revision can never hydrate; whether its nodes report that nothing prevents it."""

    candidate_failure: IngestFailure | None = None
    """Why the candidate can never hydrate."""

    candidate_caught_up: bool = False
    candidate_is_near: bool = False
    candidate_is_ready: bool = False
    """Whether every replica of the candidate is complete and near the end offset; whether its lag is small enough; whether it
    has enough ready pods for the cut-over."""

    service_switched: bool = False
    """Whether the Service sends requests to enough pods of the candidate."""

    previous_removed: bool = False
