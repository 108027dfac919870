"""The order in which copies of a partition are asked."""

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


def heard(position: int = 50, lag_ms: int = 5, complete: bool = True, at: float = NOW) -> LastHeartbeat:
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
    ids=["active", "standby", "stranger", "suspect", "all suspect", "self suspect", "both", "hydrating"],
)
def test_route(own: int, suspected: frozenset[int], order: tuple[int, ...]) -> None:
    """This node comes first, suspects after other serving copies, copies being built last, the rest as placed."""
    assert route(0, placed(0, 1, 2), own, PeerStates(suspected), NOW) == order


@pytest.mark.parametrize(
    ("first", "asked", "order"),
    [
        (heard(), ReadOptions(), (0, 1)),
        (heard(complete=False), ReadOptions(), (1, 0)),
        (heard(complete=False), ReadOptions(Consistency.ANY), (0, 1)),
        (heard(complete=False, at=NOW - 9), ReadOptions(), (0, 1)),
        (LastHeartbeat(NOW, 2, (0, 0, 0), {}), ReadOptions(), (1, 0)),
        (heard(lag_ms=300), ReadOptions(), (0, 1)),
        (heard(lag_ms=300), ReadOptions(max_lag_ms=200), (1, 0)),
        (heard(lag_ms=-1), ReadOptions(max_lag_ms=200), (1, 0)),
        (heard(lag_ms=60_000), ReadOptions(), (1, 0)),
        (heard(lag_ms=-1), ReadOptions(), (1, 0)),
        (heard(position=4), ReadOptions(Consistency.AT_LEAST, min_positions={0: 9}), (1, 0)),
        (heard(position=9), ReadOptions(Consistency.AT_LEAST, min_positions={0: 9}), (0, 1)),
        (heard(position=4), ReadOptions(Consistency.AT_LEAST, 200, min_positions={0: 9}), (1, 0)),
        (heard(position=9, lag_ms=300), ReadOptions(Consistency.AT_LEAST, 200, min_positions={0: 9}), (1, 0)),
    ],
    ids=[
        "fresh", "being built", "being built, any", "said long ago", "has no copy", "within no bound",
        "behind the bound", "lag not known", "far behind", "just come back",
        "before the position", "at the position", "within the bound, before the position",
        "at the position, behind the bound",
    ],
)  # fmt: skip
def test_a_copy_known_to_fall_short_comes_later(
    first: LastHeartbeat, asked: ReadOptions, order: tuple[int, ...]
) -> None:
    """A copy of no use to this read, as its node said a moment ago, is asked after the others."""
    view = PeerStates(heard={0: first, 1: heard()})

    assert route(0, placed(0, 1, hydrating=()), 7, view, NOW, asked) == order


@pytest.mark.parametrize(
    ("suspected", "lag_ms", "order"),
    [
        (frozenset(), 5, (1, 2, 0, 8)),
        (frozenset({1}), 5, (2, 0, 1, 8)),
        (frozenset(), 60_000, (2, 0, 1, 8)),
    ],
    ids=["after its like", "before a suspect", "before one that is far behind"],
)
def test_a_node_that_will_end_soon_is_asked_last(
    suspected: frozenset[int], lag_ms: int, order: tuple[int, ...]
) -> None:
    """While it still answers, those that would answer no better come after it."""
    said = {0: replace(heard(), draining=True), 1: heard(lag_ms=lag_ms), 2: heard()}
    assert route(0, placed(0, 1, 2), 7, PeerStates(suspected, said), NOW) == order


@given(
    st.permutations(range(6)),
    st.integers(0, 8),
    st.frozensets(st.integers(0, 8)),
    st.dictionaries(
        st.integers(0, 8), st.builds(heard, complete=st.booleans(), lag_ms=st.integers(-1, 99_999))
    ),
)
def test_nobody_is_left_out(
    replicas: list[int], own: int, suspected: frozenset[int], told: dict[int, LastHeartbeat]
) -> None:
    """Whatever is known of them, every copy is in the order once, and one being built after all that serve."""
    order = route(0, placed(*replicas), own, PeerStates(suspected, told), NOW)

    assert sorted(order) == sorted([*replicas, 8])
    assert order[0 if own == 8 else -1] == 8


def test_a_partition_that_nobody_serves() -> None:
    """A copy that is being built is asked when there is no other: a newer placement may have it serve."""
    assert route(0, placed(), 0, PeerStates(), NOW) == (8,)
