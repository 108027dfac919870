"""Read and write the resource's status: the persisted rollout state, and what users see.

The operator writes status whole, and only if it differs from the existing one. Figures are rounded, and times are those of
changes. Reading trusts nothing: what cannot be parsed counts as lost and is rebuilt from the live objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import floor, log10
from typing import Any, Final, cast, get_args

from queryable_app.wire.ingest_failures import parse_failure
from queryable_operator.build.workload import application_id_in
from queryable_operator.report.condition_rules import evaluate_conditions, worst_message
from queryable_operator.report.conditions import merge_conditions
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.placements import all_nodes_reported
from queryable_operator.rollout.pod import seconds_of, text_of
from queryable_operator.rollout.progress import (
    hydrated_partitions,
    lag,
    records_per_second,
    remaining_seconds,
)
from queryable_operator.rollout.rollout_state import Phase, RevisionReference, RolloutState
from queryable_operator.rollout.status_inputs import StatusInputs
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest, TopicFound
from queryable_operator.spec.pods import PodLayout
from queryable_operator.spec.resource import Identity

_HISTORY_MAX: Final = 10


def rollout_state_of(
    identity: Identity,
    status: Mapping[str, Any],
    live_revisions: Mapping[int, LiveRevision],
    service: int | None,
    now: float,
) -> RolloutState:
    """Return the rollout state from status, completed from the live objects. `service` is the revision that the Service
    selects."""
    active = _reference_from_status(identity, status.get("active"), live_revisions, now)
    if active is None:
        return _rebuild_state(identity, status, live_revisions, service, now)
    candidate = _reference_from_status(identity, status.get("candidate"), live_revisions, now)
    previous = _reference_from_status(identity, status.get("previous"), {}, now)
    if candidate is not None and candidate.number == active.number:
        candidate = None
    if previous is not None and previous.number in (active.number, candidate and candidate.number):
        previous = None
    failed = status.get("failedHash")
    state = RolloutState(
        phase="Ready",
        active=active,
        candidate=candidate,
        previous=previous,
        failed_hash=failed if isinstance(failed, str) else None,
        failure=parse_failure(status.get("failure")) if isinstance(failed, str) else None,
        history=_history(status),
    )
    return replace(state, phase=_phase(status.get("phase"), state))


def is_lost(status: Mapping[str, Any], state: RolloutState) -> bool:
    """Return whether status lost the active revision."""
    return state.active is not None and _number(status.get("active")) is None


def service_of(observed_service: Manifest | None) -> int | None:
    """Return the revision that the live Service selects."""
    selector = (observed_service or {}).get("spec", {}).get("selector") or {}
    return names.revision_number(selector.get(names.REVISION_LABEL))


def status_of(inputs: StatusInputs) -> Mapping[str, Any]:
    state, identity, view = inputs.state, inputs.identity, inputs.view
    conditions = merge_conditions(
        evaluate_conditions(inputs), inputs.status, identity.generation, inputs.observed.now
    )
    whole: dict[str, Any] = {
        "observedGeneration": identity.generation,
        "phase": state.phase,
        "message": worst_message(conditions),
        **_nodes(inputs),
        "partitions": _partitions(inputs),
        "active": _active(inputs),
        "candidate": _candidate(inputs),
        "previous": None if state.previous is None else _revision(state.previous),
        "failedHash": state.failed_hash,
        "failure": None if state.failure is None else state.failure.to_json(),
        "history": list(state.history) or None,
        "conditions": conditions,
    }
    if view is not None:
        host, *_ = names.service_hosts(view.namespace, view.name, inputs.settings.cluster_domain)
        layout = PodLayout.of(view.raw) if state.active is None else inputs.active.layout
        whole["url"] = f"{layout.scheme}://{host}:{view.raw['service']['port']}"
    return {name: value for name, value in whole.items() if value is not None}


# --- reading


def _number(raw: Any) -> int | None:
    revision = raw.get("revision") if isinstance(raw, Mapping) else None
    return names.revision_number(revision) if isinstance(revision, str) else None


def _reference_from_status(
    identity: Identity, raw: Any, live_revisions: Mapping[int, LiveRevision], now: float
) -> RevisionReference | None:
    """Parse a revision of status. An unedited ConfigMap overrides status, which a user may have edited."""
    number = _number(raw)
    if number is None:
        return None
    partitions, live = raw.get("totalPartitions"), live_revisions.get(number)
    reference = RevisionReference(
        number=number,
        spec_hash=str(raw.get("specHash", "")),
        since=_at(raw.get("since"), now),
        partitions=partitions if isinstance(partitions, int) else 0,
        application_id=_application_id(identity, number, raw.get("applicationId"), live),
        caught_up_since=seconds_of(raw.get("caughtUpSince")),
    )
    return reference if live is None else _with_record(reference, live)


def _application_id(identity: Identity, number: int, in_status: Any, live: LiveRevision | None) -> str:
    """Return a revision's application id, which never changes: an older release may have given it another form."""
    known = [in_status]
    if live is not None:
        recorded = live.record.placement.application_id if live.record is not None else None
        stateful_set = live.objects.get("StatefulSet", {})
        known = [recorded, in_status, application_id_in(stateful_set.get("spec", {}).get("template"))]
    shared = names.shared_application_id(identity.namespace, identity.name, number)
    own = names.application_id(identity.namespace, identity.name, number, identity.uid)
    return next((each for each in known if each in (shared, own)), own)


