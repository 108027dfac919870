"""Decide the next step of a rollout: a state table over status and observed facts.

A decision enters status before anything follows from it, and children follow the *observed* status. An operator that ends
between two actions therefore resumes where it was. One pass takes one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from queryable_app.wire.disk_format import FORMAT_VERSION
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.pod import text_of
from queryable_operator.rollout.rollout_state import (
    DesiredRevision,
    ObservedFacts,
    Outcome,
    Phase,
    RevisionReference,
    RolloutState,
)
from queryable_operator.spec import names
from queryable_operator.spec.changes import spec_hash
from queryable_operator.spec.observed import TopicFound, TopicObservation
from queryable_operator.spec.resource import View
from queryable_operator.spec.workers import desired_workers, with_workers

_CUT_OVER_SECONDS: Final = 60.0  # extra time for the cut-over, beyond the deadline
_HISTORY_MAX: Final = 10


def next_rollout_state(state: RolloutState, facts: ObservedFacts) -> RolloutState:
    """Return the next state, or the same one if there is nothing to decide."""
    state = _record_facts(state, facts)
    for holds, step in _STEPS[state.phase]:
        if holds(state, facts):
            return step(state, facts)
    return state


def desired_revision(
    view: View,
    topic: TopicObservation | None,
    state: RolloutState,
    live_revisions: Mapping[int, LiveRevision],
) -> DesiredRevision | None:
    """Return the desired revision, or None while the topic's partition count is unknown."""
    if not isinstance(topic, TopicFound):
        return None
    for reference in state.retained:
        live = live_revisions.get(reference.number)
        record = live.record if live else None
        disk_format = FORMAT_VERSION
        if record is not None and view.image in (None, record.image):
            disk_format = record.disk_format  # the image in use can read the existing data
        partitions = reference.partitions if view.on_partitions_changed == "Alert" else topic.partitions
        recorded = None if live is None or live.recorded_spec is None else live.layout.workers
        spec = with_workers(view.raw, desired_workers(view.raw, partitions, recorded))
        if spec_hash(spec, partitions, disk_format) == reference.spec_hash:
            return DesiredRevision(reference.spec_hash, partitions)
    spec = with_workers(view.raw, desired_workers(view.raw, topic.partitions))
    return DesiredRevision(spec_hash(spec, topic.partitions), topic.partitions)


def service_target(state: RolloutState, following: RolloutState) -> int | None:
    """Return the revision that the Service selects.

    The Service selects the candidate while status says `CuttingOver`, but not in the pass that leaves that phase without a
    cut-over: the next pass may not see the Service's last change yet.
    """
    if state.active is None:
        return None
    candidate = state.candidate
    if candidate is None or state.phase != "CuttingOver":
        return state.active.number
    goes_on = following.phase == "CuttingOver" or following.active != state.active
    return candidate.number if goes_on else state.active.number


# --- conditions of a step


def _revision_is_desired(state: RolloutState, facts: ObservedFacts) -> bool:
    return facts.desired is not None


def _other_revision_is_desired(state: RolloutState, facts: ObservedFacts) -> bool:
    settled = [reference.spec_hash for reference in state.retained] + [state.failed_hash]
    return not facts.suspended and facts.desired is not None and facts.desired.spec_hash not in settled


def _active_is_desired(state: RolloutState, facts: ObservedFacts) -> bool:
    assert state.active is not None
    put_back = facts.desired is not None and facts.desired.spec_hash == state.active.spec_hash
    return put_back or facts.suspended


def _active_is_not_created(state: RolloutState, facts: ObservedFacts) -> bool:
    return not facts.active_exists and _other_revision_is_desired(state, facts)


def _active_is_provisioned(state: RolloutState, facts: ObservedFacts) -> bool:
    return facts.active_provisioned


def _active_is_available(state: RolloutState, facts: ObservedFacts) -> bool:
    return facts.active_available


