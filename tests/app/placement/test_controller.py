"""Test when the next step of a placement is due, and which replicas count as caught up."""

from __future__ import annotations

import pytest

from queryable_app.placement.assignment import DesiredPlacement, Placement
from queryable_app.placement.controller import NodeObservation, next_step, parse_observation

TWO = ("http://a", "http://b")
MOVING = Placement(5, "tests.users.r1", TWO, ((0,),), ((1,),))
ONLY_ONE = DesiredPlacement(TWO, 1)


@pytest.mark.parametrize(
    ("seen", "taken"),
    [
        ({0: NodeObservation(100, 5, frozenset({0})), 1: NodeObservation(100, 5, frozenset({0}))}, True),
        ({0: NodeObservation(100, 5, frozenset({0})), 1: NodeObservation(100, 5, frozenset())}, False),
        ({0: NodeObservation(100, 4, frozenset({0})), 1: NodeObservation(100, 5, frozenset({0}))}, False),
        ({0: NodeObservation(80, 4, frozenset({0})), 1: NodeObservation(100, 5, frozenset({0}))}, True),
        ({0: NodeObservation(100, 5, frozenset({0})), 1: NodeObservation(95, 5, frozenset({0}))}, False),
        ({1: NodeObservation(100, 5, frozenset({0}))}, True),
        ({}, False),
    ],
    ids=[
        "caught-up",
        "building",
        "one-is-behind",
        "that-one-is-silent",
        "old-observation",
        "never-observed",
        "none",
    ],
)
def test_next_step_needs_a_caught_up_replica_and_followers(
    seen: dict[int, NodeObservation], taken: bool
) -> None:
    """The next step is taken if the replica is caught up now, and every node that answers follows the last one."""
    assert (next_step(MOVING, ONLY_ONE, seen, now=100) is not MOVING) == taken


@pytest.mark.parametrize(
    ("state", "caught_up"),
    [
        ({}, True),
        ({"lagMs": 2_000}, True),
        ({"complete": False}, False),
        ({"failed": "a bad record"}, False),
        ({"damaged": None}, True),
        ({"damaged": "Corruption: block checksum mismatch"}, False),
        ({"lagMs": 2_001}, False),
        ({"lagMs": -1}, False),
    ],
    ids=["fresh", "small-lag", "building", "failed", "intact", "damaged", "large-lag", "unknown-lag"],
)
def test_caught_up_replica_is_complete_intact_and_near_the_end(
    state: dict[str, object], caught_up: bool
) -> None:
    """A replica is caught up if it is complete, has not failed, is not damaged, and lags little."""
    replica = {"partition": 3, "complete": True, "failed": None, "lagMs": 0, **state}

    seen = parse_observation({"epoch": 7, "partitions": [replica]}, now=100)

    assert seen == NodeObservation(100, 7, frozenset({3} if caught_up else set()))
