"""What each condition says of what was seen: a function for each, and for Degraded a list of troubles, the worst first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from queryable_app.wire.ingest_failures import REASONS, IngestFailure, one_line
from queryable_operator.report.conditions import Condition, before
from queryable_operator.rollout.live import LiveRevision
from queryable_operator.rollout.progress import has_reported, hydrated, is_available, permanent_failure
from queryable_operator.rollout.status_inputs import StatusInputs
from queryable_operator.spec import names
from queryable_operator.spec.observed import (
    KafkaSettingsInvalid,
    KafkaUnreachable,
    TopicFound,
    TopicMissing,
    TopicObservation,
)

_NOT_READY_SECONDS: Final = 60.0  # what takes no longer is a restart
_SHOWN_MAX: Final = 5
_NEVER_READY: Final = ("Pending", "Provisioning", "Hydrating", "Failed")


def evaluate_conditions(picture: StatusInputs) -> Iterator[Condition]:
    for judge in _JUDGES:
        yield judge(picture)


def worst_message(conditions: Iterable[Mapping[str, Any]]) -> str:
    """Return the message of the worst condition that holds, as one line."""
    there = {entry["type"]: entry for entry in conditions}
    for kind, status, reason in _SEVERITY:
        entry = there.get(kind, {})  # anybody may have edited one that stays as it was
        holds = status in ("", entry.get("status")) and reason in ("", entry.get("reason"))
        if holds and "message" in entry:
            return one_line(str(entry["message"]))
    return ""


_SEVERITY: Final = (
    # What readers meet: no answer, rows that grow old, keys that are not found.
    ("Available", "False", "NodesAway"),
    ("Degraded", "True", "CopyFailed"),
    ("Degraded", "True", "IngestFailed"),
    ("PartitionerMatches", "False", ""),
    # What was asked for and is not carried out.
    ("SpecValid", "False", ""),
    # What can become either of these.
    ("Degraded", "True", ""),
    ("PartitionsInSync", "False", ""),
    # Nothing is wrong: what is being done or waited for.
    ("Progressing", "", ""),
)
"""Type, status and reason of a condition, the worst first. Empty: any."""


def _available(picture: StatusInputs) -> Condition:
    kind, course, active = "Available", picture.course, picture.active
    if course.active is None:
        return Condition(kind, False, "NoRevision", "There is no revision yet.")
    if picture.suspended:
        return Condition(kind, False, "Suspended", "spec.suspended is set: there are no nodes.")
    name = names.revision_text(active.number)
    if is_available(active):
        return Condition(kind, True, "Serving", f"{name} serves every partition.")
    if course.phase == "Failed":
        return Condition(kind, False, "Failed", f"{name} has never served, and cannot hydrate.")
    never = before(picture.status).get(kind, {}).get("reason") in ("NoRevision", "Hydrating", "Failed")
    reason = "Hydrating" if never or course.phase in ("Provisioning", "Hydrating") else "NodesAway"
    message = f"Not every partition of {name} has a complete copy on a ready node.{_pods_in_trouble(active)}"
    return Condition(kind, False, reason, message)


def _progressing(picture: StatusInputs) -> Condition:
    kind, course = "Progressing", picture.course
    if picture.paused:
        return Condition(kind, False, "Paused", "spec.paused is set: nothing is changed.")
    if course.active is None:
        reason, message = _waiting(picture.observed.topic) or ("SpecInvalid", "The spec cannot be followed.")
        return Condition(kind, False, reason, message)
    if picture.suspended and course.phase != "Retiring":
        return Condition(kind, False, "Suspended", "spec.suspended is set: volumes are kept.")
    if course.phase == "Failed":
        failure = permanent_failure(picture.active)
        return Condition(kind, False if failure else None, *_words(failure))
    if under_way := _under_way(picture):
        return Condition(kind, True, *under_way)
    if picture.wrong is not None:
        return Condition(kind, False, "SpecInvalid", "The last spec that could be followed is followed.")
    if course.failed_hash is not None:
        return Condition(kind, False, "RolloutFailed", "The last change of the spec is not carried out.")
    return Condition(kind, False, "Settled", "Everything is as it was asked for.")


def _under_way(picture: StatusInputs) -> tuple[str, str] | None:
    """What is being done, in one word and in a sentence."""
    course, active = picture.course, picture.active
    name = names.revision_text(active.number)
    if course.phase == "HydratingCandidate" and course.candidate:
        there = hydrated(picture.live(course.candidate))
        candidate = names.revision_text(course.candidate.number)
        state = "has caught up" if course.candidate.caught_up_since else "hydrates"
        return (
            "HydratingCandidate",
            f"{candidate} {state}: {there} of {course.candidate.partitions} partitions."
            + _ingest_in_trouble(picture.live(course.candidate)),
        )
    if course.phase == "CuttingOver" and course.candidate:
        return "CuttingOver", f"The Service is turned to {names.revision_text(course.candidate.number)}."
    if course.phase == "Provisioning":
        return "Provisioning", f"Waiting for the pods of {name}.{_pods_in_trouble(active)}"
    if course.phase == "Hydrating" and course.active:
        said = f"{hydrated(active)} of {course.active.partitions} partitions are hydrated."
        return "Hydrating", said + _pods_in_trouble(active)
    if course.previous is not None:
        return "Retiring", f"{names.revision_text(course.previous.number)} is being taken away."
    if picture.moving:
        return "MovingCopies", "Copies move to other nodes."
    if picture.rolling:
        return "Rolling", "Pods are made anew, one after the other."
    if picture.view is not None and (away := picture.view.spec.replicas - len(active.ready)) > 0:
        return "NodesAway", f"{away} of {picture.view.spec.replicas} nodes are not ready."
    return None


def _degraded(picture: StatusInputs) -> Condition:
    for trouble in _TROUBLES:
        if message := trouble[1](picture):
            return Condition("Degraded", True, trouble[0], message)
    there = before(picture.status).get("Degraded", {})
    if there.get("reason") in _SAID_BY_NODES and not has_reported(picture.active):
        return Condition("Degraded", None, "", "")
    return Condition("Degraded", False, "AsWanted", "There is nothing wrong.")


def _hydrated(picture: StatusInputs) -> Condition:
    kind, course, active = "Hydrated", picture.course, picture.active
    if course.phase == "Failed":
        return Condition(kind, False, "Failed", "Copies cannot be built.")
    if course.active is None or course.phase in ("Provisioning", "Hydrating"):
        return Condition(kind, False, "Hydrating", "Copies are being built from the topic.")
    if active.record and any(active.record.placement.hydrating):
        return Condition(kind, False, "MovingCopies", "Copies are being built on other nodes.")
    if any(said.complete < said.copies for said in active.said.values()):
        return Condition(kind, False, "Hydrating", "A node builds copies again.")
    return Condition(kind, True, "Complete", "Every copy is complete.")


def _partitions_in_sync(picture: StatusInputs) -> Condition:
    kind, course, topic = "PartitionsInSync", picture.course, picture.observed.topic
    record = picture.active.record
    if course.active is None or record is None or picture.view is None or not isinstance(topic, TopicFound):
        return Condition(kind, None, "Unknown", "The topic has not been seen yet.")
    if record.spec.get("topic") != picture.view.spec.topic:
        return Condition(kind, None, "Unknown", "The spec names another topic now.")
    if record.partitions == topic.partitions:
        return Condition(kind, True, "InSync", "The topic has the partitions that the view was made for.")
    then = {
        "Redeploy": "A new revision is made for them.",
        "Alert": "Those beyond are not read; set redeployNonce to make a new revision.",
    }[picture.view.on_partitions_changed]
    message = (
        f"The topic has {topic.partitions} partitions, and the view was made for {record.partitions}. {then}"
    )
    return Condition(kind, False, "PartitionsChanged", message)


def _partitioner_matches(picture: StatusInputs) -> Condition:
    kind, said = "PartitionerMatches", picture.active.said.values()
    if not said:
        return Condition(kind, None, "Unknown", "No node has said it yet.")
    if any(one.mismatches > 0 for one in said):
        declared = next(one.partitioner for one in said if one.mismatches > 0)
        message = f"There are keys in other partitions than {declared} puts them in; they are not found by their key."
        return Condition(kind, False, "PartitionerMismatch", message)
    return Condition(kind, True, "Matches", "Every key is where the partitioner puts it.")


def _spec_valid(picture: StatusInputs) -> Condition:
    kind = "SpecValid"
    if picture.wrong is not None:
        return Condition(kind, False, "SpecInvalid", picture.wrong)
    if failure := _spec_refused(picture):
        return Condition(kind, False, *_words(failure))
    there = before(picture.status).get(kind, {})
    if there.get("reason") in REASONS and _asks_for_active(picture) and not has_reported(picture.active):
        return Condition(kind, None, "Unknown", "No node has said yet whether the spec can be followed.")
    return Condition(kind, True, "Valid", "The spec is followed.")


def _spec_refused(picture: StatusInputs) -> IngestFailure | None:
    """Why nodes cannot follow the spec that the resource has now."""
    failure = picture.course.failure
    if failure is None and _asks_for_active(picture):
        failure = permanent_failure(picture.active)
    return failure if failure is not None and failure.caused_by_spec else None


def _asks_for_active(picture: StatusInputs) -> bool:
    """Whether the spec asks for the active revision, as far as is known."""
    course, wish = picture.course, picture.wish
    if course.active is None or course.candidate is not None or course.failed_hash is not None:
        return False
    return wish is None or wish.spec_hash == course.active.spec_hash


def _paused(picture: StatusInputs) -> Condition:
    if picture.paused:
        return Condition("Paused", True, "Paused", "spec.paused is set: nothing is changed.")
    return Condition("Paused", False, "NotPaused", "Changes are carried out.")


_JUDGES: Final[tuple[Callable[[StatusInputs], Condition], ...]] = (
    _available,
    _progressing,
    _degraded,
    _hydrated,
    _partitions_in_sync,
    _partitioner_matches,
    _spec_valid,
    _paused,
)

# --- troubles: each in a sentence, or None


def _name_taken(picture: StatusInputs) -> str | None:
    taken = sorted(f"{ref.kind} {ref.name}" for ref in picture.observed.taken)
    return f"Somebody else has {', '.join(taken[:_SHOWN_MAX])}; delete or rename it." if taken else None


def _record_lost(picture: StatusInputs) -> str | None:
    if not picture.lost_record:
        return None
    return "The active revision's ConfigMap is gone, and the spec is another one now: put it back, or wait."


def _rollout_failed(picture: StatusInputs) -> str | None:
    if picture.course.failed_hash is None:
        return None
    name, failure = names.revision_text(picture.active.number), picture.course.failure
    if failure is not None:
        return (
            f"The last change of the spec cannot be carried out, and {name} stays active: {failure.message}"
        )
    return f"The last change of the spec did not hydrate in time, and {name} stays active. Change the spec."


def _copy_failed(picture: StatusInputs) -> str | None:
    failed = {p: why for said in picture.active.said.values() for p, why in said.failed.items()}
    if not failed:
        return None
    shown = [f"partition {p}: {failed[p]}" for p in sorted(failed)[:_SHOWN_MAX]]
    return f"Copies do not go on: {'; '.join(shown)}"


def _ingest_failed(picture: StatusInputs) -> str | None:
    for ordinal, said in sorted(picture.active.said.items()):
        failure = said.failure
        if failure is not None and (not failure.caused_by_spec or _asks_for_active(picture)):
            return f"{failure.message} (ingest of node {ordinal})"
        if failure is None and said.ingest_failed is not None:
            return f"Ingest of node {ordinal} has failed: {said.ingest_failed}"
    return None


def _disk_full(picture: StatusInputs) -> str | None:
    paused = sorted(ordinal for ordinal, said in picture.active.said.items() if said.disk_paused)
    if not paused:
        return None
    nodes = ", ".join(str(ordinal) for ordinal in paused[:_SHOWN_MAX])
    return f"The disks of nodes {nodes} are fuller than storage.highWaterPercent: nothing new is taken in."


def _nodes_not_ready(picture: StatusInputs) -> str | None:
    course, view, active = picture.course, picture.view, picture.active
    if view is None or picture.suspended or course.phase in _NEVER_READY:
        return None
    now, pods = picture.observed.now, active.pods
    away = [
        ordinal
        for ordinal in range(view.spec.replicas)
        if ordinal in pods and not pods[ordinal].ready and now - pods[ordinal].changed >= _NOT_READY_SECONDS
    ]
    if not away:
        return None
    return (
        f"Nodes that are not ready: {', '.join(str(o) for o in away[:_SHOWN_MAX])}.{_pods_in_trouble(active)}"
    )


def _topic_trouble(reason: str) -> Callable[[StatusInputs], str | None]:
    def trouble(picture: StatusInputs) -> str | None:
        waiting = _waiting(picture.observed.topic)
        return waiting[1] if waiting and waiting[0] == reason and picture.course.active else None

    return trouble


_TROUBLES: Final[tuple[tuple[str, Callable[[StatusInputs], str | None]], ...]] = (
    ("CopyFailed", _copy_failed),
    ("NameTaken", _name_taken),
    ("RevisionLost", _record_lost),
    ("SettingsWrong", _topic_trouble("SettingsWrong")),
    ("TopicNotFound", _topic_trouble("TopicNotFound")),
    ("IngestFailed", _ingest_failed),
    ("RolloutFailed", _rollout_failed),
    ("DiskHighWater", _disk_full),
    ("NodesNotReady", _nodes_not_ready),
    ("KafkaAway", _topic_trouble("KafkaAway")),
)
_SAID_BY_NODES: Final = ("CopyFailed", "IngestFailed", "DiskHighWater")


def _pods_in_trouble(live: LiveRevision) -> str:
    """The first one, in a sentence that follows another."""
    for _, pod in sorted(live.pods.items()):
        if pod.trouble and not pod.ready:
            return f" {pod.name}: {pod.trouble}"
    return ""


def _ingest_in_trouble(live: LiveRevision) -> str:
    """The first failure that may pass, or that not every node has, in a sentence that follows another."""
    for ordinal, said in sorted(live.said.items()):
        if said.ingest_failed is not None:
            return f" Ingest of node {ordinal} has failed: {said.ingest_failed}"
    return ""


def _words(failure: IngestFailure | None) -> tuple[str, str]:
    return (failure.reason, failure.message) if failure else ("Unknown", "Nothing is known.")


def _waiting(topic: TopicObservation | None) -> tuple[str, str] | None:
    match topic:
        case None:
            return "LookingForTopic", "The topic is being looked for."
        case TopicMissing():
            return "TopicNotFound", "The topic does not exist. It is looked for again and again."
        case KafkaUnreachable(reason):
            return "KafkaAway", f"Kafka is away: {reason}"
        case KafkaSettingsInvalid(reason):
            return "SettingsWrong", f"Kafka's settings cannot be used: {reason}"
        case TopicFound():
            return None