def _candidate_has_been_stable(state: RolloutState, facts: ObservedFacts) -> bool:
    candidate = state.candidate
    assert candidate is not None
    if (
        facts.desired is None
        or facts.desired.spec_hash != candidate.spec_hash
        or candidate.caught_up_since is None
    ):
        return False
    stable = facts.now - candidate.caught_up_since >= facts.rollout.stable_seconds
    return stable and facts.candidate_is_near and facts.candidate_is_ready


def _deadline_has_passed(state: RolloutState, facts: ObservedFacts) -> bool:
    assert state.candidate is not None
    grace = _CUT_OVER_SECONDS if state.phase == "CuttingOver" else 0.0
    return facts.now >= state.candidate.since + facts.rollout.hydration_deadline_seconds + grace


def _candidate_cannot_hydrate(state: RolloutState, facts: ObservedFacts) -> bool:
    return facts.candidate_failure is not None


def _active_cannot_hydrate(state: RolloutState, facts: ObservedFacts) -> bool:
    return facts.active_cannot_hydrate


def _active_can_hydrate(state: RolloutState, facts: ObservedFacts) -> bool:
    return facts.active_can_hydrate


def _service_is_switched(state: RolloutState, facts: ObservedFacts) -> bool:
    return facts.service_switched


def _candidate_is_no_longer_ready(state: RolloutState, facts: ObservedFacts) -> bool:
    """Return whether the candidate lost ready pods while the active revision still serves."""
    return not facts.candidate_is_ready and facts.active_available


def _previous_is_removed(state: RolloutState, facts: ObservedFacts) -> bool:
    return facts.previous_removed


# --- effects of a step


def _create_first(state: RolloutState, facts: ObservedFacts) -> RolloutState:
    first = _new_reference(facts)
    return replace(state, phase="Provisioning", active=first, history=_with_entry(state.history, first))


def _start_candidate(state: RolloutState, facts: ObservedFacts) -> RolloutState:
    return replace(state, phase="HydratingCandidate", candidate=_new_reference(facts))


def _replace_candidate(state: RolloutState, facts: ObservedFacts) -> RolloutState:
    return _start_candidate(_drop_candidate(state, facts, "Replaced", "The spec changed again."), facts)


def _cancel(state: RolloutState, facts: ObservedFacts) -> RolloutState:
    reason = "The view was suspended." if facts.suspended else "The spec was reverted."
    return _drop_candidate(state, facts, "Replaced", reason)


def _fail(state: RolloutState, facts: ObservedFacts) -> RolloutState:
    assert state.candidate is not None
    failed, candidate_failure = state.candidate.spec_hash, facts.candidate_failure
    deadline = f"It did not hydrate within {facts.rollout.hydration_deadline_seconds:.0f} s."
    dropped = _drop_candidate(
        state, facts, "Failed", candidate_failure.message if candidate_failure else deadline
    )
    following = replace(dropped, failed_hash=failed, failure=candidate_failure)
    if facts.rollout.on_failure == "DeleteCandidate":
        return following
    phase = _phase_after_retiring(state.previous, facts)
    return replace(following, phase=phase, candidate=state.candidate, previous=state.previous)


def _cut_over(state: RolloutState, facts: ObservedFacts) -> RolloutState:
    assert state.active is not None
    assert state.candidate is not None
    active = replace(state.candidate, since=facts.now, caught_up_since=None)
    history = _with_ending(state.history, state.active, facts.now, "Retired", f"r{active.number} took over.")
    return replace(
        state,
        phase="Retiring",
        active=active,
        candidate=None,
        previous=replace(state.active, since=facts.now),
        history=_with_entry(history, active),
    )


def _finish_retiring(state: RolloutState, facts: ObservedFacts) -> RolloutState:
    previous = None if facts.previous_removed else state.previous
    return replace(state, phase=_phase_after_retiring(previous, facts), previous=previous)


def _to(phase: Phase) -> Callable[[RolloutState, ObservedFacts], RolloutState]:
    return lambda state, facts: replace(state, phase=phase)


_Step = tuple[
    Callable[[RolloutState, ObservedFacts], bool], Callable[[RolloutState, ObservedFacts], RolloutState]
]
_START_CANDIDATE: Final[_Step] = (_other_revision_is_desired, _start_candidate)

