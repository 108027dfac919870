"""Everything that status speaks of, put together once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from queryable_operator.rollout.live import LiveRevision
from queryable_operator.rollout.revisions import DesiredRevision, RevisionReference, RolloutState
from queryable_operator.spec.observed import Observed
from queryable_operator.spec.resource import Identity, View
from queryable_operator.spec.settings import OperatorSettings


@dataclass(frozen=True, slots=True)
class StatusInputs:
    observed: Observed
    settings: OperatorSettings
    identity: Identity
    view: View | None
    """None: the spec is wrong, and no earlier one is known."""

    wrong: str | None
    """Why the spec is not followed."""

    state: RolloutState
    """As it is after this round."""

    live_revisions: Mapping[int, LiveRevision]
    desired: DesiredRevision | None = None
    moving: bool = False
    """Whether copies of the active revision are on their way to other nodes."""

    rolling: bool = False
    """Whether its pods are made anew, or are about to be."""

    lost_record: bool = False
    """Whether the active revision's ConfigMap is gone and cannot be made again."""

    @property
    def status(self) -> Mapping[str, Any]:
        """The one that is there."""
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
        """Empty when nothing is there."""
        number = reference.number if reference else 0
        return self.live_revisions.get(number, LiveRevision(number))
