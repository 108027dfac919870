"""Test what a placement says about a node, and its text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queryable_app.placement.assignment import Placement, initial_placement


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 5))
def test_node_hosts_the_partitions_that_name_it(partitions: int, nodes: int, replicas: int) -> None:
    """A node hosts exactly the partitions whose placement names it."""
    addresses = tuple(f"http://n{i}:8080" for i in range(nodes))
    placement = initial_placement("default.users.r1", partitions, addresses, replicas)
    assigned = {(p, node) for node in range(nodes) for p in placement.assigned_to(node)}
    assert assigned == {(p, node) for p, serving in enumerate(placement.serving) for node in serving}


def test_hydrating_replica_is_assigned() -> None:
    """A node hosts the replicas that it hydrates."""
    placement = Placement(2, "default.users.r1", ("http://a", "http://b"), ((0,), (0,)), ((1,), ()))
    assert (placement.assigned_to(0), placement.assigned_to(1), placement.assigned_to(2)) == (
        (0, 1),
        (0,),
        (),
    )


ORDINALS = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@given(
    st.integers(0, 2**40),
    st.text(max_size=20),
    st.lists(st.text(max_size=20), max_size=4).map(tuple),
    st.lists(st.tuples(ORDINALS, ORDINALS), max_size=6),
)
def test_placement_survives_json(
    epoch: int,
    application_id: str,
    addresses: tuple[str, ...],
    replicas: list[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    """A placement is the same after it was written and parsed."""
    placement = Placement(
        epoch, application_id, addresses, tuple(s for s, _ in replicas), tuple(h for _, h in replicas)
    )
    assert Placement.from_json(placement.to_json()) == placement
