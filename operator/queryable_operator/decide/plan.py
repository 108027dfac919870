"""Decide the plan of one reconcile pass from one observation. Level-triggered: no memory, and no event is required.

`rollout` decides the next step of a rollout, which goes into status and nowhere else. All other actions (`desired_actions`)
follow from the *observed* status and objects: a ConfigMap before its StatefulSet, a placement in its ConfigMap before nodes
receive it, a switched Service before status says so, and that status before the old revision goes. A pass may end after any
part of its plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from queryable_app.config.topic_spec import SpecError
from queryable_operator.build.settings_map import RevisionRecord
from queryable_operator.decide import deletion
from queryable_operator.decide.actions import Plan
from queryable_operator.decide.desired_actions import ReconcilePass, desired_actions
from queryable_operator.decide.events import events_between
from queryable_operator.report.status import is_lost, rollout_state_of, service_of, status_of
from queryable_operator.rollout import placements
from queryable_operator.rollout.live_revision import LiveRevision, revisions_of
from queryable_operator.rollout.progress import (
    has_reported,
    is_available,
    is_caught_up,
    lag,
    permanent_failure,
)
from queryable_operator.rollout.revisions import desired_revision, next_rollout_state
from queryable_operator.rollout.rolling import outdated_pods
from queryable_operator.rollout.rollout_state import ObservedFacts, RolloutState
from queryable_operator.rollout.status_inputs import StatusInputs
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest, Observed, Ref
from queryable_operator.spec.pods import stated_workers
from queryable_operator.spec.quantity import quantity
from queryable_operator.spec.resource import View, identity_of, view_of
from queryable_operator.spec.settings import OperatorSettings
from queryable_operator.spec.workers import check_nodes

_STEP_SECONDS: Final = 1.0
_HYDRATING_SECONDS: Final = 3.0
_SETTLED_SECONDS: Final = 10.0


def plan(observed: Observed, settings: OperatorSettings) -> Plan:
    identity = identity_of(observed.resource)
    if identity.deleting:
        return deletion.plan_deletion(observed)
    there, live_revisions = observed.resource.get("status") or {}, revisions_of(observed)
    service = service_of(observed.children.get(Ref("Service", identity.name)))
    state = rollout_state_of(identity, there, live_revisions, service, observed.now)
    view, spec_error = _effective_view(observed.resource, state, live_revisions)
    if view is None or view.paused or is_lost(there, state):
        inputs = StatusInputs(observed, settings, identity, view, spec_error, state, live_revisions)
        return _with_status(Plan(), inputs)
    desired = desired_revision(view, observed.topic, state, live_revisions)
    following = next_rollout_state(state, _facts(observed, view, state, live_revisions, service, desired))
    pass_ = ReconcilePass(observed, settings, view, state, following, live_revisions, service)
    inputs = StatusInputs(
        observed=observed,
        settings=settings,
        identity=identity,
        view=view,
        spec_error=spec_error,
        state=following,
        live_revisions=live_revisions,
        desired=desired,
        moving=pass_.is_moving,
        rolling=pass_.is_rolling,
        lost_record=pass_.has_lost_record,
    )
    return _with_status(desired_actions(pass_), inputs)


def _with_status(work: Plan, inputs: StatusInputs) -> Plan:
    """Add the new status to a plan, and the events that follow from it."""
    status = status_of(inputs)
    changed = status != inputs.status
    return replace(
        work,
        status=status if changed else None,
        events=(*work.events, *(events_between(inputs.status, status) if changed else ())),
        requeue_seconds=_requeue_seconds(work, inputs),
    )


def _requeue_seconds(work: Plan, inputs: StatusInputs) -> float:
    """Return when to requeue: soon if the next step waits for this one, later if only time passes."""
    state, before = inputs.state, inputs.status.get("phase")
    waits = bool(
        work.node_updates
        or work.evict
        or work.delete
        or work.force_delete
        or work.token_secrets
        or work.certificate
    )
    candidate_caught_up = state.candidate is not None and state.candidate.caught_up_since is not None
    if (
        waits
        or inputs.moving
        or inputs.rolling
        or candidate_caught_up
        or state.phase in ("Provisioning", "CuttingOver")
    ):
        return _STEP_SECONDS
    if state.phase != before:
        return _STEP_SECONDS
    return _SETTLED_SECONDS if state.phase in ("Pending", "Failed", "Ready") else _HYDRATING_SECONDS


def _effective_view(
    resource: Manifest, state: RolloutState, live_revisions: Mapping[int, LiveRevision]
) -> tuple[View | None, str | None]:
    """Return the view of the spec, or of the last valid one with the reason why the current spec is invalid."""
    record = next(
        (live_revisions[n.number].record for n in reversed(state.retained) if n.number in live_revisions),
        None,
    )
    try:
        view = view_of(resource)
        spec_error = _change_error(view, record)
        if spec_error is None:
            return view, None
    except SpecError as error:
        spec_error = str(error)
    if record is None:
        return None, spec_error
    paused = resource["spec"].get("paused") is True
    try:
        return view_of({**resource, "spec": {**record.spec, "paused": paused}}), spec_error
    except SpecError:
        return None, spec_error


def _change_error(view: View, record: RevisionRecord | None) -> str | None:
    """Return why the change is rejected: of an immutable field, most of which the API server rejects, or to more nodes than a
    placement can name."""
    if record is None:
        return None
    if stated_workers(view.raw) is None:  # the revision keeps the workers that it was made with
        check_nodes(view.spec.replicas, record.layout)
    there, storage = record.spec.get("storage", {}), view.raw["storage"]
    for field in ("storageClassName", "ephemeral"):
        if field in there and there.get(field) != storage.get(field):
            return f"spec.storage.{field}: the field is immutable; create a new resource"
    if "size" in there and quantity(storage["size"]) < quantity(there["size"]):
        return "spec.storage.size: a volume cannot shrink; create a new resource"
    return None


def _facts(
    observed: Observed,
    view: View,
    state: RolloutState,
    live_revisions: Mapping[int, LiveRevision],
    service: int | None,
    desired: Any,
) -> ObservedFacts:
    def live(reference: Any) -> LiveRevision:
        return (
            live_revisions.get(reference.number, LiveRevision(reference.number))
            if reference
            else LiveRevision(0)
        )

    active, candidate = live(state.active), live(state.candidate)
    pods, replicas = view.spec.replicas, placements.replication_factor(view)
    # As many as the Service has now, or all pods if the spec asks for fewer.
    needed = max(1, min(len(active.ready), pods))
    answering = {candidate.pods[index].name for index in candidate.ready} & observed.endpoints
    number = _next_number(state, live_revisions)
    behind, most = lag(candidate), max(view.rollout.max_lag, lag(active) or 0)
    return ObservedFacts(
        now=observed.now,
        rollout=view.rollout,
        next_number=number,
        next_application_id=names.application_id(view.namespace, view.name, number, view.uid),
        desired=desired,
        suspended=view.suspended,
        active_exists=active.number in live_revisions,
        active_provisioned=len(active.pods) >= pods and all(pod.host for pod in active.pods.values()),
        active_available=is_available(active),
        active_cannot_hydrate=permanent_failure(active) is not None,
        active_can_hydrate=has_reported(active) and permanent_failure(active) is None,
        candidate_failure=permanent_failure(candidate),
        candidate_caught_up=is_caught_up(candidate, pods, replicas, observed.now)
        and not outdated_pods(candidate),
        candidate_is_near=behind is not None and behind <= most,
        candidate_is_ready=len(candidate.ready) >= needed,
        service_switched=service == candidate.number and len(answering) >= needed,
        previous_removed=state.previous is not None and state.previous.number not in live_revisions,
    )


def _next_number(state: RolloutState, live_revisions: Mapping[int, LiveRevision]) -> int:
    """Return a revision number that was never used before, as far as known."""
    reference = [reference.number for reference in (*state.retained, state.previous) if reference]
    past = [names.revision_number(str(entry.get("revision"))) or 0 for entry in state.history]
    return 1 + max([*reference, *past, *live_revisions], default=0)