# In each phase the first step whose condition holds is taken. A cut-over always finishes first; it takes seconds.
_STEPS: Final[Mapping[Phase, tuple[_Step, ...]]] = {
    "Pending": ((_revision_is_desired, _create_first),),
    "Provisioning": (
        (_active_is_not_created, _create_first),
        _START_CANDIDATE,
        (_active_is_provisioned, _to("Hydrating")),
        (_active_cannot_hydrate, _to("Failed")),
    ),
    "Hydrating": (
        _START_CANDIDATE,
        (_active_is_available, _to("Ready")),
        (_active_cannot_hydrate, _to("Failed")),
    ),
    "Failed": (
        _START_CANDIDATE,
        (_active_is_available, _to("Ready")),
        (_active_can_hydrate, _to("Hydrating")),
    ),
    "Ready": (_START_CANDIDATE,),
    "HydratingCandidate": (
        (_active_is_desired, _cancel),
        (_other_revision_is_desired, _replace_candidate),
        (_candidate_has_been_stable, _to("CuttingOver")),
        (_candidate_cannot_hydrate, _fail),
        (_deadline_has_passed, _fail),
    ),
    "CuttingOver": (
        (_service_is_switched, _cut_over),
        (_deadline_has_passed, _fail),
        (_candidate_is_no_longer_ready, _to("HydratingCandidate")),
    ),
    "Retiring": (_START_CANDIDATE, (_previous_is_removed, _finish_retiring)),
}


def _record_facts(state: RolloutState, facts: ObservedFacts) -> RolloutState:
    """Update the state with facts that need no decision."""
    if facts.desired is not None and facts.desired.spec_hash != state.failed_hash:
        state = replace(state, failed_hash=None, failure=None)
    if state.changing and facts.previous_removed:
        state = replace(state, previous=None)
    candidate = state.candidate
    if candidate is not None and state.phase == "HydratingCandidate":
        since = (candidate.caught_up_since or facts.now) if facts.candidate_caught_up else None
        state = replace(state, candidate=replace(candidate, caught_up_since=since))
    return state


def _new_reference(facts: ObservedFacts) -> RevisionReference:
    assert facts.desired is not None
    desired = facts.desired
    return RevisionReference(
        facts.next_number, desired.spec_hash, facts.now, desired.partitions, facts.next_application_id
    )


def _drop_candidate(state: RolloutState, facts: ObservedFacts, outcome: Outcome, reason: str) -> RolloutState:
    """Retire the candidate. Its objects go only after the Service can no longer select it."""
    candidate = state.candidate
    assert candidate is not None
    entered = _with_entry(state.history, candidate)
    history = _with_ending(entered, candidate, facts.now, outcome, reason)
    previous = replace(candidate, since=facts.now, caught_up_since=None)
    return replace(state, phase="Retiring", candidate=None, previous=previous, history=history)


def _phase_after_retiring(previous: RevisionReference | None, facts: ObservedFacts) -> Phase:
    if previous is not None:
        return "Retiring"
    return "Ready" if facts.active_available else "Hydrating"


def _with_entry(
    history: tuple[Mapping[str, Any], ...], reference: RevisionReference
) -> tuple[Mapping[str, Any], ...]:
    entry = {
        "revision": names.revision_text(reference.number),
        "specHash": reference.spec_hash,
        "since": text_of(reference.since),
        "outcome": "Active",
    }
    return (entry, *history)[:_HISTORY_MAX]


def _with_ending(
    history: tuple[Mapping[str, Any], ...],
    reference: RevisionReference,
    now: float,
    outcome: Outcome,
    reason: str,
) -> tuple[Mapping[str, Any], ...]:
    ending = {"until": text_of(now), "outcome": outcome, "reason": reason}
    name = names.revision_text(reference.number)
    return tuple(
        {**entry, **ending} if entry.get("revision") == name and "until" not in entry else entry
        for entry in history
    )
