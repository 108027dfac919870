"""Evaluate each condition of the status: one function for each, and for Degraded a list of rules, the worst first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from queryable_app.wire.ingest_failures import REASONS, IngestFailure, one_line
from queryable_operator.report.conditions import Condition, conditions_by_type
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.progress import (
    has_reported,
    hydrated_partitions,
    is_available,
    permanent_failure,
)
from queryable_operator.rollout.status_inputs import StatusInputs
from queryable_operator.spec import names
from queryable_operator.spec.observed import (
    KafkaSettingsInvalid,
    KafkaUnreachable,
    TopicFound,
    TopicMissing,
    TopicObservation,
)

_NOT_READY_SECONDS: Final = 60.0  # a shorter outage is a restart
_SHOWN_MAX: Final = 5
_REKEY_JOB_FAILED: Final = "RekeyJobFailed"
_PHASES_BEFORE_READY: Final = ("Pending", "Provisioning", "Hydrating", "Failed")


def evaluate_conditions(inputs: StatusInputs) -> Iterator[Condition]:
    for judge in _RULES:
        yield judge(inputs)


def worst_message(conditions: Iterable[Mapping[str, Any]]) -> str:
    """Return the message of the worst condition that holds, on one line."""
    by_type = {entry["type"]: entry for entry in conditions}
    for kind, status, reason in _SEVERITY:
        entry = by_type.get(kind, {})  # a condition that was carried over may have been edited by a user
        holds = status in ("", entry.get("status")) and reason in ("", entry.get("reason"))
        if holds and "message" in entry:
            return one_line(str(entry["message"]))
    return ""


_SEVERITY: Final = (
    # Readers notice: no answer, stale rows, missing keys.
    ("Available", "False", "NodesAway"),
    ("Degraded", "True", "CopyFailed"),
    ("Degraded", "True", "IngestFailed"),
    ("Degraded", "True", "RekeyJobFailed"),
    ("PartitionerMatches", "False", ""),
    # The operator does not do what the spec asks for.
    ("SpecValid", "False", ""),
    # This can turn into either of the above.
    ("Degraded", "True", ""),
    ("PartitionsInSync", "False", ""),
    # Nothing is wrong: an action is in progress, or the operator waits.
    ("Progressing", "", ""),
)
"""Type, status and reason of a condition, the worst first. Empty: any."""


def _available(inputs: StatusInputs) -> Condition:
    kind, state, active = "Available", inputs.state, inputs.active
    if state.active is None:
        return Condition(kind, False, "NoRevision", "No revision exists yet.")
    if inputs.suspended:
        return Condition(kind, False, "Suspended", "spec.suspended is set: no nodes run.")
    name = names.revision_text(active.number)
    if is_available(active):
        return Condition(kind, True, "Serving", f"{name} serves every partition.")
    if state.phase == "Failed":
        return Condition(kind, False, "Failed", f"{name} cannot hydrate and has never served.")
    last_reason = conditions_by_type(inputs.status).get(kind, {}).get("reason")
    has_never_served = last_reason in ("NoRevision", "Hydrating", "Failed")
    reason = "Hydrating" if has_never_served or state.phase in ("Provisioning", "Hydrating") else "NodesAway"
    message = (
        f"Not every partition of {name} has a complete replica on a ready node.{_first_pod_problem(active)}"
    )
    return Condition(kind, False, reason, message)


def _progressing(inputs: StatusInputs) -> Condition:
    kind, state = "Progressing", inputs.state
    if inputs.paused:
        return Condition(kind, False, "Paused", "spec.paused is set: nothing is changed.")
    if state.active is None:
        reason, message = _waiting_for_topic(inputs.observed.topic) or (
            "SpecInvalid",
            "The spec is invalid.",
        )
        return Condition(kind, False, reason, message)
    if inputs.suspended and state.phase != "Retiring":
        return Condition(
            kind, False, "Suspended", "spec.suspended is set: no nodes run; their volumes are retained."
        )
    if state.phase == "Failed":
        failure = permanent_failure(inputs.active)
        return Condition(kind, False if failure else None, *_reason_and_message(failure))
    if action := _current_action(inputs):
        return Condition(kind, True, *action)
    if inputs.spec_error is not None:
        return Condition(
            kind, False, "SpecInvalid", "The spec is invalid; the last valid one stays in effect."
        )
    if state.failed_hash is not None:
        return Condition(
            kind, False, "RolloutFailed", "The last change of the spec failed and is not in effect."
        )
    return Condition(kind, False, "Settled", "Everything is as the spec asks.")


def _current_action(inputs: StatusInputs) -> tuple[str, str] | None:
    """Return the reason and message of the action in progress, or None."""
    state, active = inputs.state, inputs.active
    name = names.revision_text(active.number)
    if state.phase == "HydratingCandidate" and state.candidate:
        complete = hydrated_partitions(inputs.live(state.candidate))
        candidate = names.revision_text(state.candidate.number)
        progress = "has caught up" if state.candidate.caught_up_since else "hydrates"
        return (
            "HydratingCandidate",
            f"{candidate} {progress}: {complete} of {state.candidate.partitions} partitions."
            + _first_ingest_failure(inputs.live(state.candidate))
            + _before_start(inputs, inputs.live(state.candidate))
            + _job_problem(inputs, inputs.live(state.candidate)),
        )
    if state.phase == "CuttingOver" and state.candidate:
        return "CuttingOver", f"The Service switches to {names.revision_text(state.candidate.number)}."
    if state.phase == "Provisioning":
        waiting = f"Waiting for the pods of {name}.{_first_pod_problem(active)}"
        return "Provisioning", waiting + _before_start(inputs, active) + _job_problem(inputs, active)
    if state.phase == "Hydrating" and state.active:
        progress = f"{hydrated_partitions(active)} of {state.active.partitions} partitions are hydrated."
        return "Hydrating", progress + _first_pod_problem(active) + _job_problem(inputs, active)
    if state.previous is not None:
        return "Retiring", f"{names.revision_text(state.previous.number)} is being removed."
    if inputs.moving:
        return "MovingCopies", "Replicas move to other nodes."
    if inputs.rolling:
        waits = " They wait for a Secret that nodes can use." if inputs.observed.secret_problem else ""
        return "Rolling", f"Pods restart one after the other.{waits}"
    if inputs.view is not None and (away := inputs.view.spec.replicas - len(active.ready)) > 0:
        return "NodesAway", f"{away} of {inputs.view.spec.replicas} {active.layout.noun}s are not ready."
    return None


def _degraded(inputs: StatusInputs) -> Condition:
    for reason, rule in _DEGRADED_RULES:
        if message := rule(inputs):
            return Condition("Degraded", True, reason, message)
    last = conditions_by_type(inputs.status).get("Degraded", {})
    if last.get("reason") in _REPORTED_BY_NODES and not has_reported(inputs.active):
        return Condition("Degraded", None, "", "")
    return Condition("Degraded", False, "AsWanted", "No problem is known.")


def _hydrated(inputs: StatusInputs) -> Condition:
    kind, state, active = "Hydrated", inputs.state, inputs.active
    if state.phase == "Failed":
        return Condition(kind, False, "Failed", "Replicas cannot hydrate.")
    if state.active is None or state.phase in ("Provisioning", "Hydrating"):
        return Condition(kind, False, "Hydrating", "Replicas hydrate from the topic.")
    if active.record and any(active.record.placement.hydrating):
        return Condition(kind, False, "MovingCopies", "Replicas hydrate on other nodes.")
    if any(node.complete < node.replicas for node in active.node_statuses.values()):
        return Condition(kind, False, "Hydrating", "A node hydrates replicas again.")
    return Condition(kind, True, "Complete", "Every replica is complete.")


def _partitions_in_sync(inputs: StatusInputs) -> Condition:
    kind, state, topic = "PartitionsInSync", inputs.state, inputs.observed.topic
    record = inputs.active.record
    if state.active is None or record is None or inputs.view is None or not isinstance(topic, TopicFound):
        return Condition(kind, None, "Unknown", "The topic was not observed yet.")
    if record.spec.get("topic") != inputs.view.spec.topic:
        return Condition(kind, None, "Unknown", "The spec names another topic than the active revision.")
    if record.partitions == topic.partitions:
        return Condition(kind, True, "InSync", "The topic has as many partitions as the active revision.")
    then = {
        "Redeploy": "A new revision follows.",
        "Alert": "The additional ones are not read; change spec.redeployNonce for a new revision.",
    }[inputs.view.on_partitions_changed]
    message = f"The topic has {topic.partitions} partitions, and the active revision was made for {record.partitions}. {then}"
    return Condition(kind, False, "PartitionsChanged", message)


def _partitioner_matches(inputs: StatusInputs) -> Condition:
    kind, nodes = "PartitionerMatches", inputs.active.node_statuses.values()
    if not nodes:
        return Condition(kind, None, "Unknown", "No node has reported yet.")
    if any(node.mismatches > 0 for node in nodes):
        declared = next(node.partitioner for node in nodes if node.mismatches > 0)
        message = f"Some keys are in other partitions than {declared} assigns; point reads do not find them."
        return Condition(kind, False, "PartitionerMismatch", message)
    return Condition(kind, True, "Matches", "Every key is in the partition that the partitioner assigns.")


def _spec_valid(inputs: StatusInputs) -> Condition:
    kind = "SpecValid"
    if inputs.spec_error is not None:
        return Condition(kind, False, "SpecInvalid", inputs.spec_error)
    if failure := _spec_refused(inputs):
        return Condition(kind, False, *_reason_and_message(failure))
    last = conditions_by_type(inputs.status).get(kind, {})
    if last.get("reason") in REASONS and _desires_active(inputs) and not has_reported(inputs.active):
        return Condition(kind, None, "Unknown", "No node has reported yet whether it can follow the spec.")
    return Condition(kind, True, "Valid", "The spec is valid and in effect.")


def _spec_refused(inputs: StatusInputs) -> IngestFailure | None:
    """Return why nodes cannot follow the resource's current spec, or None."""
    failure = inputs.state.failure
    if failure is None and _desires_active(inputs):
        failure = permanent_failure(inputs.active)
    return failure if failure is not None and failure.caused_by_spec else None


