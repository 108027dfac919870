"""The order in which copies of a partition are asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.placement import Placement
from queryable_app.routing import route


def placed(*copies: int) -> Placement:
    return Placement(1, "default.users.r1", tuple(f"http://n{i}" for i in range(9)), (copies,), ((8,),))


@pytest.mark.parametrize(
    ("own", "suspects", "order"),
    [
        (0, frozenset(), (0, 1, 2)),
        (1, frozenset(), (1, 0, 2)),
        (7, frozenset(), (0, 1, 2)),
        (7, frozenset({0}), (1, 2, 0)),
        (7, frozenset({0, 1, 2}), (0, 1, 2)),
        (1, frozenset({1}), (1, 0, 2)),
        (2, frozenset({0}), (2, 1, 0)),
        (8, frozenset(), (0, 1, 2)),
    ],
    ids=["active", "standby", "stranger", "suspect", "all suspect", "self suspect", "both", "hydrating"],
)
def test_route(own: int, suspects: frozenset[int], order: tuple[int, ...]) -> None:
    """This node comes first when it serves the partition, suspects last, the rest as placed."""
    assert route(0, placed(0, 1, 2), own, suspects) == order


@given(st.permutations(range(6)), st.integers(0, 8), st.frozensets(st.integers(0, 8)))
def test_nobody_is_left_out(copies: list[int], own: int, suspects: frozenset[int]) -> None:
    """Whoever is suspected, every serving copy is asked once."""
    assert sorted(route(0, placed(*copies), own, suspects)) == sorted(copies)


def test_a_partition_that_nobody_serves() -> None:
    """Nobody is asked for a partition that is still being built everywhere."""
    assert route(0, placed(), 0, frozenset()) == ()
