"""Test the state table of a rollout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queryable_app.wire.ingest_failures import IngestFailure
from queryable_operator.report.status import rollout_state_of
from queryable_operator.rollout.live_revision import LiveRevision, Pod
from queryable_operator.rollout.revisions import next_rollout_state, service_target
from queryable_operator.rollout.rollout_state import (
    DesiredRevision,
    ObservedFacts,
    RevisionReference,
    RolloutState,
)
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
CASES = {
    "nothing is made while the topic is unknown": (RolloutState(), facts(None), "Pending"),
    "the first revision is named": (RolloutState(), facts(), "Provisioning"),
    "pods are waited for": (RolloutState("Provisioning", ACTIVE), facts(), "Provisioning"),
    "then copies": (RolloutState("Provisioning", ACTIVE), facts(active_provisioned=True), "Hydrating"),
    "until all are served": (RolloutState("Hydrating", ACTIVE), facts(active_available=True), "Ready"),
    "one that nodes refuse has failed": (
        RolloutState("Hydrating", ACTIVE),
        facts(active_cannot_hydrate=True),
        "Failed",
    ),
    "it stays failed while no node reports": (RolloutState("Failed", ACTIVE), facts(), "Failed"),
    "until nodes take it": (RolloutState("Failed", ACTIVE), facts(active_can_hydrate=True), "Hydrating"),
    "or another one is asked for": (
        RolloutState("Failed", ACTIVE),
        facts("b", active_cannot_hydrate=True, active_exists=True),
        "HydratingCandidate",
    ),
    "a copy that is refused later serves on": (
        RolloutState("Ready", ACTIVE),
        facts(active_available=True, active_cannot_hydrate=True),
        "Ready",
    ),
    "a candidate that nodes refuse is dropped at once": (
        RolloutState("HydratingCandidate", ACTIVE, CANDIDATE),
        facts("b", candidate_failure=REFUSED),
        "Retiring",
    ),
    "one that is refused but replaced is replaced": (
        RolloutState("HydratingCandidate", ACTIVE, CANDIDATE),
        facts("c", candidate_failure=REFUSED),
        "HydratingCandidate",
    ),
    "what is wanted stays": (RolloutState("Ready", ACTIVE), facts(), "Ready"),
    "what is made already is replaced": (
        RolloutState("Provisioning", ACTIVE),
        facts("b", active_exists=True),
        "HydratingCandidate",
    ),
    "another spec makes a candidate": (RolloutState("Ready", ACTIVE), facts("b"), "HydratingCandidate"),
    "also before the first was ready": (RolloutState("Hydrating", ACTIVE), facts("b"), "HydratingCandidate"),
    "not while it is unknown": (RolloutState("Ready", ACTIVE), facts(None), "Ready"),
    "not while it is suspended": (RolloutState("Ready", ACTIVE), facts("b", suspended=True), "Ready"),
    "not if it has failed": (RolloutState("Ready", ACTIVE, failed_hash="b"), facts("b"), "Ready"),
    "another one is tried then": (
        RolloutState("Ready", ACTIVE, failed_hash="b"),
        facts("c"),
        "HydratingCandidate",
    ),
    "a candidate hydrates": (
        RolloutState("HydratingCandidate", ACTIVE, CANDIDATE),
        facts("b"),
        "HydratingCandidate",
    ),
    "stable and steady, it takes over": (
        RolloutState("HydratingCandidate", ACTIVE, CAUGHT_UP),
        facts("b", candidate_caught_up=True, candidate_is_near=True, candidate_is_ready=True),
        "CuttingOver",
    ),
    "not while it is behind": (
        RolloutState("HydratingCandidate", ACTIVE, CAUGHT_UP),
        facts("b", candidate_caught_up=True, candidate_is_ready=True),
        "HydratingCandidate",
    ),
    "not with too few pods": (
        RolloutState("HydratingCandidate", ACTIVE, CAUGHT_UP),
        facts("b", candidate_caught_up=True, candidate_is_near=True),
        "HydratingCandidate",
    ),
    "not before it is stable": (
        RolloutState("HydratingCandidate", ACTIVE, replace(CAUGHT_UP, caught_up_since=NOW - 29)),
        facts("b", candidate_caught_up=True, candidate_is_near=True, candidate_is_ready=True),
        "HydratingCandidate",
    ),
    "not while the desired revision is unknown": (
        RolloutState("HydratingCandidate", ACTIVE, CAUGHT_UP),
        facts(None, candidate_caught_up=True, candidate_is_near=True, candidate_is_ready=True),
        "HydratingCandidate",
    ),
    "the spec put back drops it": (
        RolloutState("HydratingCandidate", ACTIVE, CANDIDATE),
        facts("a"),
        "Retiring",
    ),
    "suspension drops it": (
        RolloutState("HydratingCandidate", ACTIVE, CANDIDATE),
        facts("b", suspended=True),
        "Retiring",
    ),
    "the deadline drops it": (RolloutState("HydratingCandidate", ACTIVE, OVERDUE), facts("b"), "Retiring"),
    "one that is done in time is not late": (
        RolloutState("HydratingCandidate", ACTIVE, replace(OVERDUE, caught_up_since=NOW - 30)),
        facts("b", candidate_caught_up=True, candidate_is_near=True, candidate_is_ready=True),
        "CuttingOver",
    ),
    "the Service is waited for": (
        RolloutState("CuttingOver", ACTIVE, CAUGHT_UP),
        facts("b", candidate_is_ready=True),
        "CuttingOver",
    ),
    "it is turned": (
        RolloutState("CuttingOver", ACTIVE, CAUGHT_UP),
        facts("b", candidate_is_ready=True, service_switched=True),
        "Retiring",
    ),
    "whatever is wanted by then": (
        RolloutState("CuttingOver", ACTIVE, CAUGHT_UP),
        facts("c", candidate_is_ready=True, service_switched=True),
        "Retiring",
    ),
    "its pods went away": (
        RolloutState("CuttingOver", ACTIVE, CAUGHT_UP),
        facts("b", active_available=True),
        "HydratingCandidate",
    ),
    "the old one's too": (RolloutState("CuttingOver", ACTIVE, CAUGHT_UP), facts("b"), "CuttingOver"),
    "a spec that is put right at once needs no second revision": (
        RolloutState("Provisioning", ACTIVE),
        facts("b"),
        "Provisioning",
    ),
    "a cut-over has an end": (
        RolloutState("CuttingOver", ACTIVE, replace(OVERDUE, since=NOW - 3660)),
        facts("b", candidate_is_ready=True),
        "Retiring",
    ),
    "and some time beyond the deadline": (
        RolloutState("CuttingOver", ACTIVE, replace(OVERDUE, since=NOW - 3650)),
        facts("b", candidate_is_ready=True),
        "CuttingOver",
    ),
    "the old one goes": (RolloutState("Retiring", ACTIVE, previous=DROPPED), facts(), "Retiring"),
    "it has gone": (
        RolloutState("Retiring", ACTIVE, previous=DROPPED),
        facts(active_available=True, previous_removed=True),
        "Ready",
    ),
    "one that never served hydrates on": (
        RolloutState("Retiring", ACTIVE, previous=DROPPED),
        facts(previous_removed=True),
        "Hydrating",
    ),
    "a change need not wait for that": (
        RolloutState("Retiring", ACTIVE, previous=DROPPED),
        facts("b"),
        "HydratingCandidate",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_phase_has_its_next_phase(case: str) -> None:
    """The observed facts decide the next phase."""
    state, seen, expected = CASES[case]

    assert next_rollout_state(state, seen).phase == expected


def test_cut_over_makes_the_candidate_active() -> None:
    """The active hash changes in this step only."""
    state = next_rollout_state(
        RolloutState("CuttingOver", ACTIVE, CAUGHT_UP),
        facts("b", candidate_is_ready=True, service_switched=True),
    )
    assert state.active is not None
    assert state.previous is not None

    assert (state.active.number, state.active.spec_hash, state.active.since) == (2, "b", NOW)
    assert (state.previous.number, state.previous.since, state.candidate) == (1, NOW, None)


def test_dropped_candidate_retires_like_an_active_revision() -> None:
    """Its removal waits from now on: the Service may have sent it requests until this moment."""
    late = replace(CAUGHT_UP, since=NOW - 3660)
    put_back = next_rollout_state(RolloutState("HydratingCandidate", ACTIVE, late), facts("a"))
    failed = next_rollout_state(RolloutState("CuttingOver", ACTIVE, late), facts("b", active_available=True))

    for state in (put_back, failed):
        assert state.previous == replace(late, since=NOW, caught_up_since=None)


def test_failed_hash_is_remembered() -> None:
    """It is not tried again."""
    state = next_rollout_state(RolloutState("HydratingCandidate", ACTIVE, OVERDUE), facts("b"))

    assert (state.failed_hash, state.candidate, state.active) == ("b", None, ACTIVE)
    assert state.history[0]["outcome"] == "Failed"


def test_permanent_failure_is_remembered() -> None:
    """Hash and reason stay until the spec asks for something else."""
    state = next_rollout_state(
        RolloutState("HydratingCandidate", ACTIVE, CANDIDATE), facts("b", candidate_failure=REFUSED)
    )

    assert (state.failed_hash, state.failure, state.candidate) == ("b", REFUSED, None)
    assert (state.history[0]["outcome"], state.history[0]["reason"]) == ("Failed", REFUSED.message)
    assert next_rollout_state(state, facts("b")).failure == REFUSED
    assert next_rollout_state(state, facts("a")).failure is None


def test_failed_candidate_can_be_retained() -> None:
    """With onFailure: KeepCandidate it stays and never takes over."""
    seen = replace(facts("b"), rollout=replace(ROLLOUT, on_failure="KeepCandidate"))
    state = next_rollout_state(RolloutState("HydratingCandidate", ACTIVE, OVERDUE), seen)

    assert (state.failed_hash, state.candidate) == ("b", OVERDUE)
    assert service_target(state, next_rollout_state(state, seen)) == 1


def test_failure_is_forgotten_with_another_spec() -> None:
    """Reverting the spec and changing it again is another try."""
    assert next_rollout_state(RolloutState("Ready", ACTIVE, failed_hash="b"), facts("a")).failed_hash is None


def test_failure_is_remembered_while_the_topic_is_unknown() -> None:
    """An unreachable Kafka does not concern the spec."""
    assert next_rollout_state(RolloutState("Ready", ACTIVE, failed_hash="b"), facts(None)).failed_hash == "b"


def test_lagging_candidate_restarts_its_stable_time() -> None:
    """A candidate must have been caught up without interruption."""
    state = next_rollout_state(RolloutState("HydratingCandidate", ACTIVE, CAUGHT_UP), facts("b"))
    assert state.candidate is not None

    assert state.candidate.caught_up_since is None


def test_service_selects_the_candidate_during_the_cut_over_only() -> None:
    """In the pass that abandons the cut-over it selects the active revision."""
    hydrating, cutting = (RolloutState(p, ACTIVE, CAUGHT_UP) for p in ("HydratingCandidate", "CuttingOver"))

    assert service_target(hydrating, cutting) == 1
    assert service_target(cutting, cutting) == 2
    assert service_target(cutting, hydrating) == 1
    assert (
        service_target(
            cutting, next_rollout_state(cutting, facts("b", candidate_is_ready=True, service_switched=True))
        )
        == 2
    )


def test_history_has_ten_entries() -> None:
    """The newest comes first."""
    state = RolloutState("Ready", ACTIVE)
    for number in range(30):
        state = next_rollout_state(state, replace(facts(f"h{number}"), next_number=number + 2))
    assert len(state.history) == 10
    assert state.history[0]["revision"] == "r30"


def there(number: int, ready: bool) -> LiveRevision:
    pod = Pod(f"users-r{number}-0", ready, NOW, NOW, "host", "template", None)
    return LiveRevision(number, {"ConfigMap": {}, "StatefulSet": {}}, {0: pod})


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
    """The Service selects the active revision; without it the first ready one is active."""
    live_revisions = {number: there(number, number in ready) for number in (1, 2)}
    state = rollout_state_of(IDENTITY, {}, live_revisions, service, NOW)

    assert tuple(named and named.number for named in (state.active, state.candidate, state.previous)) == roles
