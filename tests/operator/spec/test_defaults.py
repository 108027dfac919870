"""Test filling in and leaving out the schema's defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queryable_app.local.resource_file import crd
from queryable_operator.spec.defaults import DEFAULTS, with_defaults, without_defaults

SMALL = {"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "users"}


def spec_schema() -> Mapping[str, Any]:
    schema: Mapping[str, Any] = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][
        "spec"
    ]
    return schema


def defaults_below(schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in schema.get("properties", {}).items():
        if "default" in field:
            yield f"{prefix}{name}", field["default"]
        yield from defaults_below(field, f"{prefix}{name}.")


def test_defaults_equal_the_schemas() -> None:
    """The table has every default of the schema, in its order, and no other."""
    assert list(DEFAULTS.items()) == list(defaults_below(spec_schema()))


def test_no_default_is_inside_a_list() -> None:
    """The table could not name the default of a list item."""

    def items(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        for field in schema.get("properties", {}).values():
            if "items" in field:
                yield field["items"]
            yield from items(field)

    assert [list(defaults_below(item)) for item in items(spec_schema()) if list(defaults_below(item))] == []


def test_defaults_apply_inside_existing_objects() -> None:
    """A missing optional object is not created for its defaults."""
    whole = with_defaults({**SMALL, "view": {"kind": "history", "history": {}}})

    assert whole["view"] == {"kind": "history", "history": {"retention": "7d"}, "changes": False}
    assert whole["rollout"]["compare"]["sampleKeys"] == 1000
    assert "aggregate" not in whole["view"]


def test_filled_in_defaults_are_not_shared() -> None:
    """Two specs never share a mutable default."""
    with_defaults(SMALL)["kafka"]["config"]["a"] = "b"

    assert with_defaults(SMALL)["kafka"]["config"] == {}
    assert "config" not in SMALL["kafka"]


SPECS = st.fixed_dictionaries(
    {"kafka": st.just({"bootstrapServers": "kafka:9092"}), "topic": st.just("users")},
    optional={
        "replicas": st.integers(1, 3),
        "redeployNonce": st.integers(0, 1),
        "paused": st.booleans(),
        "key": st.fixed_dictionaries({}, optional={"format": st.sampled_from(["string", "long"])}),
        "view": st.fixed_dictionaries({}, optional={"ttl": st.just("1d"), "changes": st.booleans()}),
        "rollout": st.fixed_dictionaries(
            {},
            optional={
                "maxLag": st.integers(0, 1),
                "compare": st.fixed_dictionaries({}, optional={"sampleKeys": st.sampled_from([1000, 5])}),
            },
        ),
    },
)


@given(SPECS)
def test_filling_in_and_leaving_out_are_inverse(spec: Mapping[str, Any]) -> None:
    """Filling in changes no stated field, and leaving out changes no meaning."""
    assert without_defaults(with_defaults(spec)) == without_defaults(spec)
    assert with_defaults(without_defaults(spec)) == with_defaults(spec)


def test_zero_is_not_false() -> None:
    """A number never equals the default of a boolean."""
    assert without_defaults({"paused": 0, "redeployNonce": False}) == {"paused": 0, "redeployNonce": False}
