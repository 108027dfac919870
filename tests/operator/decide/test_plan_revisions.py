"""Test the state table of a rollout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queryable_app.wire.ingest_failures import IngestFailure
from queryable_operator.report.status import rollout_state_of
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.pod import Pod
from queryable_operator.rollout.revisions import next_rollout_state, service_target
from queryable_operator.rollout.rollout_state import (
    DesiredRevision,
    ObservedFacts,
    RevisionReference,
    RolloutState,
)
from queryable_operator.spec.pods import PodIndex
from queryable_operator.spec.resource import Identity, Rollout

NOW = 10_000.0
IDENTITY = Identity("shop", "users", "0b8a3f3e-6a7e-4a43-8f0a-6f1d9a6f3c51", 1, deleting=False)
ROLLOUT = Rollout(3600, 0, 30, "DeleteCandidate")
ACTIVE = RevisionReference(1, "a", 100, 4, "shop.users.r1")
CANDIDATE = RevisionReference(2, "b", NOW - 60, 4, "shop.users.r2")
CAUGHT_UP = replace(CANDIDATE, caught_up_since=NOW - 30)
OVERDUE = replace(CANDIDATE, since=NOW - 3600)
DROPPED = RevisionReference(0, "z", NOW - 5, 4, "shop.users.r0")


def facts(desired: str | None = "a", **given: bool | IngestFailure) -> ObservedFacts:
    revision = None if desired is None else DesiredRevision(desired, 4)
    return replace(ObservedFacts(NOW, ROLLOUT, 3, "shop.users.r3", revision), **given)  # type: ignore[arg-type]


REFUSED = IngestFailure("TransformRefused", "spec.transform.sql: line 1 pos 7")
PROVISIONING, READY = RolloutState("Provisioning", ACTIVE), RolloutState("Ready", ACTIVE)
FAILED, B_FAILED = RolloutState("Failed", ACTIVE), RolloutState("Ready", ACTIVE, failed_hash="b")
HYDRATING = RolloutState("Hydrating", ACTIVE)
CANDIDATE_HYDRATES = RolloutState("HydratingCandidate", ACTIVE, CANDIDATE)
CANDIDATE_IS_STABLE = RolloutState("HydratingCandidate", ACTIVE, CAUGHT_UP)
CANDIDATE_IS_OVERDUE = RolloutState("HydratingCandidate", ACTIVE, OVERDUE)
CUTTING_OVER = RolloutState("CuttingOver", ACTIVE, CAUGHT_UP)
RETIRING = RolloutState("Retiring", ACTIVE, previous=DROPPED)
TAKES_OVER = {"candidate_caught_up": True, "candidate_is_near": True, "candidate_is_ready": True}


def without(fact: str) -> dict[str, bool]:
    return {**TAKES_OVER, fact: False}


def hydrating(candidate: RevisionReference) -> RolloutState:
    return replace(CANDIDATE_HYDRATES, candidate=candidate)


def cutting_over_since(seconds: float) -> RolloutState:
    return replace(CUTTING_OVER, candidate=replace(OVERDUE, since=NOW - seconds))


FIRST_REVISION = {
    "waits for the topic": (RolloutState(), facts(None), "Pending"),
    "gets a number": (RolloutState(), facts(), "Provisioning"),
    "waits for its pods": (PROVISIONING, facts(), "Provisioning"),
    "hydrates on its pods": (PROVISIONING, facts(active_provisioned=True), "Hydrating"),
    "is ready when every partition is served": (HYDRATING, facts(active_available=True), "Ready"),
    "fails when nodes refuse it": (HYDRATING, facts(active_cannot_hydrate=True), "Failed"),
    "stays failed while no node reports": (FAILED, facts(), "Failed"),
    "hydrates again when nodes accept it": (FAILED, facts(active_can_hydrate=True), "Hydrating"),
    "gives way to another spec after its failure": (
        FAILED,
        facts("b", active_cannot_hydrate=True, active_exists=True),
        "HydratingCandidate",
    ),
    "gives way to another spec once its objects exist": (
        PROVISIONING,
        facts("b", active_exists=True),
        "HydratingCandidate",
    ),
    "takes another spec before its objects exist": (PROVISIONING, facts("b"), "Provisioning"),
}
ACTIVE_REVISION = {
    "serves though nodes refuse it later": (
        READY,
        facts(active_available=True, active_cannot_hydrate=True),
        "Ready",
    ),
    "stays with its spec": (READY, facts(), "Ready"),
    "gets a candidate for another spec": (READY, facts("b"), "HydratingCandidate"),
    "gets a candidate before it is ready": (HYDRATING, facts("b"), "HydratingCandidate"),
    "gets no candidate while the spec is unknown": (READY, facts(None), "Ready"),
    "gets no candidate while it is suspended": (READY, facts("b", suspended=True), "Ready"),
    "gets no candidate for a failed spec": (B_FAILED, facts("b"), "Ready"),
    "gets a candidate for another spec than the failed one": (B_FAILED, facts("c"), "HydratingCandidate"),
}
CANDIDATE_REVISION = {
    "hydrates": (CANDIDATE_HYDRATES, facts("b"), "HydratingCandidate"),
    "is dropped when nodes refuse it": (
        CANDIDATE_HYDRATES,
        facts("b", candidate_failure=REFUSED),
        "Retiring",
    ),
    "is replaced though nodes refuse it": (
        CANDIDATE_HYDRATES,
        facts("c", candidate_failure=REFUSED),
        "HydratingCandidate",
    ),
    "is dropped when the spec is reverted": (CANDIDATE_HYDRATES, facts("a"), "Retiring"),
    "is dropped when the view is suspended": (CANDIDATE_HYDRATES, facts("b", suspended=True), "Retiring"),
    "is dropped at its deadline": (CANDIDATE_IS_OVERDUE, facts("b"), "Retiring"),
    "takes over once stable": (CANDIDATE_IS_STABLE, facts("b", **TAKES_OVER), "CuttingOver"),
    "waits while it lags": (
        CANDIDATE_IS_STABLE,
        facts("b", **without("candidate_is_near")),
        "HydratingCandidate",
    ),
    "waits for its pods": (
        CANDIDATE_IS_STABLE,
        facts("b", **without("candidate_is_ready")),
        "HydratingCandidate",
    ),
    "waits until it is stable": (
        hydrating(replace(CAUGHT_UP, caught_up_since=NOW - 29)),
        facts("b", **TAKES_OVER),
        "HydratingCandidate",
    ),
    "waits while the spec is unknown": (CANDIDATE_IS_STABLE, facts(None, **TAKES_OVER), "HydratingCandidate"),
    "takes over at its deadline if it is stable": (
        hydrating(replace(OVERDUE, caught_up_since=NOW - 30)),
        facts("b", **TAKES_OVER),
        "CuttingOver",
    ),
}
CUT_OVER = {
    "waits for the Service": (CUTTING_OVER, facts("b", candidate_is_ready=True), "CuttingOver"),
    "ends when the Service has switched": (
        CUTTING_OVER,
        facts("b", candidate_is_ready=True, service_switched=True),
        "Retiring",
    ),
    "ends though the spec has changed": (
        CUTTING_OVER,
        facts("c", candidate_is_ready=True, service_switched=True),
        "Retiring",
    ),
    "goes back when the candidate loses its pods": (
        CUTTING_OVER,
        facts("b", active_available=True),
        "HydratingCandidate",
    ),
    "waits when both revisions lose their pods": (CUTTING_OVER, facts("b"), "CuttingOver"),
    "is abandoned a minute after the deadline": (
        cutting_over_since(3660),
        facts("b", candidate_is_ready=True),
        "Retiring",
    ),
    "continues for a minute after the deadline": (
        cutting_over_since(3650),
        facts("b", candidate_is_ready=True),
        "CuttingOver",
    ),
}
RETIREMENT = {
    "waits until the old revision is removed": (RETIRING, facts(), "Retiring"),
    "ends when the old revision is removed": (
        RETIRING,
        facts(active_available=True, previous_removed=True),
        "Ready",
    ),
    "continues the hydration of a revision that never served": (
        RETIRING,
        facts(previous_removed=True),
        "Hydrating",
    ),
    "does not delay another spec": (RETIRING, facts("b"), "HydratingCandidate"),
}
CASES = {
    f"{subject} {behaviour}": case
    for subject, cases in {
        "the first revision": FIRST_REVISION,
        "the active revision": ACTIVE_REVISION,
        "the candidate": CANDIDATE_REVISION,
        "the cut-over": CUT_OVER,
        "the retirement": RETIREMENT,
    }.items()
    for behaviour, case in cases.items()
}


@pytest.mark.parametrize("case", CASES)
def test_each_phase_has_its_next_phase(case: str) -> None:
    """Phase and observed facts decide the next phase of a rollout."""
    state, seen, expected = CASES[case]

    assert next_rollout_state(state, seen).phase == expected


def test_cut_over_makes_the_candidate_active() -> None:
    """Only a switched Service makes the candidate the active revision, and the earlier one the previous."""
    state = next_rollout_state(
        CUTTING_OVER,
        facts("b", candidate_is_ready=True, service_switched=True),
    )
    assert state.active is not None
    assert state.previous is not None

    assert (state.active.number, state.active.spec_hash, state.active.since) == (2, "b", NOW)
    assert (state.previous.number, state.previous.since, state.candidate) == (1, NOW, None)


def test_dropped_candidate_retires_like_an_active_revision() -> None:
    """The removal of a dropped candidate waits from now on: the Service may have sent it requests until this moment."""
    late = replace(CAUGHT_UP, since=NOW - 3660)
    put_back = next_rollout_state(hydrating(late), facts("a"))
    failed = next_rollout_state(replace(CUTTING_OVER, candidate=late), facts("b", active_available=True))

    for state in (put_back, failed):
        assert state.previous == replace(late, since=NOW, caught_up_since=None)


def test_failed_hash_is_remembered() -> None:
    """A failed candidate leaves its hash in the state, so that its spec is not tried again."""
    state = next_rollout_state(CANDIDATE_IS_OVERDUE, facts("b"))

    assert (state.failed_hash, state.candidate, state.active) == ("b", None, ACTIVE)
    assert state.history[0]["outcome"] == "Failed"


def test_permanent_failure_is_remembered() -> None:
    """Hash and reason of a permanent failure stay until the spec changes."""
    state = next_rollout_state(CANDIDATE_HYDRATES, facts("b", candidate_failure=REFUSED))

    assert (state.failed_hash, state.failure, state.candidate) == ("b", REFUSED, None)
    assert (state.history[0]["outcome"], state.history[0]["reason"]) == ("Failed", REFUSED.message)
    assert next_rollout_state(state, facts("b")).failure == REFUSED
    assert next_rollout_state(state, facts("a")).failure is None


def test_failed_candidate_can_be_retained() -> None:
    """With `onFailure: KeepCandidate` a failed candidate stays and never takes over."""
    seen = replace(facts("b"), rollout=replace(ROLLOUT, on_failure="KeepCandidate"))
    state = next_rollout_state(CANDIDATE_IS_OVERDUE, seen)

    assert (state.failed_hash, state.candidate) == ("b", OVERDUE)
    assert service_target(state, next_rollout_state(state, seen)) == 1


def test_failure_is_forgotten_with_another_spec() -> None:
    """Another spec clears the failed hash, so that a later change back is tried again."""
    assert next_rollout_state(B_FAILED, facts("a")).failed_hash is None


def test_failure_is_remembered_while_the_topic_is_unknown() -> None:
    """An unreachable Kafka does not clear the failed hash."""
    assert next_rollout_state(B_FAILED, facts(None)).failed_hash == "b"


def test_lagging_candidate_restarts_its_stable_time() -> None:
    """A candidate that lags once starts its stable time over."""
    state = next_rollout_state(CANDIDATE_IS_STABLE, facts("b"))
    assert state.candidate is not None

    assert state.candidate.caught_up_since is None


def test_service_selects_the_candidate_during_the_cut_over_only() -> None:
    """The Service selects the active revision again in the pass that abandons the cut-over."""
    switched = facts("b", candidate_is_ready=True, service_switched=True)

    assert service_target(CANDIDATE_IS_STABLE, CUTTING_OVER) == 1
    assert service_target(CUTTING_OVER, CUTTING_OVER) == 2
    assert service_target(CUTTING_OVER, CANDIDATE_IS_STABLE) == 1
    assert service_target(CUTTING_OVER, next_rollout_state(CUTTING_OVER, switched)) == 2


def test_history_has_ten_entries() -> None:
    """The history has the ten newest entries, the newest first."""
    state = READY
    for number in range(30):
        state = next_rollout_state(state, replace(facts(f"h{number}"), next_number=number + 2))
    assert len(state.history) == 10
    assert state.history[0]["revision"] == "r30"


def there(number: int, ready: bool) -> LiveRevision:
    pod = Pod(f"users-r{number}-0", ready, NOW, NOW, "host", "template", None)
    return LiveRevision(number, {"ConfigMap": {}, "StatefulSet": {}}, {PodIndex(0): pod})


@pytest.mark.parametrize(
    ("service", "ready", "roles"),
    [
        (1, {1, 2}, (1, 2, None)),
        (2, {1, 2}, (2, None, 1)),
        (None, {1, 2}, (1, 2, None)),
        (None, {2}, (2, None, 1)),
        (7, {2}, (2, None, 1)),
    ],
)
def test_lost_status_is_rebuilt(service: int | None, ready: set[int], roles: tuple[int | None, ...]) -> None:
    """The Service names the active revision of a rebuilt status; without it the first ready one is active."""
    live_revisions = {number: there(number, number in ready) for number in (1, 2)}
    state = rollout_state_of(IDENTITY, {}, live_revisions, service, NOW)

    assert tuple(named and named.number for named in (state.active, state.candidate, state.previous)) == roles
