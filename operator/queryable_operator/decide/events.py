"""Derive events from the difference between the last status and the next one: one event for each transition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from queryable_app.wire.ingest_failures import REASONS
from queryable_operator.decide.actions import Event
from queryable_operator.report.conditions import conditions_by_type

# A condition that changes to one of these reasons is an event, and a warning.
_BY_REASON: Final[Mapping[tuple[str, str], str]] = {
    ("Progressing", "TopicNotFound"): "TopicNotFound",
    ("Degraded", "TopicNotFound"): "TopicNotFound",
    ("Degraded", "DiskHighWater"): "DiskHighWater",
    ("Degraded", "RekeyJobFailed"): "RekeyJobFailed",
    ("Degraded", "NameTaken"): "NameTaken",
    ("PartitionsInSync", "PartitionsChanged"): "PartitionsChanged",
    ("PartitionerMatches", "PartitionerMismatch"): "PartitionerMismatch",
    ("SpecValid", "SpecInvalid"): "SpecInvalid",
    **{
        ("SpecValid" if cause == "spec" else "Progressing", reason): reason
        for reason, cause in REASONS.items()
    },
}


def events_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Event]:
    yield from _of_phases(old, new)
    yield from _of_conditions(old, new)


def _of_phases(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Event]:
    phases = (old.get("phase"), new.get("phase"))
    active, candidate = _revision(new, "active"), _revision(new, "candidate")
    if phases == ("Provisioning", "Hydrating"):
        yield _normal("Provisioned", f"The nodes of {active} are scheduled.")
        yield _normal("HydrationStarted", f"{active} hydrates from the topic.")
    if phases in (("Hydrating", "Ready"), ("Failed", "Ready")):
        yield _normal("HydrationComplete", f"{active} is complete and serves.")
    if candidate and candidate != _revision(old, "candidate"):
        yield _normal("RolloutStarted", f"{candidate} hydrates beside {active}.")
    if phases == ("HydratingCandidate", "CuttingOver"):
        yield _normal("HydrationComplete", f"{candidate} has caught up.")
    if "failedHash" in new and new["failedHash"] != old.get("failedHash"):
        yield Event("Warning", "RolloutFailed", _rollout_failed(new))
    if phases[0] == "CuttingOver" and active != _revision(old, "active"):
        yield _normal("CutOver", f"{active} serves; {_revision(old, 'active')} is being removed.")
    if _revision(old, "previous") and not _revision(new, "previous"):
        yield _normal("Retired", f"{_revision(old, 'previous')} was removed.")
    if active and active == _revision(old, "active") and _moved(old, new):
        yield _normal("PlacementChanged", f"{active} follows placement {new['placementEpoch']}.")


def _rollout_failed(new: Mapping[str, Any]) -> str:
    """Return the reason of the newest failed revision in the history, as a message."""
    history = new.get("history") or ()
    ended: Mapping[str, Any] = next((entry for entry in history if entry.get("outcome") == "Failed"), {})
    return (
        f"{ended.get('revision')} failed, and {_revision(new, 'active')} stays active: {ended.get('reason')}"
    )


def _of_conditions(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Event]:
    was = conditions_by_type(old)
    for kind, condition in conditions_by_type(new).items():
        reason = _BY_REASON.get((kind, str(condition.get("reason"))))
        if reason and was.get(kind, {}).get("reason") != condition.get("reason"):
            yield Event("Warning", reason, str(condition.get("message")))
    if _holds(new, "Paused") and not _holds(old, "Paused"):
        yield _normal("Paused", "spec.paused is set: nothing is changed.")


def _moved(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    epochs = (old.get("placementEpoch"), new.get("placementEpoch"))
    return None not in epochs and epochs[0] != epochs[1]


def _holds(status: Mapping[str, Any], kind: str) -> bool:
    return conditions_by_type(status).get(kind, {}).get("status") == "True"


def _revision(status: Mapping[str, Any], role: str) -> str | None:
    there = status.get(role)
    name = there.get("revision") if isinstance(there, Mapping) else None
    return name if isinstance(name, str) else None


def _normal(reason: str, message: str) -> Event:
    return Event("Normal", reason, message)