def _desires_active(inputs: StatusInputs) -> bool:
    """Return whether the spec asks for the active revision, as far as known."""
    state, desired = inputs.state, inputs.desired
    if state.active is None or state.candidate is not None or state.failed_hash is not None:
        return False
    return desired is None or desired.spec_hash == state.active.spec_hash


def _paused(inputs: StatusInputs) -> Condition:
    if inputs.paused:
        return Condition("Paused", True, "Paused", "spec.paused is set: nothing is changed.")
    return Condition("Paused", False, "NotPaused", "Changes take effect.")


_RULES: Final[tuple[Callable[[StatusInputs], Condition], ...]] = (
    _available,
    _progressing,
    _degraded,
    _hydrated,
    _partitions_in_sync,
    _partitioner_matches,
    _spec_valid,
    _paused,
)

# --- rules of Degraded: each returns a message, or None


def _name_conflict(inputs: StatusInputs) -> str | None:
    conflicts = sorted(f"{ref.kind} {ref.name}" for ref in inputs.observed.name_conflicts)
    if not conflicts:
        return None
    return (
        f"Other owners use the names of {', '.join(conflicts[:_SHOWN_MAX])}; delete or rename those objects."
    )


def _record_lost(inputs: StatusInputs) -> str | None:
    if not inputs.lost_record:
        return None
    return "The active revision's ConfigMap is missing, and the spec has changed since: restore the spec, or wait."