def _with_record(reference: RevisionReference, live: LiveRevision) -> RevisionReference:
    if live.record is not None:
        return replace(reference, spec_hash=live.record.spec_hash, partitions=live.record.partitions)
    if live.build_inputs is not None and not reference.spec_hash:
        return replace(
            reference, spec_hash=live.build_inputs.spec_hash, partitions=live.build_inputs.partitions
        )
    return reference


def _phase(last_phase: Any, state: RolloutState) -> Phase:
    if state.candidate is not None and state.candidate.spec_hash != state.failed_hash:
        return "CuttingOver" if last_phase == "CuttingOver" else "HydratingCandidate"
    if state.previous is not None:
        return "Retiring"
    if last_phase in ("Pending", "Provisioning"):
        return "Provisioning"
    if last_phase == "Failed":
        return "Failed"
    return "Ready" if last_phase in get_args(Phase) and last_phase != "Hydrating" else "Hydrating"


def _rebuild_state(
    identity: Identity,
    status: Mapping[str, Any],
    live_revisions: Mapping[int, LiveRevision],
    service: int | None,
    now: float,
) -> RolloutState:
    """Rebuild the state from live objects: the Service selects the active revision, a higher one is the candidate, a lower one
    the previous."""
    there = sorted(
        n for n, live in live_revisions.items() if {"ConfigMap", "StatefulSet"} & live.objects.keys()
    )
    if not there:
        return RolloutState(history=_history(status))
    active = service if service in there else min(there, key=lambda n: (not live_revisions[n].ready, n))
    state = RolloutState(
        active=_reference_from_objects(identity, live_revisions[active], now),
        candidate=_reference_from_objects(identity, live_revisions[there[-1]], now)
        if there[-1] > active
        else None,
        previous=_reference_from_objects(identity, live_revisions[there[0]], now)
        if there[0] < active
        else None,
        history=_history(status),
    )
    return replace(state, phase=_phase(None, state))


def _reference_from_objects(identity: Identity, live: LiveRevision, now: float) -> RevisionReference:
    made = live.objects.get("ConfigMap", {}).get("metadata", {}).get("creationTimestamp")
    application_id = _application_id(identity, live.number, None, live)
    return _with_record(RevisionReference(live.number, "", _at(made, now), 0, application_id), live)


def _at(text: Any, now: float) -> float:
    """Return a time of status. A time that is invalid or in the future becomes `now`, so that an edited deadline still passes."""
    at = seconds_of(text)
    return now if at is None else min(at, now)


