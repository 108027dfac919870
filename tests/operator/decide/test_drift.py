"""What a live object lacks of the wanted one, in words."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from queryable_operator.build.policies import disruption_budget, network_policy, service_account
from queryable_operator.build.services import client, headless
from queryable_operator.build.workload import pod_template, stateful_set
from queryable_operator.decide.drift import difference
from queryable_operator.spec.settings import OperatorSettings
from tests.support.view import FULL, SETTINGS, view

FULL_VIEW = view(**FULL)
TEMPLATE = pod_template(
    FULL_VIEW, 1, "shop.users.r1", "node:1", "0123456789abcdef", OperatorSettings("node:1")
)
STATEFUL_SET = stateful_set(FULL_VIEW, 1, TEMPLATE, 3)
OBJECTS = [
    STATEFUL_SET,
    headless(FULL_VIEW, 1),
    client(FULL_VIEW, 1),
    disruption_budget(FULL_VIEW, 1),
    network_policy(FULL_VIEW, SETTINGS),
    service_account(FULL_VIEW),
]
Path = tuple[str | int, ...]


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where something stands that is neither a mapping nor a list, nor empty."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from leaves(below, (*path, name))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from leaves(below, (*path, index))
    elif value != "":
        yield path


def nodes(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every mapping."""
    if isinstance(value, Mapping):
        yield path
        for name, below in value.items():
            yield from nodes(below, (*path, name))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from nodes(below, (*path, index))


def at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


PLACES = [(index, path) for index, of in enumerate(OBJECTS) for path in leaves(of)]
MAPPINGS = [(index, path) for index, of in enumerate(OBJECTS) for path in nodes(of)]


@pytest.mark.parametrize("of", OBJECTS, ids=lambda of: str(of["kind"]))
def test_an_object_has_everything_of_itself(of: Mapping[str, Any]) -> None:
    """What was applied and not touched is not applied again."""
    assert difference(of, copy.deepcopy(of)) is None


@given(st.sampled_from(PLACES))
def test_whatever_is_taken_away_is_missed(place: tuple[int, Path]) -> None:
    """No field can go without being noticed."""
    index, path = place
    live = copy.deepcopy(OBJECTS[index])
    del at(live, path[:-1])[path[-1]]

    assert difference(OBJECTS[index], live) is not None


@given(st.sampled_from(PLACES), st.text(min_size=1) | st.integers() | st.booleans())
def test_whatever_is_changed_is_noticed(place: tuple[int, Path], value: str | int) -> None:
    """No field can be given another value without being noticed."""
    index, path = place
    live = copy.deepcopy(OBJECTS[index])
    before = at(live, path)
    at(live, path[:-1])[path[-1]] = value

    found = difference(OBJECTS[index], live)
    assert (found is None) == (value == before and isinstance(value, bool) == isinstance(before, bool))


SELECTORS = [
    (index, path)
    for index, path in MAPPINGS
    if any("elector" in str(step) or step == "from" for step in path)
]
OTHERS = [place for place in MAPPINGS if place not in SELECTORS]


@given(st.sampled_from(OTHERS), st.text(min_size=10, max_size=10))
def test_what_others_add_stays(place: tuple[int, Path], name: str) -> None:
    """A label of another tool, and what the API server fills in, are no difference."""
    index, path = place
    live = copy.deepcopy(OBJECTS[index])
    assume(name not in at(live, path))
    at(live, path)[name] = {"any": "thing"}

    assert difference(OBJECTS[index], live) is None


@given(st.sampled_from(SELECTORS), st.text(min_size=10, max_size=10))
def test_a_selector_has_no_further_labels(place: tuple[int, Path], name: str) -> None:
    """One more label to select by, and the Service sends its requests to nobody."""
    index, path = place
    live = copy.deepcopy(OBJECTS[index])
    assume(name not in at(live, path))
    at(live, path)[name] = "anything"

    found = difference(OBJECTS[index], live)
    assert found is not None
    assert found.endswith(f".{name} is not allowed")