def _rollout_failed(inputs: StatusInputs) -> str | None:
    if inputs.state.failed_hash is None:
        return None
    name, failure = names.revision_text(inputs.active.number), inputs.state.failure
    if failure is not None:
        return f"The last change of the spec failed, and {name} stays active: {failure.message}"
    return f"The last change of the spec did not hydrate in time, and {name} stays active: change the spec."


def _copy_failed(inputs: StatusInputs) -> str | None:
    failed = {p: why for node in inputs.active.node_statuses.values() for p, why in node.failed.items()}
    if not failed:
        return None
    shown = [f"partition {p}: {failed[p]}" for p in sorted(failed)[:_SHOWN_MAX]]
    return f"Replicas have stopped: {'; '.join(shown)}"


def _ingest_failed(inputs: StatusInputs) -> str | None:
    for ordinal, node in sorted(inputs.active.node_statuses.items()):
        failure = node.failure
        if failure is not None and (not failure.caused_by_spec or _desires_active(inputs)):
            return f"{failure.message} (ingest of {inputs.active.title(ordinal)})"
        if failure is None and node.ingest_error is not None:
            return f"Ingest of {inputs.active.title(ordinal)} has failed: {node.ingest_error}"
    return None


def _rekey_job_failed(inputs: StatusInputs) -> str | None:
    """Return why the active revision's rekey job does not work. After a restart it counts as failed until it has run for a
    while, so a job that fails again and again is reported once."""
    return None if inputs.suspended else _job_problem(inputs, inputs.active).strip() or None


def _disk_full(inputs: StatusInputs) -> str | None:
    active, layout = inputs.active, inputs.active.layout
    paused = sorted({layout.pod_of(o) for o, node in active.node_statuses.items() if node.disk_paused})
    if not paused:
        return None
    pods = ", ".join(str(pod) for pod in paused[:_SHOWN_MAX])
    return (
        f"The disks of {layout.noun}s {pods} are fuller than spec.storage.highWaterPercent: ingest is paused."
    )


