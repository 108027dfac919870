"""Collect everything that status is written from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.rollout_state import DesiredRevision, RevisionReference, RolloutState
from queryable_operator.spec.observed import Observed
from queryable_operator.spec.resource import Identity, View
from queryable_operator.spec.settings import OperatorSettings


@dataclass(frozen=True, slots=True)
class StatusInputs:
    observed: Observed
    settings: OperatorSettings
    identity: Identity
    view: View | None
    """None: the spec is invalid, and no earlier one is known."""

    spec_error: str | None
    """Why the spec is not followed."""

    state: RolloutState
    """The state after this pass."""

    live_revisions: Mapping[int, LiveRevision]
    desired: DesiredRevision | None = None
    moving: bool = False
    """Whether replicas of the active revision are moving to other nodes."""

    rolling: bool = False
    """Whether pods of the active revision are being recreated, or are about to be."""

    lost_record: bool = False
    """Whether the active revision's ConfigMap is missing and cannot be recovered."""

    @property
    def status(self) -> Mapping[str, Any]:
        """Return the existing status."""
        return self.observed.resource.get("status") or {}

    @property
    def active(self) -> LiveRevision:
        return self.live(self.state.active)

    @property
    def paused(self) -> bool:
        return self.view is not None and self.view.paused

    @property
    def suspended(self) -> bool:
        return self.view is not None and self.view.suspended

    def live(self, reference: RevisionReference | None) -> LiveRevision:
        """Return the live objects of a revision; empty if there are none."""
        number = reference.number if reference else 0
        return self.live_revisions.get(number, LiveRevision(number))
