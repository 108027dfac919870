"""Who holds which partition: the first placement, and every way from one to another.

The histories are random and long, and "caught up" comes when it likes: late, for some copies only, and is taken back.
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

NODES = st.integers(1, 12)
PARTITIONS = st.integers(1, 60)
REPLICAS = st.integers(1, 5)
STEPS_MAX = 6  # hydrate, serve, let go; and orders of firsts in between


def addresses(nodes: int) -> tuple[str, ...]:
    return tuple(f"http://n{i}:8080" for i in range(nodes))


def place(partitions: int, nodes: int, replicas: int) -> Placement:
    return initial_placement("default.users.r1", partitions, addresses(nodes), replicas)


def listed(placement: Placement) -> set[tuple[int, int]]:
    return {(p, o) for p in range(placement.partitions) for o in holders(placement, p)}


def holders(placement: Placement, partition: int) -> tuple[int, ...]:
    return placement.serving[partition] + placement.hydrating[partition]


def without(placement: Placement, lost: set[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(o for o in serving if o not in lost) for serving in placement.serving)


def steps(placement: Placement, wanted: DesiredPlacement) -> Iterator[Placement]:
    """Every following placement when copies catch up at once."""
    while (following := next_placement(placement, wanted, listed(placement))) is not placement:
        placement = following
        yield placement


def reached(placement: Placement, wanted: DesiredPlacement) -> Placement:
    for count, following in enumerate(steps(placement, wanted)):
        assert count < STEPS_MAX
        placement = following
    return placement


def spread(counts: Counter[int], nodes: list[int]) -> int:
    each = [counts[node] for node in nodes]
    return max(each) - min(each)


def assert_balanced(placement: Placement, wanted: DesiredPlacement) -> None:
    assert spread(Counter(o for serving in placement.serving for o in serving), wanted.nodes) <= 1
    assert spread(Counter(serving[0] for serving in placement.serving), wanted.nodes) <= 1


def copied(before: Placement, after: Placement, wanted: DesiredPlacement) -> int:
    """Copies that nobody had before."""
    return len({c for c in listed(after) - listed(before) if c[1] not in wanted.lost})


def fewest(before: Placement, wanted: DesiredPlacement) -> int:
    """How many copies the best balanced placement has to make: a flow of least cost, found by trying every way."""
    replicas, nodes = min(wanted.replicas, len(wanted.nodes)), wanted.nodes
    edges: list[list[int]] = []  # from, to, room, cost; each followed by its way back
    numbers: dict[object, int] = {}

    def edge(start: object, end: object, room: int, cost: int) -> None:
        a, b = (numbers.setdefault(place, len(numbers)) for place in (start, end))
        edges.extend(([a, b, room, cost], [b, a, 0, -cost]))

    for partition in range(before.partitions):
        edge("source", partition, replicas, 0)
        for domain in {wanted.domain_of(o) for o in nodes}:
            edge(partition, (partition, domain), 1, 0)
        for node in nodes:
            has = node in holders(before, partition)
            edge((partition, wanted.domain_of(node)), ("node", node), 1, 0 if has else 1)
    for node in nodes:
        edge(("node", node), "sink", replicas * before.partitions // len(nodes), -1000)
        edge(("node", node), "sink", 1, 0)

    cost = 0
    for _ in range(replicas * before.partitions):
        cheapest: dict[int, tuple[int, int]] = {numbers["source"]: (0, -1)}
        changed = True
        while changed:
            changed = False
            for index, (start, end, room, price) in enumerate(edges):
                if (
                    room
                    and start in cheapest
                    and (end not in cheapest or cheapest[start][0] + price < cheapest[end][0])
                ):
                    cheapest[end] = (cheapest[start][0] + price, index)
                    changed = True
        place = numbers["sink"]
        cost += cheapest[place][0]
        while place != numbers["source"]:
            index = cheapest[place][1]
            edges[index][2] -= 1
            edges[index ^ 1][2] += 1
            place = edges[index][0]
    return cost % 1000


@given(PARTITIONS, NODES, REPLICAS)
def test_a_first_placement_is_balanced(partitions: int, nodes: int, replicas: int) -> None:
    """Every partition has as many copies as were asked for, or as there are nodes; copies and firsts are even."""
    placement = place(partitions, nodes, replicas)

    assert {len(serving) for serving in placement.serving} == {min(replicas, nodes)}
    assert all(len(serving) == len(set(serving)) for serving in placement.serving)
    assert_balanced(placement, DesiredPlacement(addresses(nodes), replicas))


@given(PARTITIONS, NODES, REPLICAS)
def test_what_is_as_wanted_stays(partitions: int, nodes: int, replicas: int) -> None:
    """The very same object comes back, whatever is caught up: nobody has to compare."""
    placement, wanted = place(partitions, nodes, replicas), DesiredPlacement(addresses(nodes), replicas)

    assert next_placement(placement, wanted, ()) is placement
    assert next_placement(placement, wanted, listed(placement)) is placement
    assert settled(placement, wanted)


@settings(deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 8), st.integers(1, 8), st.integers(1, 3), st.sets(st.integers(0, 7))
)
def test_another_number_of_nodes_moves_the_fewest_copies(
    partitions: int, before: int, after: int, replicas: int, lost: set[int]
) -> None:
    """As many are copied as a balanced placement needs, and not one more."""
    wanted = DesiredPlacement(addresses(after), replicas, lost=frozenset(lost))
    first = place(partitions, before, replicas)
    if not wanted.nodes:
        return

    moved = next_placement(first, wanted, listed(first))

    assert copied(first, moved, wanted) == fewest(replace(first, serving=without(first, lost)), wanted)
    assert_balanced(reached(first, wanted), wanted)


@given(PARTITIONS, st.integers(2, 12))
def test_fewer_standbys_copy_nothing(partitions: int, nodes: int) -> None:
    """The copies are there already."""
    first, wanted = place(partitions, nodes, 2), DesiredPlacement(addresses(nodes), 1)

    after = reached(first, wanted)

    assert copied(first, after, wanted) == 0
    assert_balanced(after, wanted)


@settings(deadline=None)
@given(st.integers(1, 24), st.integers(2, 12), st.integers(2, 4))
@example(21, 6, 4)  # where balance needs one more than one for each partition
def test_another_standby_copies_no_more_than_balance_needs(
    partitions: int, nodes: int, replicas: int
) -> None:
    """One more standby for each partition copies as few replicas as a balanced placement can."""
    first, wanted = place(partitions, nodes, replicas - 1), DesiredPlacement(addresses(nodes), replicas)

    after = reached(first, wanted)

    assert copied(first, after, wanted) == fewest(first, wanted)
    assert_balanced(after, wanted)


DOMAINS = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.sampled_from("abcd"[:n]), min_size=1, max_size=12).map(tuple)
)


@given(PARTITIONS, DOMAINS, REPLICAS)
def test_copies_are_in_as_many_domains_as_can_be(
    partitions: int, domains: tuple[str, ...], replicas: int
) -> None:
    """Whether nodes got their domains before or after they got their copies."""
    nodes, wanted = len(domains), DesiredPlacement(addresses(len(domains)), replicas, domains)

    for placement in (
        initial_placement("default.users.r1", partitions, addresses(nodes), replicas, domains),
        reached(place(partitions, nodes, replicas), wanted),
    ):
        for serving in placement.serving:
            assert len({domains[o] for o in serving}) == min(replicas, len(set(domains)))


@given(PARTITIONS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 11))
def test_domains_of_one_size_are_balanced(
    partitions: int, domains: int, nodes_each: int, replicas: int, lost: int
) -> None:
    """Domains cost no balance where it can be had with them."""
    names = tuple("abcd"[n % domains] for n in range(domains * nodes_each))
    wanted = DesiredPlacement(addresses(len(names)), min(replicas, domains), names)
    before = place(partitions, max(1, lost % len(names)), replicas)

    assert_balanced(reached(before, wanted), wanted)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(2, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_domains_cost_hardly_a_copy_more_than_the_fewest(
    partitions: int, domains: int, before: int, after: int, replicas: int
) -> None:
    """Chains of shifts are the shortest, not the cheapest: that is one copy now and then."""
    names = tuple("abcd"[n % domains] for n in range(domains * max(before, after)))
    each = min(replicas, domains)
    first = initial_placement(
        "tests.users.r1", partitions, addresses(domains * before), each, names[: domains * before]
    )
    wanted = DesiredPlacement(addresses(domains * after), each, names[: domains * after])

    moved = next_placement(first, wanted, listed(first))

    assert copied(first, moved, wanted) <= fewest(first, wanted) + 1


def test_a_small_domain_takes_more_rather_than_two_copies_in_one_domain() -> None:
    """Where balance and domains contradict one another, domains win: a standby in the same rack is none."""
    placement = initial_placement("default.users.r1", 6, addresses(3), 2, ("a", "a", "b"))

    assert Counter(o for serving in placement.serving for o in serving) == {0: 3, 1: 3, 2: 6}
    assert Counter(serving[0] for serving in placement.serving) == {0: 2, 1: 2, 2: 2}


def test_a_move_is_made_before_the_old_copy_goes() -> None:
    """Hydrating beside the old one, serving beside it, alone: three epochs, the middle one when it has caught up."""
    first, wanted = place(2, 1, 1), DesiredPlacement(addresses(2), 1)

    assert [(p.epoch, p.serving, p.hydrating) for p in steps(first, wanted)] == [
        (2, ((0,), (0,)), ((1,), ())),
        (3, ((1, 0), (0,)), ((), ())),
        (4, ((1,), (0,)), ((), ())),
    ]


def test_a_copy_that_is_not_caught_up_is_waited_for() -> None:
    """Nothing changes until it is, and the old copy stays while the new one has fallen behind again."""
    first, wanted = place(1, 1, 1), DesiredPlacement(addresses(2), 1)
    moving = replace(first, addresses=addresses(2), serving=((0,),), hydrating=((1,),))

    assert next_placement(moving, wanted, {(0, 0)}) is moving
    both = next_placement(moving, wanted, {(0, 0), (0, 1)})
    assert both.serving == ((1, 0),)
    assert next_placement(both, wanted, {(0, 0)}) is both
    assert next_placement(both, wanted, {(0, 0), (0, 1)}).serving == ((1,),)


def test_leaving_nodes_keep_their_address_until_they_hold_nothing() -> None:
    """Others have to reach them for as long as they serve."""
    first, wanted = place(4, 3, 1), DesiredPlacement(addresses(1), 1)

    *under_way, last = steps(first, wanted)

    assert {p.addresses for p in under_way} == {addresses(3)}
    assert last.addresses == addresses(1)


def test_copies_of_a_lost_node_go_at_once() -> None:
    """Where another copy serves; it is built anew on a node that is left."""
    first = place(2, 3, 2)
    wanted = DesiredPlacement(addresses(3), 2, lost=frozenset({0}))

    following = next_placement(first, wanted, ())

    assert following.assigned_to(0) == ()
    assert all(serving for serving in following.serving)


def test_the_only_copy_stays_listed_though_its_node_is_lost() -> None:
    """Until another one has been built: nothing better is known."""
    first, wanted = place(1, 2, 1), DesiredPlacement(addresses(2), 1, lost=frozenset({0}))

    waiting = next_placement(first, wanted, ())

    assert (waiting.serving, waiting.hydrating) == (((0,),), ((1,),))
    assert next_placement(waiting, wanted, {(0, 1)}).serving == ((1,),)


@given(PARTITIONS, st.integers(2, 8), st.integers(1, 8), st.integers(1, 3))
def test_a_change_that_is_taken_back_copies_nothing_more(
    partitions: int, before: int, after: int, replicas: int
) -> None:
    """What still lies where it was is taken again, and only a copy too many goes at once."""
    replicas = min(replicas, before, after)
    first, back = place(partitions, before, replicas), DesiredPlacement(addresses(before), replicas)
    changing = next_placement(first, DesiredPlacement(addresses(after), replicas), listed(first))

    following = next_placement(changing, back, listed(first))

    assert copied(changing, following, back) == 0
    assert_balanced(reached(changing, back), back)


@pytest.mark.parametrize("replicas", [0, -1])
def test_no_copy_at_all_is_refused(replicas: int) -> None:
    """It would mean to throw everything away."""
    with pytest.raises(ValueError, match="at least one replica"):
        DesiredPlacement(addresses(2), replicas)


def test_without_a_node_that_is_left_nothing_changes() -> None:
    """There is nowhere to put anything."""
    first = place(3, 2, 1)

    assert next_placement(first, DesiredPlacement(addresses(2), 1, lost=frozenset({0, 1})), ()) is first


CHANGES = st.lists(
    st.tuples(
        st.integers(1, 8),  # nodes
        st.integers(1, 4),  # copies
        st.integers(0, 3),  # domains; 0: every node is its own
        st.sets(st.integers(0, 7), max_size=2),  # lost
        st.integers(0, 8),  # steps before the next change
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 24), CHANGES, st.randoms(use_true_random=False), st.floats(0.0, 1.0))
def test_no_history_loses_a_copy_that_is_needed(
    partitions: int,
    changes: list[tuple[int, int, int, set[int], int]],
    chance: random.Random,
    likely: float,
) -> None:
    """Whatever is wanted, lost and caught up in whatever order: a world that keeps the data agrees with each step."""
    placement = place(partitions, 3, 2)
    whole = {(p, o) for p in range(partitions) for o in placement.serving[p]}  # built once, and kept since
    wanted = DesiredPlacement(addresses(3), 2)
    for nodes, replicas, domains, lost, count in changes:
        wanted = DesiredPlacement(
            addresses(nodes),
            replicas,
            tuple("abc"[n % domains] for n in range(nodes)) if domains else (),
            frozenset(lost),
        )
        whole -= {c for c in whole if c[1] in lost}
        for _ in range(count):
            whole |= {c for c in listed(placement) if chance.random() < likely and c[1] not in lost}
            caught_up = {c for c in whole if chance.random() < likely}
            following = next_placement(placement, wanted, caught_up)

            assert (following is placement) or following.epoch == placement.epoch + 1
            assert (following == placement) == (following is placement)
            for p in range(partitions):
                assert len(set(holders(following, p))) == len(holders(following, p))
                assert all(o < len(following.addresses) for o in holders(following, p))
                joined = set(following.serving[p]) - set(placement.serving[p])
                assert joined <= set(placement.hydrating[p])
                assert all((p, o) in caught_up for o in joined)
                had = {o for o in placement.serving[p] if (p, o) in caught_up}
                gone = {o for o in placement.serving[p] if o not in following.serving[p]} - lost
                assert not gone or len(had & set(following.serving[p])) >= min(replicas, len(wanted.nodes))
                assert following.serving[p]
                if any((p, o) in whole for o in placement.serving[p]):
                    assert any((p, o) in whole for o in following.serving[p])
            whole &= listed(following)
            placement = following

    if wanted.nodes:
        placement = reached(placement, wanted)
        assert settled(placement, wanted)
        assert not any(placement.hydrating)
        assert placement.addresses == wanted.addresses
        replicas = min(wanted.replicas, len(wanted.nodes))
        for serving in placement.serving:
            assert len(serving) == replicas
            assert set(serving) <= set(wanted.nodes)
            names = {wanted.domain_of(o) for o in wanted.nodes}
            assert len({wanted.domain_of(o) for o in serving}) == min(replicas, len(names))
        if not wanted.domains:
            assert_balanced(placement, wanted)


@given(PARTITIONS, NODES, REPLICAS)
def test_held_by_is_the_other_side_of_serving(partitions: int, nodes: int, replicas: int) -> None:
    """A node holds exactly the partitions that name it."""
    placement = place(partitions, nodes, replicas)
    held = {(p, node) for node in range(nodes) for p in placement.assigned_to(node)}
    assert held == {(p, node) for p, serving in enumerate(placement.serving) for node in serving}


def test_a_hydrating_copy_is_held() -> None:
    """A node keeps the copies that it is still building."""
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
def test_a_placement_comes_back(
    epoch: int,
    application_id: str,
    addresses: tuple[str, ...],
    replicas: list[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    """A placement is the same after a journey as JSON."""
    placement = Placement(
        epoch, application_id, addresses, tuple(s for s, _ in replicas), tuple(h for _, h in replicas)
    )
    assert Placement.from_json(placement.to_json()) == placement