def _history(status: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    there = status.get("history")
    entries = there if isinstance(there, list) else []
    return tuple(entry for entry in entries if isinstance(entry, Mapping))[:_HISTORY_MAX]


# --- writing


def _nodes(inputs: StatusInputs) -> Mapping[str, Any]:
    state, view, active = inputs.state, inputs.view, inputs.active
    if state.active is None or view is None:
        return {name: inputs.status.get(name) for name in ("nodes", "replicas", "selector")}
    wanted = 0 if view.suspended else view.spec.replicas
    selector = names.selector(view.name, state.active.number)
    return {
        "nodes": f"{len(active.ready & set(range(wanted)))}/{wanted}",
        "replicas": active.replicas,
        "selector": ",".join(f"{label}={value}" for label, value in selector.items()),
        "placementEpoch": _epoch(inputs, active),
    }


def _epoch(inputs: StatusInputs, active: LiveRevision) -> int | None:
    """Return the epoch to report. A placement that was rebuilt from nothing lowers it only after every node has reported."""
    there = inputs.status.get("placementEpoch") if _is_active(inputs) else None
    if active.record is None:
        return there
    epoch = active.record.placement.epoch
    all_reported = all_nodes_reported(active, inputs.observed.now)
    return epoch if all_reported or not isinstance(there, int) else max(epoch, there)


def _is_active(inputs: StatusInputs) -> bool:
    """Return whether the active revision was active in the last status."""
    active, there = inputs.state.active, inputs.status.get("active")
    name = there.get("revision") if isinstance(there, Mapping) else None
    return active is not None and name == names.revision_text(active.number)


def _partitions(inputs: StatusInputs) -> int | None:
    topic = inputs.observed.topic
    if isinstance(topic, TopicFound):
        return topic.partitions
    there = inputs.status.get("partitions")
    return there if isinstance(there, int) else None


def _revision(reference: RevisionReference) -> dict[str, Any]:
    return {
        "revision": names.revision_text(reference.number),
        "applicationId": reference.application_id,
        "specHash": reference.spec_hash,
        "since": text_of(reference.since),
        "totalPartitions": reference.partitions,
    }


def _active(inputs: StatusInputs) -> Mapping[str, Any] | None:
    reference = inputs.state.active
    if reference is None:
        return None
    return _revision(reference) | _progress(inputs, reference)


def _candidate(inputs: StatusInputs) -> Mapping[str, Any] | None:
    reference, view = inputs.state.candidate, inputs.view
    if reference is None:
        return None
    live, whole = inputs.live(reference), _revision(reference) | _progress(inputs, reference)
    whole["progress"] = f"{whole['hydratedPartitions']}/{reference.partitions}"
    whole["recordsPerSecond"] = _round(records_per_second(live))
    if (remaining := remaining_seconds(live)) is not None:
        whole["remainingSeconds"] = _round(remaining)
    if view is not None:
        whole["deadline"] = text_of(reference.since + view.rollout.hydration_deadline_seconds)
    if reference.caught_up_since is not None:
        whole["caughtUpSince"] = text_of(reference.caught_up_since)
    return whole


def _progress(inputs: StatusInputs, reference: RevisionReference) -> dict[str, Any]:
    live = inputs.live(reference)
    behind = lag(live)
    if behind is not None:
        return {"hydratedPartitions": hydrated_partitions(live), "lag": _round(behind)}
    there = _last_entry(inputs.status, reference)
    return {"hydratedPartitions": hydrated_partitions(live)} | (
        {"lag": there["lag"]} if "lag" in there else {}
    )


def _last_entry(status: Mapping[str, Any], reference: RevisionReference) -> Mapping[str, Any]:
    """Return the revision's entry in the last status."""
    entries: Iterable[Any] = (status.get("active"), status.get("candidate"))
    for entry in entries:
        if isinstance(entry, Mapping) and entry.get("revision") == names.revision_text(reference.number):
            return cast(Mapping[str, Any], entry)
    return {}


def _round(value: float) -> int:
    """Round to about one and a half digits, so that status does not change with every pass."""
    if value < 1:
        return 0
    step = max(1, 10 ** floor(log10(value)) // 2)
    return int(round(value / step) * step)
