"""Test that any observation has a plan: deleted, emptied or invalid children, and a lost status."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_operator.decide.plan import plan
from queryable_operator.spec.observed import Observed, TopicFound, TopicMissing
from tests.operator.histories.history import History
from tests.operator.histories.operator import SETTINGS

WORDS = ("", "rubbish", "r7", "2026-01-01T00:00:00Z", "{}", "[]", "null", "[[1, 2], {}]")
SEEDS = 12
Path = tuple[Any, ...]


@given(st.integers(0, SEEDS - 1), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_invalid_children_have_a_plan(seed: int, chance: random.Random) -> None:
    """Deleted or invalid children raise nothing, and status has everything that is known or can be rebuilt."""
    observed = vandalised(moment(seed), chance)
    planned = plan(observed, SETTINGS)

    assert planned.requeue_seconds > 0


def test_resource_without_children_has_a_plan() -> None:
    """A resource without children has a plan, whatever its status is."""
    for seed in range(SEEDS):
        observed = moment(seed)
        for topic in (None, TopicFound(4), TopicMissing()):
            plan(replace(observed, children={}, node_statuses={}, topic=topic), SETTINGS)


@cache
def moment(seed: int) -> Observed:
    """Return an observation from the middle of a random history."""
    history = History.begin(seed)
    history.run_passes(12 + 2 * seed, fault_chance=0.2, crash_chance=0.2)
    return history.operator.observe()


def vandalised(observed: Observed, chance: random.Random) -> Observed:
    children = {ref: copy.deepcopy(dict(live)) for ref, live in observed.children.items()}
    resource = copy.deepcopy(dict(observed.resource))
    for _ in range(chance.randint(1, 6)):
        what = chance.randint(0, 5)
        if what == 0:
            vandalise(resource.setdefault("status", {}), chance)
        elif what == 1 and children:
            del children[chance.choice(list(children))]
        elif children:
            vandalise(children[chance.choice(list(children))], chance)
    condition = {
        number: {ordinal: one for ordinal, one in nodes.items() if chance.randint(0, 3)}
        for number, nodes in observed.node_statuses.items()
        if chance.randint(0, 4)
    }
    return replace(observed, children=children, resource=resource, node_statuses=condition)


def vandalise(whole: dict[str, Any], chance: random.Random) -> None:
    """Remove or empty a value, or replace it by another of its type, since the API server checks types."""
    paths = list(paths_in(whole))
    if not paths:
        return
    *parents, last = chance.choice(paths)
    holder: Any = whole
    for name in parents:
        holder = holder[name]
    if chance.randint(0, 2) == 0:
        holder.pop(last)
    else:
        holder[last] = other(holder[last], chance)


def other(value: Any, chance: random.Random) -> Any:
    match value:
        case dict():
            return {}
        case list():
            return []
        case bool():
            return not value
        case str():
            return chance.choice(WORDS)
        case _:
            return chance.choice((0, -1, 1_000_000))


def paths_in(value: Any, before: Path = ()) -> Iterator[Path]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for name, below in items:
        yield (*before, name)
        yield from paths_in(below, (*before, name))
