"""Test the plan in the middle of a rollout, at one moment of a history."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from queryable_operator.build.settings_map import record_of
from queryable_operator.decide.plan import plan
from queryable_operator.spec import names
from queryable_operator.spec.observed import Observed, Ref, TopicFound
from tests.operator.histories.history import History
from tests.operator.histories.nodes import NEVER
from tests.operator.histories.operator import SETTINGS
from tests.operator.histories.story import change


@cache
def cutting_over() -> Observed:
    """Return the observation in which the candidate r2 takes over from r1."""
    history = History.begin(3, replicas=3, standbyReplicas=1)
    history.settle()
    history.operator.resource["spec"]["topic"] = "others"
    history.changed()
    while history.operator.resource["status"]["phase"] != "CuttingOver":
        history.run_pass()
        history.pass_time(1)
    return history.operator.observe()


def with_old_pods(observed: Observed, revision: str) -> Observed:
    children = {ref: copy.deepcopy(dict(live)) for ref, live in observed.children.items()}
    for ref, live in children.items():
        if ref.kind == "Pod" and ref.name.startswith(f"users-{revision}-"):
            live["metadata"]["labels"]["controller-revision-hash"] = "old"
    return replace(observed, children=children)


@pytest.mark.parametrize("revision", ["r1", "r2"])
def test_no_pod_restarts_during_the_cut_over(revision: str) -> None:
    """Enough pods of the candidate must answer, and the old revision is the fallback."""
    assert plan(with_old_pods(cutting_over(), revision), SETTINGS).evict == ()


def hydrating(**spec: Any) -> Observed:
    """Return the observation before the cut-over, in which r2 has been caught up for long enough."""
    resource = copy.deepcopy(dict(cutting_over().resource))
    resource["status"]["phase"] = "HydratingCandidate"
    resource["spec"].update(spec)
    return replace(cutting_over(), resource=resource)


def phase_after(observed: Observed) -> str:
    status = plan(observed, SETTINGS).status or observed.resource["status"]
    return str(status["phase"])


def test_pods_restart_while_a_candidate_hydrates() -> None:
    """A rollout of an hour does not delay other changes."""
    assert plan(with_old_pods(hydrating(), "r1"), SETTINGS).evict == ("users-r1-2",)


@pytest.mark.parametrize(
    ("active", "candidate", "max_lag", "phase"),
    [
        (0, 0, 0, "CuttingOver"),
        (0, 1, 0, "HydratingCandidate"),
        (0, 100, 300, "CuttingOver"),
        (0, 101, 300, "HydratingCandidate"),
        (7, 7, 0, "CuttingOver"),
        (7, -1, 100, "HydratingCandidate"),
        (-1, 0, 0, "CuttingOver"),
    ],
)
def test_candidate_takes_over_within_the_maximum_lag(
    active: int, candidate: int, max_lag: int, phase: str
) -> None:
    """The limit is `maxLag` over all nodes, or the active revision's lag. A candidate with unknown lag does not take over."""
    rollout = {**cutting_over().resource["spec"]["rollout"], "maxLag": max_lag}
    lags = {1: active, 2: candidate}
    condition = {
        revision: {ordinal: replace(one, lag_records=lags[revision]) for ordinal, one in nodes.items()}
        for revision, nodes in cutting_over().node_statuses.items()
    }

    assert phase_after(replace(hydrating(rollout=rollout), node_statuses=condition)) == phase


def answering(service: str, pods: int) -> Observed:
    """Return an observation in which the Service selects a revision, with so many endpoints of r2."""
    children = {ref: copy.deepcopy(dict(live)) for ref, live in cutting_over().children.items()}
    children[Ref("Service", "users")]["spec"]["selector"][names.REVISION_LABEL] = service
    endpoints = frozenset(f"users-r2-{ordinal}" for ordinal in range(pods))
    return replace(cutting_over(), children=children, endpoints=endpoints)


@pytest.mark.parametrize(
    ("service", "pods", "phase"),
    [("r1", 3, "CuttingOver"), ("r2", 2, "CuttingOver"), ("r2", 3, "Retiring")],
)
def test_cut_over_ends_when_the_service_reaches_the_candidate(service: str, pods: int, phase: str) -> None:
    """The cut-over ends when the Service selects the candidate and as many pods answer as before."""
    assert phase_after(answering(service, pods)) == phase


def test_epoch_in_status_is_the_new_active_revisions() -> None:
    """After the cut-over status has the new revision's epoch, although a node is silent and the earlier epoch is later."""
    turned = answering("r2", 3)
    resource = {**turned.resource, "status": {**turned.resource["status"], "placementEpoch": 99}}
    node_statuses = {
        1: turned.node_statuses[1],
        2: {ordinal: one for ordinal, one in turned.node_statuses[2].items() if ordinal != 1},
    }
    planned = plan(replace(turned, resource=resource, node_statuses=node_statuses), SETTINGS)

    assert planned.status is not None
    epoch = record_of(turned.children[Ref("ConfigMap", "users-r2")]).placement.epoch
    assert (planned.status["active"]["revision"], planned.status["placementEpoch"]) == ("r2", epoch)


def test_invalid_spec_cancels_no_candidate() -> None:
    """The last valid spec, which made the candidate, stays in effect."""
    assert phase_after(hydrating(replicas=1)) == "CuttingOver"


def test_more_partitions_replace_no_candidate_with_alert() -> None:
    """The candidate continues with the partitions that it began with."""
    observed = hydrating(onPartitionsChanged="Alert", topic="others")
    there = cutting_over().topic
    assert isinstance(there, TopicFound)
    planned = plan(replace(observed, topic=TopicFound(there.partitions + 2)), SETTINGS)

    assert planned.status is not None
    assert planned.status["candidate"]["revision"] == "r2"


def test_lost_node_of_a_candidate_is_replaced_whatever_the_active_epoch() -> None:
    """The epoch in status is the active revision's and does not concern the candidate's placement."""
    history = History.begin(3, replicas=3, standbyReplicas=1)
    history.settle()
    for replicas in (4, 3):
        change(history, replicas=replicas)
        history.settle()
    rollout = history.operator.resource["spec"]["rollout"]
    change(history, transform={"sql": NEVER}, rollout={**rollout, "hydrationDeadline": "1h"})
    run_for(history, seconds=30)
    host = history.cluster.api.objects[Ref("Pod", "users-r2-1")]["spec"]["nodeName"]
    history.cluster.lose_host(host)
    run_for(history, seconds=90)

    assert "users-r2-1" in " ".join(e.message for e in history.operator.events if e.reason == "NodeReplaced")
    assert history.cluster.api.objects[Ref("Pod", "users-r2-1")]["spec"]["nodeName"] != host


def run_for(history: History, seconds: int) -> None:
    for _ in range(seconds):
        history.run_pass()
        history.pass_time(1)
