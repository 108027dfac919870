"""Where a change of the view stands, and its next step: a table over what status says and what is seen.

Strategy: what is decided is in status before anything follows from it, and children follow the status that was *observed*.
So an operator that ends between any two actions goes on where it was. One step is taken in a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from queryable_app.wire.disk_format import FORMAT_VERSION
from queryable_app.wire.ingest_failures import IngestFailure
from queryable_operator.rollout.live import LiveRevision, text_of
from queryable_operator.spec import names
from queryable_operator.spec.changes import spec_hash
from queryable_operator.spec.observed import TopicFound, TopicObservation
from queryable_operator.spec.resource import Rollout, View

Phase = Literal[
    "Pending",
    "Provisioning",
    "Hydrating",
    "Failed",
    "Ready",
    "HydratingCandidate",
    "CuttingOver",
    "Retiring",
]
Outcome = Literal["Active", "Retired", "Failed", "Replaced"]

_CUT_OVER_SECONDS: Final = 60.0  # what a cut-over may take beyond the deadline
_HISTORY_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class RevisionReference:
    """A revision, as status names it."""

    number: int
    spec_hash: str
    since: float
    partitions: int
    application_id: str
    caught_up_since: float | None = None


@dataclass(frozen=True, slots=True)
class RolloutState:
    """All that is persisted of a change."""

    phase: Phase = "Pending"
    active: RevisionReference | None = None
    candidate: RevisionReference | None = None
    previous: RevisionReference | None = None
    """The last one that was active, or a candidate. What is left of it goes."""

    failed_hash: str | None = None
    failure: IngestFailure | None = None
    """Why the revision with this hash can never hydrate. None: it may have been slow."""

    history: tuple[Mapping[str, Any], ...] = ()

    @property
    def kept(self) -> tuple[RevisionReference, ...]:
        """The revisions that shall be there."""
        return tuple(named for named in (self.active, self.candidate) if named is not None)

    @property
    def changing(self) -> bool:
        return self.phase in ("HydratingCandidate", "CuttingOver")


@dataclass(frozen=True, slots=True)
class DesiredRevision:
    """The revision that the spec asks for."""

    spec_hash: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ObservedFacts:
    """What decides the next step."""

    now: float
    rollout: Rollout
    next_number: int
    next_application_id: str
    wish: DesiredRevision | None = None
    """None: it cannot be said at this time."""

    suspended: bool = False
    made: bool = False
    provisioned: bool = False
    available: bool = False
    """Of the active one: whether anything of it is there; whether its pods are; whether every partition is served."""

    active_refused: bool = False
    active_taken: bool = False
    """Whether the active one can never hydrate; whether its nodes say that nothing keeps it from hydrating."""

    refused: IngestFailure | None = None
    """Why the candidate can never hydrate."""

    caught_up: bool = False
    near: bool = False
    steady: bool = False
    """Of the candidate: whether every copy is complete and near the end; whether it is no further behind than it may be;
    whether as many pods of it are ready as the cut-over needs."""

    turned: bool = False
    """Whether the Service is seen to send requests to as many pods of the candidate."""

    previous_gone: bool = False


def next_rollout_state(course: RolloutState, facts: ObservedFacts) -> RolloutState:
    """The same when there is nothing to decide."""
    course = _with_facts(course, facts)
    for holds, step in _STEPS[course.phase]:
        if holds(course, facts):
            return step(course, facts)
    return course


def desired_revision(
    view: View,
    topic: TopicObservation | None,
    course: RolloutState,
    live_revisions: Mapping[int, LiveRevision],
) -> DesiredRevision | None:
    """While the topic is not seen, or is not there, nobody can say how many partitions a new revision would have."""
    if not isinstance(topic, TopicFound):
        return None
    for named in course.kept:
        live = live_revisions.get(named.number)
        record = live.record if live else None
        disk_format = FORMAT_VERSION
        if record is not None and view.image in (None, record.image):
            disk_format = record.disk_format  # the image that it runs can read what is there
        partitions = named.partitions if view.on_partitions_changed == "Alert" else topic.partitions
        if spec_hash(view.raw, partitions, disk_format) == named.spec_hash:
            return DesiredRevision(named.spec_hash, partitions)
    return DesiredRevision(spec_hash(view.raw, topic.partitions), topic.partitions)


def service_target(course: RolloutState, following: RolloutState) -> int | None:
    """The revision that the Service shall send requests to. It is turned while status says so, and not in the round in which
    that ends: whoever looks next may not see yet that it was."""
    if course.active is None:
        return None
    candidate = course.candidate
    if candidate is None or course.phase != "CuttingOver":
        return course.active.number
    goes_on = following.phase == "CuttingOver" or following.active != course.active
    return candidate.number if goes_on else course.active.number


# --- what holds


def _wished(course: RolloutState, facts: ObservedFacts) -> bool:
    return facts.wish is not None


def _another_is_wished(course: RolloutState, facts: ObservedFacts) -> bool:
    settled = [named.spec_hash for named in course.kept] + [course.failed_hash]
    return not facts.suspended and facts.wish is not None and facts.wish.spec_hash not in settled


def _active_is_wished(course: RolloutState, facts: ObservedFacts) -> bool:
    assert course.active is not None
    put_back = facts.wish is not None and facts.wish.spec_hash == course.active.spec_hash
    return put_back or facts.suspended


def _is_only_a_name(course: RolloutState, facts: ObservedFacts) -> bool:
    return not facts.made and _another_is_wished(course, facts)


def _is_provisioned(course: RolloutState, facts: ObservedFacts) -> bool:
    return facts.provisioned


def _is_available(course: RolloutState, facts: ObservedFacts) -> bool:
    return facts.available


def _is_done(course: RolloutState, facts: ObservedFacts) -> bool:
    candidate = course.candidate
    assert candidate is not None
    if facts.wish is None or facts.wish.spec_hash != candidate.spec_hash or candidate.caught_up_since is None:
        return False
    stable = facts.now - candidate.caught_up_since >= facts.rollout.stable_seconds
    return stable and facts.near and facts.steady


def _is_overdue(course: RolloutState, facts: ObservedFacts) -> bool:
    assert course.candidate is not None
    grace = _CUT_OVER_SECONDS if course.phase == "CuttingOver" else 0.0
    return facts.now >= course.candidate.since + facts.rollout.hydration_deadline_seconds + grace


def _is_refused(course: RolloutState, facts: ObservedFacts) -> bool:
    return facts.refused is not None


def _active_is_refused(course: RolloutState, facts: ObservedFacts) -> bool:
    return facts.active_refused


def _active_is_taken(course: RolloutState, facts: ObservedFacts) -> bool:
    return facts.active_taken


def _is_turned(course: RolloutState, facts: ObservedFacts) -> bool:
    return facts.turned


def _is_unsteady(course: RolloutState, facts: ObservedFacts) -> bool:
    """And the old one can do better."""
    return not facts.steady and facts.available


def _previous_is_gone(course: RolloutState, facts: ObservedFacts) -> bool:
    return facts.previous_gone


# --- what is done


def _make_first(course: RolloutState, facts: ObservedFacts) -> RolloutState:
    first = _named(facts)
    return replace(course, phase="Provisioning", active=first, history=_entered(course.history, first))


def _begin(course: RolloutState, facts: ObservedFacts) -> RolloutState:
    return replace(course, phase="HydratingCandidate", candidate=_named(facts))


def _replace_candidate(course: RolloutState, facts: ObservedFacts) -> RolloutState:
    return _begin(_dropped(course, facts, "Replaced", "The spec was changed again."), facts)


def _cancel(course: RolloutState, facts: ObservedFacts) -> RolloutState:
    reason = "The view was suspended." if facts.suspended else "The spec was put back."
    return _dropped(course, facts, "Replaced", reason)


def _fail(course: RolloutState, facts: ObservedFacts) -> RolloutState:
    assert course.candidate is not None
    failed, refused = course.candidate.spec_hash, facts.refused
    deadline = f"It was not hydrated within {facts.rollout.hydration_deadline_seconds:.0f} s."
    dropped = _dropped(course, facts, "Failed", refused.message if refused else deadline)
    following = replace(dropped, failed_hash=failed, failure=refused)
    if facts.rollout.on_failure == "DeleteCandidate":
        return following
    phase = _resting(course.previous, facts)
    return replace(following, phase=phase, candidate=course.candidate, previous=course.previous)


def _cut_over(course: RolloutState, facts: ObservedFacts) -> RolloutState:
    assert course.active is not None
    assert course.candidate is not None
    active = replace(course.candidate, since=facts.now, caught_up_since=None)
    history = _ended(course.history, course.active, facts.now, "Retired", f"r{active.number} took over.")
    return replace(
        course,
        phase="Retiring",
        active=active,
        candidate=None,
        previous=replace(course.active, since=facts.now),
        history=_entered(history, active),
    )


def _rest(course: RolloutState, facts: ObservedFacts) -> RolloutState:
    previous = None if facts.previous_gone else course.previous
    return replace(course, phase=_resting(previous, facts), previous=previous)


def _to(phase: Phase) -> Callable[[RolloutState, ObservedFacts], RolloutState]:
    return lambda course, facts: replace(course, phase=phase)


_Step = tuple[
    Callable[[RolloutState, ObservedFacts], bool], Callable[[RolloutState, ObservedFacts], RolloutState]
]
_BEGIN: Final[_Step] = (_another_is_wished, _begin)

# In each phase, the first that holds. A change that is cutting over is finished first: that takes seconds.
_STEPS: Final[Mapping[Phase, tuple[_Step, ...]]] = {
    "Pending": ((_wished, _make_first),),
    "Provisioning": ((_is_only_a_name, _make_first), _BEGIN, (_is_provisioned, _to("Hydrating"))),
    "Hydrating": (_BEGIN, (_is_available, _to("Ready")), (_active_is_refused, _to("Failed"))),
    "Failed": (_BEGIN, (_is_available, _to("Ready")), (_active_is_taken, _to("Hydrating"))),
    "Ready": (_BEGIN,),
    "HydratingCandidate": (
        (_active_is_wished, _cancel),
        (_another_is_wished, _replace_candidate),
        (_is_done, _to("CuttingOver")),
        (_is_refused, _fail),
        (_is_overdue, _fail),
    ),
    "CuttingOver": (
        (_is_turned, _cut_over),
        (_is_overdue, _fail),
        (_is_unsteady, _to("HydratingCandidate")),
    ),
    "Retiring": (_BEGIN, (_previous_is_gone, _rest)),
}


def _with_facts(course: RolloutState, facts: ObservedFacts) -> RolloutState:
    """What is noted rather than decided."""
    if facts.wish is not None and facts.wish.spec_hash != course.failed_hash:
        course = replace(course, failed_hash=None, failure=None)
    if course.changing and facts.previous_gone:
        course = replace(course, previous=None)
    candidate = course.candidate
    if candidate is not None and course.phase == "HydratingCandidate":
        since = (candidate.caught_up_since or facts.now) if facts.caught_up else None
        course = replace(course, candidate=replace(candidate, caught_up_since=since))
    return course


def _named(facts: ObservedFacts) -> RevisionReference:
    assert facts.wish is not None
    wish = facts.wish
    return RevisionReference(
        facts.next_number, wish.spec_hash, facts.now, wish.partitions, facts.next_application_id
    )


def _dropped(course: RolloutState, facts: ObservedFacts, outcome: Outcome, reason: str) -> RolloutState:
    """The candidate goes the way of a revision that was active: not before the Service cannot be sending to it."""
    candidate = course.candidate
    assert candidate is not None
    entered = _entered(course.history, candidate)
    history = _ended(entered, candidate, facts.now, outcome, reason)
    previous = replace(candidate, since=facts.now, caught_up_since=None)
    return replace(course, phase="Retiring", candidate=None, previous=previous, history=history)


def _resting(previous: RevisionReference | None, facts: ObservedFacts) -> Phase:
    if previous is not None:
        return "Retiring"
    return "Ready" if facts.available else "Hydrating"


def _entered(
    history: tuple[Mapping[str, Any], ...], named: RevisionReference
) -> tuple[Mapping[str, Any], ...]:
    entry = {
        "revision": names.revision_text(named.number),
        "specHash": named.spec_hash,
        "since": text_of(named.since),
        "outcome": "Active",
    }
    return (entry, *history)[:_HISTORY_MAX]


def _ended(
    history: tuple[Mapping[str, Any], ...],
    named: RevisionReference,
    now: float,
    outcome: Outcome,
    reason: str,
) -> tuple[Mapping[str, Any], ...]:
    ending = {"until": text_of(now), "outcome": outcome, "reason": reason}
    name = names.revision_text(named.number)
    return tuple(
        {**entry, **ending} if entry.get("revision") == name and "until" not in entry else entry
        for entry in history
    )
