"""What is done in the middle of a change of the view, seen at one moment of a history."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from queryable_operator.observed import Observed, Ref
from queryable_operator.plan import plan
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
        history.round()
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


def test_pods_are_rolled_while_a_candidate_hydrates() -> None:
    """A change that takes an hour holds up no other one."""
    resource = copy.deepcopy(dict(cutting_over().resource))
    resource["status"]["phase"] = "HydratingCandidate"
    hydrating = replace(cutting_over(), resource=resource)

    assert plan(with_old_pods(hydrating, "r1"), SETTINGS).evict == ("users-r1-2",)


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
        history.round()
        history.pass_time(1)
