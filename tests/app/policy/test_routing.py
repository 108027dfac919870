"""Test the order in which a request tries the replicas of a partition."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.placement.assignment import Placement
from queryable_app.policy.freshness import Consistency, ReadOptions
from queryable_app.policy.routing import LastHeartbeat, PeerStates, ReportedReplica, route

NOW = 100.0


def placed(*replicas: int, hydrating: tuple[int, ...] = (8,)) -> Placement:
    return Placement(
        1, "default.users.r1", tuple(f"http://n{i}" for i in range(9)), (replicas,), (hydrating,)
    )


def heartbeat(position: int = 50, lag_ms: int = 5, complete: bool = True, at: float = NOW) -> LastHeartbeat:
    return LastHeartbeat(at, 1, (0, 0, 0), {0: ReportedReplica(position, lag_ms, complete)})


@pytest.mark.parametrize(
    ("own", "suspected", "order"),
    [
        (0, frozenset(), (0, 1, 2, 8)),
        (1, frozenset(), (1, 0, 2, 8)),
        (7, frozenset(), (0, 1, 2, 8)),
        (7, frozenset({0}), (1, 2, 0, 8)),
        (7, frozenset({0, 1, 2}), (0, 1, 2, 8)),
        (1, frozenset({1}), (1, 0, 2, 8)),
        (2, frozenset({0}), (2, 1, 0, 8)),
        (8, frozenset(), (8, 0, 1, 2)),
    ],
    ids=[
        "active",
        "standby",
        "no replica",
        "suspected",
        "all suspected",
        "this node suspected",
        "both",
        "hydrating",
    ],
)
def test_order_of_replicas(own: int, suspected: frozenset[int], order: tuple[int, ...]) -> None:
    """This node comes first, suspected nodes after other serving replicas, hydrating replicas last, the rest as placed."""
    assert route(0, placed(0, 1, 2), own, PeerStates(suspected), NOW) == order


@pytest.mark.parametrize(
    ("first", "options", "order"),
    [
        (heartbeat(), ReadOptions(), (0, 1)),
        (heartbeat(complete=False), ReadOptions(), (1, 0)),
        (heartbeat(complete=False), ReadOptions(Consistency.ANY), (0, 1)),
        (heartbeat(complete=False, at=NOW - 9), ReadOptions(), (0, 1)),
        (LastHeartbeat(NOW, 2, (0, 0, 0), {}), ReadOptions(), (1, 0)),
        (heartbeat(lag_ms=300), ReadOptions(), (0, 1)),
        (heartbeat(lag_ms=300), ReadOptions(max_lag_ms=200), (1, 0)),
        (heartbeat(lag_ms=-1), ReadOptions(max_lag_ms=200), (1, 0)),
        (heartbeat(lag_ms=60_000), ReadOptions(), (1, 0)),
        (heartbeat(lag_ms=-1), ReadOptions(), (1, 0)),
        (heartbeat(position=4), ReadOptions(Consistency.AT_LEAST, min_positions={0: 9}), (1, 0)),
        (heartbeat(position=9), ReadOptions(Consistency.AT_LEAST, min_positions={0: 9}), (0, 1)),
        (heartbeat(position=4), ReadOptions(Consistency.AT_LEAST, 200, min_positions={0: 9}), (1, 0)),
        (heartbeat(position=9, lag_ms=300), ReadOptions(Consistency.AT_LEAST, 200, min_positions={0: 9}), (1, 0)),
    ],
    ids=[
        "fresh", "hydrating", "hydrating, any", "old heartbeat", "no replica", "no bound",
        "above the bound", "lag unknown", "large lag", "just restarted",
        "before the position", "at the position", "within the bound, before the position",
        "at the position, above the bound",
    ],
)  # fmt: skip
def test_replica_that_cannot_answer_comes_later(
    first: LastHeartbeat, options: ReadOptions, order: tuple[int, ...]
) -> None:
    """A replica that cannot answer this read, by its last heartbeat, comes after the others."""
    states = PeerStates(last_heartbeats={0: first, 1: heartbeat()})

    assert route(0, placed(0, 1, hydrating=()), 7, states, NOW, options) == order


def test_old_heartbeat_counts_as_long_as_it_is_current() -> None:
    """In a large view heartbeats are rarer, and the last one counts for longer."""
    last_heartbeats = {0: heartbeat(complete=False, at=NOW - 3), 1: heartbeat()}

    assert route(0, placed(0, 1, hydrating=()), 7, PeerStates(frozenset(), last_heartbeats, 4.0), NOW) == (
        1,
        0,
    )
    assert route(0, placed(0, 1, hydrating=()), 7, PeerStates(frozenset(), last_heartbeats, 2.0), NOW) == (
        0,
        1,
    )


@pytest.mark.parametrize(
    ("suspected", "lag_ms", "order"),
    [
        (frozenset(), 5, (1, 2, 0, 8)),
        (frozenset({1}), 5, (2, 0, 1, 8)),
        (frozenset(), 60_000, (2, 0, 1, 8)),
    ],
    ids=["after equal nodes", "before a suspected node", "before a large lag"],
)
def test_draining_node_comes_after_equal_nodes(
    suspected: frozenset[int], lag_ms: int, order: tuple[int, ...]
) -> None:
    """A draining node comes before nodes that are less likely to answer."""
    heartbeats = {0: replace(heartbeat(), draining=True), 1: heartbeat(lag_ms=lag_ms), 2: heartbeat()}
    assert route(0, placed(0, 1, 2), 7, PeerStates(suspected, heartbeats), NOW) == order


@given(
    st.permutations(range(6)),
    st.integers(0, 8),
    st.frozensets(st.integers(0, 8)),
    st.dictionaries(
        st.integers(0, 8), st.builds(heartbeat, complete=st.booleans(), lag_ms=st.integers(-1, 99_999))
    ),
)
def test_no_replica_is_left_out(
    replicas: list[int], own: int, suspected: frozenset[int], heartbeats: dict[int, LastHeartbeat]
) -> None:
    """Every replica is in the order once, and hydrating replicas come after serving ones."""
    order = route(0, placed(*replicas), own, PeerStates(suspected, heartbeats), NOW)

    assert sorted(order) == sorted([*replicas, 8])
    assert order[0 if own == 8 else -1] == 8


def test_hydrating_replica_is_tried_if_none_serves() -> None:
    """A hydrating replica is in the order, because it may serve under a newer placement."""
    assert route(0, placed(), 0, PeerStates(), NOW) == (8,)
