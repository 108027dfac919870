"""Test the initial placement, and the steps from one placement to another.

The histories are random and long. Replicas catch up late, or only some of them, or lag again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queryable_app.placement.assignment import (
    DesiredPlacement,
    Placement,
    initial_placement,
    next_placement,
    settled,
)
from tests.support.placement_oracle import fewest_copied, hosts

NODES = st.integers(1, 12)
PARTITIONS = st.integers(1, 60)
REPLICAS = st.integers(1, 5)
STEPS_MAX = 6  # hydrate, serve, remove; and orders of active replicas in between


def addresses(nodes: int) -> tuple[str, ...]:
    return tuple(f"http://n{i}:8080" for i in range(nodes))


def place(partitions: int, nodes: int, replicas: int) -> Placement:
    return initial_placement("default.users.r1", partitions, addresses(nodes), replicas)


def listed(placement: Placement) -> set[tuple[int, int]]:
    return {(p, o) for p in range(placement.partitions) for o in hosts(placement, p)}


def without(placement: Placement, lost: set[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(o for o in serving if o not in lost) for serving in placement.serving)


def steps(placement: Placement, desired: DesiredPlacement) -> Iterator[Placement]:
    """Yield every next placement, if replicas catch up at once."""
    while (following := next_placement(placement, desired, listed(placement))) is not placement:
        placement = following
        yield placement


def reached(placement: Placement, desired: DesiredPlacement) -> Placement:
    for count, following in enumerate(steps(placement, desired)):
        assert count < STEPS_MAX
        placement = following
    return placement


def spread(counts: Counter[int], nodes: list[int]) -> int:
    each = [counts[node] for node in nodes]
    return max(each) - min(each)


def assert_balanced(placement: Placement, desired: DesiredPlacement) -> None:
    assert spread(Counter(o for serving in placement.serving for o in serving), desired.nodes) <= 1
    assert spread(Counter(serving[0] for serving in placement.serving), desired.nodes) <= 1


def copied(before: Placement, after: Placement, desired: DesiredPlacement) -> int:
    """Count the replicas that are new on their node."""
    return len({c for c in listed(after) - listed(before) if c[1] not in desired.lost})


@given(PARTITIONS, NODES, REPLICAS)
def test_initial_placement_is_balanced(partitions: int, nodes: int, replicas: int) -> None:
    """Every partition has its replicas, at most one on a node, and replicas and active replicas are balanced."""
    placement = place(partitions, nodes, replicas)

    assert {len(serving) for serving in placement.serving} == {min(replicas, nodes)}
    assert all(len(serving) == len(set(serving)) for serving in placement.serving)
    assert_balanced(placement, DesiredPlacement(addresses(nodes), replicas))


@given(PARTITIONS, NODES, REPLICAS)
def test_desired_placement_stays(partitions: int, nodes: int, replicas: int) -> None:
    """A placement that is as desired is returned as the same object."""
    placement, desired = place(partitions, nodes, replicas), DesiredPlacement(addresses(nodes), replicas)

    assert next_placement(placement, desired, ()) is placement
    assert next_placement(placement, desired, listed(placement)) is placement
    assert settled(placement, desired)


@settings(deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 8), st.integers(1, 8), st.integers(1, 3), st.sets(st.integers(0, 7))
)
def test_change_of_nodes_copies_the_fewest_replicas(
    partitions: int, before: int, after: int, replicas: int, lost: set[int]
) -> None:
    """A change of nodes copies exactly as many replicas as a balanced placement needs."""
    desired = DesiredPlacement(addresses(after), replicas, lost=frozenset(lost))
    first = place(partitions, before, replicas)
    if not desired.nodes:
        return

    moved = next_placement(first, desired, listed(first))

    assert copied(first, moved, desired) == fewest_copied(
        replace(first, serving=without(first, lost)), desired
    )
    assert_balanced(reached(first, desired), desired)


@given(PARTITIONS, st.integers(2, 12))
def test_fewer_standbys_copy_nothing(partitions: int, nodes: int) -> None:
    """A smaller replication factor copies no replica."""
    first, desired = place(partitions, nodes, 2), DesiredPlacement(addresses(nodes), 1)

    after = reached(first, desired)

    assert copied(first, after, desired) == 0
    assert_balanced(after, desired)


@settings(deadline=None)
@given(st.integers(1, 24), st.integers(2, 12), st.integers(2, 4))
@example(21, 6, 4)  # balance needs more than one for each partition
def test_another_standby_copies_no_more_than_balance_needs(
    partitions: int, nodes: int, replicas: int
) -> None:
    """One more standby for each partition copies as few replicas as a balanced placement can."""
    first, desired = place(partitions, nodes, replicas - 1), DesiredPlacement(addresses(nodes), replicas)

    after = reached(first, desired)

    assert copied(first, after, desired) == fewest_copied(first, desired)
    assert_balanced(after, desired)


DOMAINS = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.sampled_from("abcd"[:n]), min_size=1, max_size=12).map(tuple)
)


@given(PARTITIONS, DOMAINS, REPLICAS)
def test_replicas_are_in_as_many_domains_as_possible(
    partitions: int, domains: tuple[str, ...], replicas: int
) -> None:
    """Replicas spread over domains, also if the nodes get their domains later."""
    nodes, desired = len(domains), DesiredPlacement(addresses(len(domains)), replicas, domains)

    for placement in (
        initial_placement("default.users.r1", partitions, addresses(nodes), replicas, domains),
        reached(place(partitions, nodes, replicas), desired),
    ):
        for serving in placement.serving:
            assert len({domains[o] for o in serving}) == min(replicas, len(set(domains)))


@given(PARTITIONS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 11))
def test_domains_of_equal_size_are_balanced(
    partitions: int, domains: int, nodes_each: int, replicas: int, lost: int
) -> None:
    """Replicas are balanced if the domains allow it."""
    names = tuple("abcd"[n % domains] for n in range(domains * nodes_each))
    desired = DesiredPlacement(addresses(len(names)), min(replicas, domains), names)
    before = place(partitions, max(1, lost % len(names)), replicas)

    assert_balanced(reached(before, desired), desired)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(2, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_domains_cost_at_most_one_copy_more_than_the_fewest(
    partitions: int, domains: int, before: int, after: int, replicas: int
) -> None:
    """Chains of moves are the shortest and not the cheapest, which costs at most one copy."""
    names = tuple("abcd"[n % domains] for n in range(domains * max(before, after)))
    each = min(replicas, domains)
    first = initial_placement(
        "tests.users.r1", partitions, addresses(domains * before), each, names[: domains * before]
    )
    desired = DesiredPlacement(addresses(domains * after), each, names[: domains * after])

    moved = next_placement(first, desired, listed(first))

    assert copied(first, moved, desired) <= fewest_copied(first, desired) + 1


@settings(deadline=None)
@given(
    st.integers(1, 12),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 15),
    st.integers(1, 3),
)
def test_inner_domains_count_before_the_outer_ones(
    partitions: int, zones: list[str], workers: int, replicas: int, before: int, standby: int
) -> None:
    """No pod has two replicas of a partition while another has none, and among pods the zones are used evenly."""
    domains = tuple(f"{zone}/pod-{pod}" for pod, zone in enumerate(zones) for _ in range(workers))
    replicas = min(replicas, len(zones))
    desired = DesiredPlacement(addresses(len(domains)), replicas, domains)

    for placement in (
        initial_placement("tests.users.r1", partitions, addresses(len(domains)), replicas, domains),
        reached(place(partitions, before, standby), desired),
    ):
        assert settled(placement, desired)
        for serving in placement.serving:
            pods = {ordinal // workers for ordinal in serving}
            assert len(pods) == replicas
            used = Counter(zones[pod] for pod in pods)
            free = {zones[pod] for pod in range(len(zones)) if pod not in pods}
            assert all(used[zone] <= used[other] + 1 for zone in used for other in free)


def test_domains_are_nested_equally_deep() -> None:
    """A desired placement whose domains are nested differently is a mistake of its caller."""
    with pytest.raises(ValueError, match="equally deep"):
        DesiredPlacement(addresses(2), 1, ("zone/pod", "zone"))


def test_domains_win_over_balance() -> None:
    """A small domain takes more replicas, because a standby in the same rack protects nothing."""
    placement = initial_placement("default.users.r1", 6, addresses(3), 2, ("a", "a", "b"))

    assert Counter(o for serving in placement.serving for o in serving) == {0: 3, 1: 3, 2: 6}
    assert Counter(serving[0] for serving in placement.serving) == {0: 2, 1: 2, 2: 2}


def test_new_replica_serves_before_the_old_one_is_removed() -> None:
    """A move takes three epochs: the new replica hydrates, serves beside the old one, and serves alone."""
    first, desired = place(2, 1, 1), DesiredPlacement(addresses(2), 1)

    assert [(p.epoch, p.serving, p.hydrating) for p in steps(first, desired)] == [
        (2, ((0,), (0,)), ((1,), ())),
        (3, ((1, 0), (0,)), ((), ())),
        (4, ((1,), (0,)), ((), ())),
    ]


def test_step_waits_until_the_replica_has_caught_up() -> None:
    """The old replica stays until the new one has caught up, and while it lags again."""
    first, desired = place(1, 1, 1), DesiredPlacement(addresses(2), 1)
    moving = replace(first, addresses=addresses(2), serving=((0,),), hydrating=((1,),))

    assert next_placement(moving, desired, {(0, 0)}) is moving
    both = next_placement(moving, desired, {(0, 0), (0, 1)})
    assert both.serving == ((1, 0),)
    assert next_placement(both, desired, {(0, 0)}) is both
    assert next_placement(both, desired, {(0, 0), (0, 1)}).serving == ((1,),)


def test_leaving_node_keeps_its_address_while_it_serves() -> None:
    """Peers reach a leaving node as long as it hosts a replica."""
    first, desired = place(4, 3, 1), DesiredPlacement(addresses(1), 1)

    *under_way, last = steps(first, desired)

    assert {p.addresses for p in under_way} == {addresses(3)}
    assert last.addresses == addresses(1)


def test_replicas_of_a_lost_node_are_removed_at_once() -> None:
    """A lost replica moves to another node if a second replica serves."""
    first = place(2, 3, 2)
    desired = DesiredPlacement(addresses(3), 2, lost=frozenset({0}))

    following = next_placement(first, desired, ())

    assert following.assigned_to(0) == ()
    assert all(serving for serving in following.serving)


def test_only_replica_stays_listed_on_a_lost_node() -> None:
    """The only replica of a partition stays listed until another one serves."""
    first, desired = place(1, 2, 1), DesiredPlacement(addresses(2), 1, lost=frozenset({0}))

    waiting = next_placement(first, desired, ())

    assert (waiting.serving, waiting.hydrating) == (((0,),), ((1,),))
    assert next_placement(waiting, desired, {(0, 1)}).serving == ((1,),)


def test_what_is_built_for_a_lost_replica_stays_until_another_one_has_caught_up() -> None:
    """A node that comes back without data takes nothing from the node that builds its replica."""
    first = place(2, 2, 1)
    waiting = next_placement(first, DesiredPlacement(addresses(2), 1, lost=frozenset({1})), {(0, 0)})
    assert (waiting.serving, waiting.hydrating) == (((0,), (1,)), ((), (0,)))

    back = DesiredPlacement(addresses(2), 1)
    assert next_placement(waiting, back, {(0, 0)}) is waiting
    assert next_placement(waiting, back, {(0, 0), (1, 1)}).hydrating == ((), ())
    assert next_placement(waiting, back, {(0, 0), (1, 0)}).serving[1] == (1, 0)


@given(PARTITIONS, st.integers(2, 8), st.integers(1, 8), st.integers(1, 3))
def test_reverted_change_copies_nothing(partitions: int, before: int, after: int, replicas: int) -> None:
    """A reverted change uses the replicas that are still there."""
    replicas = min(replicas, before, after)
    first, back = place(partitions, before, replicas), DesiredPlacement(addresses(before), replicas)
    changing = next_placement(first, DesiredPlacement(addresses(after), replicas), listed(first))

    following = next_placement(changing, back, listed(first))

    assert copied(changing, following, back) == 0
    assert_balanced(reached(changing, back), back)


@pytest.mark.parametrize("replicas", [0, -1])
def test_replication_factor_below_one_is_refused(replicas: int) -> None:
    """A partition has at least one replica."""
    with pytest.raises(ValueError, match="at least one replica"):
        DesiredPlacement(addresses(2), replicas)


def test_nothing_changes_if_all_nodes_are_lost() -> None:
    """Without a node, the placement stays."""
    first = place(3, 2, 1)

    assert next_placement(first, DesiredPlacement(addresses(2), 1, lost=frozenset({0, 1})), ()) is first


CHANGES = st.lists(
    st.tuples(
        st.integers(1, 8),  # nodes
        st.integers(1, 4),  # replicas
        st.integers(0, 3),  # domains; 0: every node is its own
        st.sets(st.integers(0, 7), max_size=2),  # lost
        st.integers(0, 8),  # steps before the next change
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 24), CHANGES, st.randoms(use_true_random=False), st.floats(0.0, 1.0))
def test_no_history_loses_a_needed_replica(
    partitions: int,
    changes: list[tuple[int, int, int, set[int], int]],
    chance: random.Random,
    likely: float,
) -> None:
    """Every step keeps the data, for random desired placements, losses and catch-ups."""
    placement = place(partitions, 3, 2)
    whole = {(p, o) for p in range(partitions) for o in placement.serving[p]}  # built once, and kept since
    desired = DesiredPlacement(addresses(3), 2)
    for nodes, replicas, domains, lost, count in changes:
        desired = DesiredPlacement(
            addresses(nodes),
            replicas,
            tuple("abc"[n % domains] for n in range(nodes)) if domains else (),
            frozenset(lost),
        )
        whole -= {c for c in whole if c[1] in lost}
        for _ in range(count):
            whole |= {c for c in listed(placement) if chance.random() < likely and c[1] not in lost}
            caught_up = {c for c in whole if chance.random() < likely}
            following = next_placement(placement, desired, caught_up)

            assert (following is placement) or following.epoch == placement.epoch + 1
            assert (following == placement) == (following is placement)
            for p in range(partitions):
                assert len(set(hosts(following, p))) == len(hosts(following, p))
                assert all(o < len(following.addresses) for o in hosts(following, p))
                joined = set(following.serving[p]) - set(placement.serving[p])
                assert joined <= set(placement.hydrating[p])
                assert all((p, o) in caught_up for o in joined)
                had = {o for o in placement.serving[p] if (p, o) in caught_up}
                removed = {o for o in placement.serving[p] if o not in following.serving[p]} - lost
                assert not removed or len(had & set(following.serving[p])) >= min(
                    replicas, len(desired.nodes)
                )
                assert following.serving[p]
                if any((p, o) in whole for o in placement.serving[p]):
                    assert any((p, o) in whole for o in following.serving[p])
            whole &= listed(following)
            placement = following

    if desired.nodes:
        placement = reached(placement, desired)
        assert settled(placement, desired)
        assert not any(placement.hydrating)
        assert placement.addresses == desired.addresses
        replicas = min(desired.replicas, len(desired.nodes))
        for serving in placement.serving:
            assert len(serving) == replicas
            assert set(serving) <= set(desired.nodes)
            names = {desired.domain_of(o) for o in desired.nodes}
            assert len({desired.domain_of(o) for o in serving}) == min(replicas, len(names))
        if not desired.domains:
            assert_balanced(placement, desired)