@pytest.mark.parametrize("listed", ["containers", "volumes", "imagePullSecrets", "topologySpreadConstraints"])
def test_further_items_with_a_name_of_their_own_stay(listed: str) -> None:
    """A container that somebody injects is somebody else's, wherever in the list it stands."""
    live: Any = copy.deepcopy(STATEFUL_SET)
    live["spec"]["template"]["spec"][listed].insert(0, {"name": "injected"})

    assert difference(STATEFUL_SET, live) is None


def test_peer_that_is_widened_is_put_back() -> None:
    """A selector of namespaces beside the one of pods lets the pods of other namespaces in."""
    wanted = network_policy(
        view(networkPolicy={"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]}), SETTINGS
    )
    live: Any = copy.deepcopy(wanted)
    live["spec"]["ingress"][0]["from"][0]["namespaceSelector"] = {}

    assert difference(wanted, live) == "spec.ingress[0].from[0].namespaceSelector is not allowed"


def test_a_list_that_is_one_value_has_no_further_items() -> None:
    """Another source that may reach the pods is a difference, however it came there."""
    wanted, live = network_policy(view(), SETTINGS), copy.deepcopy(network_policy(view(), SETTINGS))
    live["spec"]["ingress"].append({"ports": [{"port": 22}]})

    assert difference(wanted, live) == "spec.ingress has 2 entries and should have 1"


@pytest.mark.parametrize(
    ("wanted", "live", "words"),
    [
        ({"spec": {"replicas": 3}}, {"spec": {"replicas": 1}}, "spec.replicas is 1 and should be 3"),
        ({"a": {"ready": True}}, {"a": {"ready": False}}, "a.ready is false and should be true"),
        ({"a": {"ready": False}}, {"a": {}}, "a.ready is missing"),
        ({"a": True}, {"a": 1}, "a is 1 and should be true"),
        ({"data": {"key": "x"}}, {"data": {"key": "y"}}, "data.key differs"),
        ({"data": {"key": "x"}}, {}, "data is missing"),
        ({"a": {"b": "c"}}, {"a": "b"}, "a.b is missing"),
        ({"a": ["b"]}, {"a": None}, "a has 0 entries and should have 1"),
        (
            {"spec": {"containers": [{"name": "serve", "env": [{"name": "A", "value": "1"}]}]}},
            {"spec": {"containers": [{"name": "serve", "env": [{"name": "A", "value": "2"}]}]}},
            "spec.containers[serve].env[A].value differs",
        ),
        (
            {"spec": {"containers": [{"name": "serve"}]}},
            {"spec": {"containers": [{"name": "other"}]}},
            "spec.containers[serve] is missing",
        ),
        ({"a": ["b"]}, {"a": ["c"]}, "a[0] differs"),
    ],
)  # fmt: skip
def test_the_first_difference_is_named(wanted: Any, live: Any, words: str) -> None:
    """The sentence has the field's path, and never a text, which may be secret."""
    assert difference(wanted, live) == words


@pytest.mark.parametrize("empty", [None, "", {}, []], ids=repr)
def test_what_is_empty_may_be_left_out(empty: Any) -> None:
    """The API server drops what is empty."""
    assert difference({"a": {"b": empty}}, {"a": {}}) is None


@pytest.mark.parametrize(
    ("wanted", "live", "same"),
    [
        ("1024Mi", "1Gi", True),
        ("1500m", "1.5", True),
        (2, "2", True),
        ("1Gi", "2Gi", False),
        ("1Gi", "a lot", False),
    ],
)
@pytest.mark.parametrize(
    "path", [("requests", "memory"), ("limits", "example.com/gpu"), ("emptyDir", "sizeLimit")]
)
def test_amounts_are_compared_as_amounts(wanted: str, live: str, same: bool, path: tuple[str, str]) -> None:
    """The API server writes a quantity in its own way."""
    first, second = path

    assert (difference({first: {second: wanted}}, {first: {second: live}}) is None) == same


def test_other_texts_are_compared_as_texts() -> None:
    """What only looks like an amount is no amount."""
    assert difference({"labels": {"version": "1000m"}}, {"labels": {"version": "1"}}) is not None
