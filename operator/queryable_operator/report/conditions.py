"""Merge evaluated conditions into the resource's conditions, with their transition times.

A condition is a function of the observation. Where nothing was observed, it keeps its last value. No message contains a clock
or a figure that always changes, so the status of a settled resource stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queryable_operator.rollout.pod import text_of

ORDER: Final = (
    "Available",
    "Progressing",
    "Degraded",
    "Hydrated",
    "PartitionsInSync",
    "PartitionerMatches",
    "SpecValid",
    "Paused",
)
_MESSAGE_CHARACTERS_MAX: Final = 2000


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    holds: bool | None
    """None: unknown; the condition keeps its last value."""

    reason: str
    message: str


def conditions_by_type(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the existing conditions by type."""
    there = status.get("conditions")
    entries = there if isinstance(there, list) else []
    return {str(entry.get("type")): entry for entry in entries if isinstance(entry, Mapping)}


def merge_conditions(
    evaluated: Iterable[Condition], status: Mapping[str, Any], generation: int, now: float
) -> list[Mapping[str, Any]]:
    """Return all conditions as they are now. A transition time changes with the condition's status only."""
    whole = {kind: dict(entry) for kind, entry in conditions_by_type(status).items() if kind in ORDER}
    for condition in evaluated:
        whole[condition.type] = _entry(condition, whole.get(condition.type), generation, now)
    return [whole[kind] for kind in ORDER if kind in whole]


def _entry(
    condition: Condition, there: Mapping[str, Any] | None, generation: int, now: float
) -> dict[str, Any]:
    if condition.holds is None and there is not None:
        return {**there, "observedGeneration": generation}
    status = {True: "True", False: "False", None: "Unknown"}[condition.holds]
    same = there is not None and there.get("status") == status and there.get("lastTransitionTime")
    return {
        "type": condition.type,
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": there["lastTransitionTime"] if there and same else text_of(now),
        "reason": condition.reason,
        "message": condition.message[:_MESSAGE_CHARACTERS_MAX],
    }
