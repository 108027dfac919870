"""Test the progress of a revision, and which pod restarts next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from queryable_app.placement.assignment import Placement
from queryable_app.placement.controller import NodeObservation
from queryable_operator.build.settings_map import RevisionRecord
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.pod import Pod
from queryable_operator.rollout.progress import is_available, is_caught_up, lag
from queryable_operator.rollout.rolling import next_to_roll
from queryable_operator.spec.observed import NodeStatus
from queryable_operator.spec.pods import PodIndex

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


WHOLE = LiveRevision(
    1, OBJECTS, {PodIndex(n): pod(n) for n in range(3)}, {}, dict.fromkeys(range(3), STATUS), RECORD
)


def with_pod(ordinal: int, other: Pod, live: LiveRevision = WHOLE) -> LiveRevision:
    return replace(live, pods={**live.pods, PodIndex(ordinal): other})


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
    "a pod is not created yet": (replace(WHOLE, pods={PodIndex(n): pod(n) for n in range(2)}), False),
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

    assert is_caught_up(live, pods=3, replicas=2, now=NOW) is caught_up


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


TWO_WORKERS = replace(
    RECORD, spec={"serve": {"workers": 2}}, placement=replace(PLACEMENT, serving=((0, 2), (3, 5)))
)
OF_SIX = replace(WHOLE, record=TWO_WORKERS, node_statuses=dict.fromkeys(range(6), STATUS))


@pytest.mark.parametrize("lagging", [None, *range(6)])
def test_pod_restarts_when_every_worker_of_the_others_has_caught_up(lagging: int | None) -> None:
    """A worker that lags with a replica holds up the restart of another pod, although its sibling has caught up."""
    live = with_pod(0, pod(0, template="old"), OF_SIX)
    if lagging is not None:
        behind = replace(STATUS, seen=NodeObservation(NOW, 3, frozenset()))
        live = replace(live, node_statuses={**live.node_statuses, lagging: behind})
    assert live.record is not None

    waits = lagging in (2, 3, 5)  # node 0 is in the pod that restarts, and nodes 1 and 4 serve nothing
    assert next_to_roll(live, live.record.placement, 3, 2, NOW) == (None if waits else "users-r1-0")


def test_pod_without_a_worker_is_behind() -> None:
    """A worker that has never reported holds up the restart, and the lag of the revision is unknown."""
    live = with_pod(0, pod(0, template="old"), OF_SIX)
    live = replace(live, node_statuses={n: STATUS for n in range(5)})
    assert live.record is not None

    assert next_to_roll(live, live.record.placement, 3, 2, NOW) is None
    assert lag(live) is None
    assert lag(OF_SIX) == 30


@pytest.mark.parametrize(("away", "available"), [((), True), ((0,), True), ((1,), False), ((0, 2), True)])
def test_partition_is_served_by_a_worker_of_a_ready_pod(away: tuple[int, ...], available: bool) -> None:
    """A pod that is not ready serves nothing with any of its workers."""
    placement = replace(PLACEMENT, serving=((0, 2), (3,)))
    live = replace(OF_SIX, record=replace(TWO_WORKERS, placement=placement))
    for index in away:
        live = with_pod(index, pod(index, ready=False), live)

    assert is_available(live) is available


def test_lag_is_known_when_every_node_reports_it() -> None:
    """A revision with unknown lag does not take over."""
    assert lag(WHOLE) == 15
    assert lag(with_status(1, lag_records=-1)) is None
    assert lag(replace(WHOLE, node_statuses={0: STATUS})) is None