def _nodes_not_ready(inputs: StatusInputs) -> str | None:
    state, view, active = inputs.state, inputs.view, inputs.active
    if view is None or inputs.suspended or state.phase in _PHASES_BEFORE_READY:
        return None
    now, pods = inputs.observed.now, active.pods
    away = [
        str(index)
        for index, pod in sorted(pods.items())
        if index < view.spec.replicas and not pod.ready and now - pod.changed >= _NOT_READY_SECONDS
    ]
    if not away:
        return None
    noun = active.layout.noun.capitalize()
    return f"{noun}s not ready: {', '.join(away[:_SHOWN_MAX])}.{_first_pod_problem(active)}"


def _topic_rule(reason: str) -> Callable[[StatusInputs], str | None]:
    def rule(inputs: StatusInputs) -> str | None:
        waiting = _waiting_for_topic(inputs.observed.topic)
        return waiting[1] if waiting and waiting[0] == reason and inputs.state.active else None

    return rule


_DEGRADED_RULES: Final[tuple[tuple[str, Callable[[StatusInputs], str | None]], ...]] = (
    ("CopyFailed", _copy_failed),
    ("NameTaken", _name_conflict),
    ("RevisionLost", _record_lost),
    ("SecretUnusable", lambda inputs: inputs.observed.secret_problem),
    ("SettingsWrong", _topic_rule("SettingsWrong")),
    ("TopicNotFound", _topic_rule("TopicNotFound")),
    ("IngestFailed", _ingest_failed),
    (_REKEY_JOB_FAILED, _rekey_job_failed),
    ("RolloutFailed", _rollout_failed),
    ("DiskHighWater", _disk_full),
    ("NodesNotReady", _nodes_not_ready),
    ("KafkaAway", _topic_rule("KafkaAway")),
)
_REPORTED_BY_NODES: Final = ("CopyFailed", "IngestFailed", "DiskHighWater")


def _first_pod_problem(live: LiveRevision) -> str:
    """Return the first pod's problem as a sentence that follows another, or an empty text."""
    for _, pod in sorted(live.pods.items()):
        if pod.problem and not pod.ready:
            return f" {pod.name}: {pod.problem}"
    return ""


def _first_ingest_failure(live: LiveRevision) -> str:
    """Return the first ingest failure that may pass, or that not every node has, as a sentence that follows another."""
    for ordinal, node in sorted(live.node_statuses.items()):
        if node.ingest_error is not None:
            return f" Ingest of {live.title(ordinal)} has failed: {node.ingest_error}"
    return ""


def _before_start(inputs: StatusInputs, live: LiveRevision) -> str:
    """Return what a rekeyed revision waits for before its nodes start as a sentence that follows another, or an empty text."""
    record = live.record
    if record is None or record.rekey_template is None or record.group_key_format:
        return ""
    for left, refused in inputs.observed.topic_deletions.items():
        if refused is not None and live.config_map_uid in left.split():
            return f" An earlier revision with this number may have left records in Kafka: {refused}"
    return " Spark checks the view before its nodes start."


def _job_problem(inputs: StatusInputs, live: LiveRevision) -> str:
    """Return why the rekey job of a revision does not work as a sentence that follows another, or an empty text."""
    job, last = live.rekey_job, conditions_by_type(inputs.status).get("Degraded", {})
    problem = job.problem(inputs.observed.now) or live.executors.problem(inputs.observed.now)
    if problem is None and last.get("reason") == _REKEY_JOB_FAILED:
        problem = job.error
    name = names.revision_text(live.number)
    if problem:
        return f" The rekey job of {name} does not run: {problem}"
    reported = [node.rekey_error for _, node in sorted(live.node_statuses.items()) if node.rekey_error]
    return f" The rekey job of {name} cannot continue: {reported[0]}" if reported else ""


def _reason_and_message(failure: IngestFailure | None) -> tuple[str, str]:
    return (failure.reason, failure.message) if failure else ("Unknown", "The reason is unknown.")


def _waiting_for_topic(topic: TopicObservation | None) -> tuple[str, str] | None:
    match topic:
        case None:
            return "LookingForTopic", "The topic is being looked up."
        case TopicMissing():
            return "TopicNotFound", "The topic does not exist. The operator keeps looking it up."
        case KafkaUnreachable(reason):
            return "KafkaAway", f"Kafka is unreachable: {reason}"
        case KafkaSettingsInvalid(reason):
            return "SettingsWrong", f"The Kafka settings are invalid: {reason}"
        case TopicFound():
            return None
