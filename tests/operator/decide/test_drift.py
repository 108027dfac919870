"""Test the first difference between a desired object and the live one."""

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
from queryable_operator.spec.pods import PodLayout
from queryable_operator.spec.settings import OperatorSettings
from tests.support.view import FULL, SETTINGS, view

FULL_VIEW = view(**FULL)
TEMPLATE = pod_template(
    FULL_VIEW, 1, "shop.users.r1", "node:1", "0123456789abcdef", OperatorSettings("node:1")
)
STATEFUL_SET = stateful_set(FULL_VIEW, 1, TEMPLATE, 3)
OBJECTS = [
    STATEFUL_SET,
    headless(FULL_VIEW, 1, PodLayout()),
    client(FULL_VIEW, 1),
    disruption_budget(FULL_VIEW, 1),
    network_policy(FULL_VIEW, SETTINGS),
    service_account(FULL_VIEW),
]
Path = tuple[str | int, ...]


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each value that is neither a mapping nor a list, nor empty."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from leaves(below, (*path, name))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from leaves(below, (*path, index))
    elif value != "":
        yield path


def nodes(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each mapping."""
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
def test_object_does_not_differ_from_itself(of: Mapping[str, Any]) -> None:
    """An applied and unchanged object is not applied again."""
    assert difference(of, copy.deepcopy(of)) is None


@given(st.sampled_from(PLACES))
def test_every_missing_field_is_a_difference(place: tuple[int, Path]) -> None:
    """No field can be removed unnoticed."""
    index, path = place
    live = copy.deepcopy(OBJECTS[index])
    del at(live, path[:-1])[path[-1]]

    assert difference(OBJECTS[index], live) is not None


@given(st.sampled_from(PLACES), st.text(min_size=1) | st.integers() | st.booleans())
def test_every_changed_field_is_a_difference(place: tuple[int, Path], value: str | int) -> None:
    """No field can get another value unnoticed."""
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
def test_added_fields_are_no_difference(place: tuple[int, Path], name: str) -> None:
    """Another tool's label and the API server's defaults stay."""
    index, path = place
    live = copy.deepcopy(OBJECTS[index])
    assume(name not in at(live, path))
    at(live, path)[name] = {"any": "thing"}

    assert difference(OBJECTS[index], live) is None


@given(st.sampled_from(SELECTORS), st.text(min_size=10, max_size=10))
def test_added_label_in_a_selector_is_a_difference(place: tuple[int, Path], name: str) -> None:
    """With one more label the Service would select no pod."""
    index, path = place
    live = copy.deepcopy(OBJECTS[index])
    assume(name not in at(live, path))
    at(live, path)[name] = "anything"

    found = difference(OBJECTS[index], live)
    assert found is not None
    assert found.endswith(f".{name} is not allowed")


@pytest.mark.parametrize("listed", ["containers", "volumes", "imagePullSecrets", "topologySpreadConstraints"])
def test_added_named_items_are_no_difference(listed: str) -> None:
    """An injected container stays, at any position of the list."""
    live: Any = copy.deepcopy(STATEFUL_SET)
    live["spec"]["template"]["spec"][listed].insert(0, {"name": "injected"})

    assert difference(STATEFUL_SET, live) is None


def test_widened_peer_is_a_difference() -> None:
    """A namespace selector beside the pod selector would admit pods of other namespaces."""
    wanted = network_policy(
        view(networkPolicy={"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]}), SETTINGS
    )
    live: Any = copy.deepcopy(wanted)
    live["spec"]["ingress"][0]["from"][0]["namespaceSelector"] = {}

    assert difference(wanted, live) == "spec.ingress[0].from[0].namespaceSelector is not allowed"


def test_added_item_in_an_atomic_list_is_a_difference() -> None:
    """An additional source that may reach the pods is a difference."""
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
def test_first_difference_is_described_without_texts(wanted: Any, live: Any, words: str) -> None:
    """The sentence contains the field's path and never a text, which may be secret."""
    assert difference(wanted, live) == words


@pytest.mark.parametrize("empty", [None, "", {}, []], ids=repr)
def test_missing_empty_field_is_no_difference(empty: Any) -> None:
    """The API server drops empty fields."""
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
def test_quantities_are_compared_by_amount(wanted: str, live: str, same: bool, path: tuple[str, str]) -> None:
    """The API server normalizes quantities."""
    first, second = path

    assert (difference({first: {second: wanted}}, {first: {second: live}}) is None) == same


def test_other_texts_are_compared_literally() -> None:
    """A text that only looks like a quantity is none."""
    assert difference({"labels": {"version": "1000m"}}, {"labels": {"version": "1"}}) is not None
