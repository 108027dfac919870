"""Test the progress of a revision, and which pod restarts next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from queryable_app.placement.assignment import Placement
from queryable_app.placement.controller import NodeObservation
from queryable_operator.build.settings_map import RevisionRecord
from queryable_operator.rollout.live_revision import LiveRevision, Pod
from queryable_operator.rollout.progress import is_available, is_caught_up, lag
from queryable_operator.rollout.rolling import next_to_roll
from queryable_operator.spec.observed import NodeStatus

NOW = 10_000.0
PLACEMENT = Placement(3, "default.users.r1", ("a", "b", "c"), ((0, 1), (1, 2)), ((), ()))
RECORD = RevisionRecord({}, PLACEMENT, {}, {}, "hash", "roll", 2, "image")
STATUS = NodeStatus(
    NodeObservation(NOW, 3, frozenset({0, 1})), True, {}, 2, 2, 5, 0.0, None, 2, "murmur2", 0, False
)
OBJECTS: Mapping[str, Mapping[str, Any]] = {
    "StatefulSet": {
        "metadata": {"generation": 1},
        "status": {"observedGeneration": 1, "updateRevision": "new"},
    },
    "Secret": {"metadata": {"creationTimestamp": "1970-01-01T00:00:00Z"}},
}


def pod(ordinal: int, template: str = "new", ready: bool = True, ending: float | None = None) -> Pod:
    return Pod(f"users-r1-{ordinal}", ready, NOW, NOW, "host", template, ending)


WHOLE = LiveRevision(1, OBJECTS, {n: pod(n) for n in range(3)}, {}, dict.fromkeys(range(3), STATUS), RECORD)


def with_pod(ordinal: int, other: Pod, live: LiveRevision = WHOLE) -> LiveRevision:
    return replace(live, pods={**live.pods, ordinal: other})


def with_status(ordinal: int, **fields: Any) -> LiveRevision:
    return replace(WHOLE, node_statuses={**WHOLE.node_statuses, ordinal: replace(STATUS, **fields)})


def placed(**fields: Any) -> LiveRevision:
    return replace(WHOLE, record=replace(RECORD, placement=replace(PLACEMENT, **fields)))


CASES: Mapping[str, tuple[LiveRevision, bool]] = {
    "every replica is complete": (WHOLE, True),
    "one replica hydrates": (placed(hydrating=((2,), ())), False),
    "one replica is missing": (placed(serving=((0,), (1, 2))), False),
    "one replica is not removed yet": (placed(serving=((0, 1, 2), (1, 2))), False),
    "a pod is not ready": (with_pod(1, pod(1, ready=False)), False),
    "a pod is not created yet": (replace(WHOLE, pods={0: pod(0), 1: pod(1)}), False),
    "a node lags": (with_status(1, seen=NodeObservation(NOW, 3, frozenset({0}))), False),
    "a node lags with a replica that it does not serve": (
        with_status(0, seen=NodeObservation(NOW, 3, frozenset({0}))),
        True,
    ),
    "the report of a node is too old": (
        with_status(1, seen=NodeObservation(NOW - 5, 3, frozenset({0, 1}))),
        False,
    ),
    "a node has not reported": (replace(WHOLE, node_statuses={0: STATUS, 1: STATUS}), False),
    "its ConfigMap cannot be read": (replace(WHOLE, record=None), False),
}


@pytest.mark.parametrize("case", CASES)
def test_revision_has_caught_up_when_all_replicas_have(case: str) -> None:
    """All pods, all replicas and a recent report of every node are required."""
    live, caught_up = CASES[case]

    assert is_caught_up(live, nodes=3, replicas=2, now=NOW) is caught_up


@pytest.mark.parametrize("case", [case for case, (live, caught_up) in CASES.items() if live.record])
def test_next_pod_restarts_only_then(case: str) -> None:
    """The pod that goes may have had the last caught-up replica."""
    live, caught_up = CASES[case]
    live = with_pod(0, pod(0, template="old"), live)
    assert live.record is not None

    assert next_to_roll(live, live.record.placement, 3, 2, NOW) == ("users-r1-0" if caught_up else None)


@pytest.mark.parametrize(("away", "available"), [((), True), ((1,), True), ((0, 2), True), ((0, 1), False)])
def test_revision_is_available_when_every_partition_is_served(away: tuple[int, ...], available: bool) -> None:
    """A partition is served by a complete replica on a ready pod; a hydrating replica does not count."""
    live = placed(hydrating=((2,), ()))
    for ordinal in away:
        live = with_pod(ordinal, pod(ordinal, ready=False), live)

    assert is_available(live) is available


def test_no_pod_restarts_while_one_terminates() -> None:
    """Neither the terminating pod nor another one is evicted."""
    live = with_pod(0, pod(0, template="old", ready=False), with_pod(2, pod(2, "old", False, NOW + 30)))

    assert next_to_roll(live, PLACEMENT, 3, 2, NOW) is None


def test_lag_is_known_when_every_node_reports_it() -> None:
    """A revision with unknown lag does not take over."""
    assert lag(WHOLE) == 15
    assert lag(with_status(1, lag_records=-1)) is None
    assert lag(replace(WHOLE, node_statuses={0: STATUS})) is None
