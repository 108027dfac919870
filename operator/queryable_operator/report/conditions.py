"""The conditions of a resource: what holds, since when, and why in one word and in one sentence.

Strategy: a condition is a function of what was seen; where nothing was seen that speaks for or against it, it stays as it was.
No sentence holds a clock or a figure that never rests, so that a settled resource says the same for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queryable_operator.rollout.live import text_of

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
    """None: nobody knows; it stays as it was."""

    reason: str
    message: str


def conditions_by_type(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The conditions that are there, by type."""
    there = status.get("conditions")
    entries = there if isinstance(there, list) else []
    return {str(entry.get("type")): entry for entry in entries if isinstance(entry, Mapping)}


def merge_conditions(
    said: Iterable[Condition], status: Mapping[str, Any], generation: int, now: float
) -> list[Mapping[str, Any]]:
    """All conditions as they are now. Time is that of the last change of status."""
    whole = {kind: dict(entry) for kind, entry in conditions_by_type(status).items() if kind in ORDER}
    for condition in said:
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
