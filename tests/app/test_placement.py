"""The first placement and how a placement travels."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from queryable_app.placement import Placement, first_placement

NODES = st.integers(1, 12)
PARTITIONS = st.integers(1, 60)
COPIES = st.integers(1, 5)


def place(partitions: int, nodes: int, copies: int) -> Placement:
    return first_placement(
        "default.users.r1", partitions, [f"http://n{i}:8080" for i in range(nodes)], copies
    )


def spread(counts: Counter[int], nodes: int) -> int:
    each = [counts[node] for node in range(nodes)]
    return max(each) - min(each)


@given(PARTITIONS, NODES, COPIES)
def test_copies_of_a_partition_are_on_different_nodes(partitions: int, nodes: int, copies: int) -> None:
    """Every partition has as many copies as were asked for, or as there are nodes, each on its own."""
    for serving in place(partitions, nodes, copies).serving:
        assert len(serving) == len(set(serving)) == min(copies, nodes)
        assert set(serving) <= set(range(nodes))


@given(PARTITIONS, NODES, COPIES)
def test_first_copies_are_balanced(partitions: int, nodes: int, copies: int) -> None:
    """No node is asked first for more than one partition more than another."""
    assert spread(Counter(serving[0] for serving in place(partitions, nodes, copies).serving), nodes) <= 1


@given(PARTITIONS, NODES, COPIES)
def test_all_copies_are_balanced(partitions: int, nodes: int, copies: int) -> None:
    """No node holds more than one copy more than another."""
    assert (
        spread(Counter(o for serving in place(partitions, nodes, copies).serving for o in serving), nodes)
        <= 1
    )


@given(PARTITIONS, NODES, COPIES)
def test_held_by_is_the_other_side_of_serving(partitions: int, nodes: int, copies: int) -> None:
    """A node holds exactly the partitions that name it."""
    placement = place(partitions, nodes, copies)
    held = {(p, node) for node in range(nodes) for p in placement.held_by(node)}
    assert held == {(p, node) for p, serving in enumerate(placement.serving) for node in serving}


def test_a_hydrating_copy_is_held() -> None:
    """A node keeps the copies that it is still building."""
    placement = Placement(2, "default.users.r1", ("http://a", "http://b"), ((0,), (0,)), ((1,), ()))
    assert (placement.held_by(0), placement.held_by(1), placement.held_by(2)) == ((0, 1), (0,), ())


ORDINALS = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@given(
    st.integers(0, 2**40),
    st.text(max_size=20),
    st.lists(st.text(max_size=20), max_size=4).map(tuple),
    st.lists(st.tuples(ORDINALS, ORDINALS), max_size=6),
)
def test_a_placement_comes_back(
    epoch: int,
    application_id: str,
    addresses: tuple[str, ...],
    copies: list[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    """A placement is the same after a journey as JSON."""
    placement = Placement(
        epoch, application_id, addresses, tuple(s for s, _ in copies), tuple(h for _, h in copies)
    )
    assert Placement.from_json(placement.to_json()) == placement
