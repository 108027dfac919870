"""What is done in the middle of a change of the view, seen at one moment of a history."""

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


@cache
def cutting_over() -> Observed:
    """The candidate r2 takes over from r1."""
    history = History.begin(3, replicas=3, standbyReplicas=1)
    history.settle()
    history.operator.resource["spec"]["topic"] = "others"
    history.changed()
    while history.operator.resource["status"]["phase"] != "CuttingOver":
        history.run_pass()
        history.pass_time(1)
    return history.operator.look()


def with_old_pods(observed: Observed, revision: str) -> Observed:
    children = {ref: copy.deepcopy(dict(live)) for ref, live in observed.children.items()}
    for ref, live in children.items():
        if ref.kind == "Pod" and ref.name.startswith(f"users-{revision}-"):
            live["metadata"]["labels"]["controller-revision-hash"] = "old"
    return replace(observed, children=children)


@pytest.mark.parametrize("revision", ["r1", "r2"])
def test_no_pod_is_rolled_while_the_service_is_turned(revision: str) -> None:
    """As many of the candidate's have to answer as the old revision has, and that one is what there is to fall back upon."""
    assert plan(with_old_pods(cutting_over(), revision), SETTINGS).evict == ()


def hydrating(**spec: Any) -> Observed:
    """The same a moment before: r2 has caught up for long enough."""
    resource = copy.deepcopy(dict(cutting_over().resource))
    resource["status"]["phase"] = "HydratingCandidate"
    resource["spec"].update(spec)
    return replace(cutting_over(), resource=resource)


def phase_after(observed: Observed) -> str:
    status = plan(observed, SETTINGS).status or observed.resource["status"]
    return str(status["phase"])


def test_pods_are_rolled_while_a_candidate_hydrates() -> None:
    """A change that takes an hour holds up no other one."""
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
def test_a_candidate_takes_over_when_it_is_no_further_behind_than_it_may_be(
    active: int, candidate: int, max_lag: int, phase: str
) -> None:
    """Than `maxLag` over all nodes, or than the revision that serves. One whose lag nobody knows does not."""
    rollout = {**cutting_over().resource["spec"]["rollout"], "maxLag": max_lag}
    lags = {1: active, 2: candidate}
    said = {
        revision: {ordinal: replace(one, lag_records=lags[revision]) for ordinal, one in nodes.items()}
        for revision, nodes in cutting_over().node_statuses.items()
    }

    assert phase_after(replace(hydrating(rollout=rollout), node_statuses=said)) == phase


def answering(service: str, pods: int) -> Observed:
    """The Service is seen at a revision, with so many pods of r2 behind it."""
    children = {ref: copy.deepcopy(dict(live)) for ref, live in cutting_over().children.items()}
    children[Ref("Service", "users")]["spec"]["selector"][names.REVISION_LABEL] = service
    endpoints = frozenset(f"users-r2-{ordinal}" for ordinal in range(pods))
    return replace(cutting_over(), children=children, endpoints=endpoints)


@pytest.mark.parametrize(
    ("service", "pods", "phase"),
    [("r1", 3, "CuttingOver"), ("r2", 2, "CuttingOver"), ("r2", 3, "Retiring")],
)
def test_a_cut_over_ends_when_the_service_is_seen_to_reach_the_candidate(
    service: str, pods: int, phase: str
) -> None:
    """It is turned, and as many pods answer behind it as before."""
    assert phase_after(answering(service, pods)) == phase


def test_the_epoch_in_status_is_that_of_the_revision_that_took_over() -> None:
    """Also while one of its nodes is silent: no later epoch of the one before is held against its ConfigMap."""
    turned = answering("r2", 3)
    resource = {**turned.resource, "status": {**turned.resource["status"], "placementEpoch": 99}}
    said = {
        1: turned.node_statuses[1],
        2: {ordinal: one for ordinal, one in turned.node_statuses[2].items() if ordinal != 1},
    }
    planned = plan(replace(turned, resource=resource, node_statuses=said), SETTINGS)

    assert planned.status is not None
    epoch = record_of(turned.children[Ref("ConfigMap", "users-r2")]).placement.epoch
    assert (planned.status["active"]["revision"], planned.status["placementEpoch"]) == ("r2", epoch)


def test_a_wrong_spec_cancels_no_candidate() -> None:
    """The last one that was right is followed, and that is the one that the candidate was made of."""
    assert phase_after(hydrating(replicas=1)) == "CuttingOver"


def test_more_partitions_replace_no_candidate_where_only_an_alert_is_asked_for() -> None:
    """It goes on with those that the topic had when it began."""
    observed = hydrating(onPartitionsChanged="Alert", topic="others")
    there = cutting_over().topic
    assert isinstance(there, TopicFound)
    planned = plan(replace(observed, topic=TopicFound(there.partitions + 2)), SETTINGS)

    assert planned.status is not None
    assert planned.status["candidate"]["revision"] == "r2"


def test_a_lost_node_of_a_candidate_is_replaced_however_often_copies_of_the_active_moved() -> None:
    """The epoch that status speaks of is the active revision's, and says nothing of the candidate's placement."""
    history = History.begin(3, replicas=3, standbyReplicas=1)
    history.settle()
    for replicas in (4, 3):
        ask(history, replicas=replicas)
        history.settle()
    rollout = history.operator.resource["spec"]["rollout"]
    ask(history, transform={"sql": NEVER}, rollout={**rollout, "hydrationDeadline": "1h"})
    go_on(history, seconds=30)
    host = history.cluster.api.objects[Ref("Pod", "users-r2-1")]["spec"]["nodeName"]
    history.cluster.lose_host(host)
    go_on(history, seconds=90)

    assert "users-r2-1" in " ".join(e.message for e in history.operator.events if e.reason == "NodeReplaced")
    assert history.cluster.api.objects[Ref("Pod", "users-r2-1")]["spec"]["nodeName"] != host


def ask(history: History, **fields: Any) -> None:
    history.operator.resource["spec"].update(fields)
    history.changed()


def go_on(history: History, seconds: int) -> None:
    for _ in range(seconds):
        history.run_pass()
        history.pass_time(1)
