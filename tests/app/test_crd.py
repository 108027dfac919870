"""The CustomResourceDefinition as a manual and as a contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator

from queryable_app.config.topic_spec import duration_ms, parse_spec
from queryable_app.local.resource_file import crd


def schema() -> dict[str, Any]:
    return dict(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def fields(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, child in node.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from fields(child, f"{path}.{name}")
    if "items" in node:
        yield from fields(node["items"], f"{path}[]")


def test_every_field_is_explained() -> None:
    """`kubectl explain` has a type and a sentence for every field; metadata's is Kubernetes' own."""
    silent = [
        path
        for path, field in fields(schema(), "")
        if path != ".metadata"
        and ("type" not in field or not str(field.get("description", "")).endswith((".", "`")))
    ]

    assert silent == []


def test_every_default_is_valid() -> None:
    """A default is of the field's own type and within its bounds."""
    for path, field in fields(schema(), ""):
        if "default" in field:
            assert not list(Draft202012Validator(field).iter_errors(field["default"])), path


def test_defaults_are_the_ones_that_nodes_use() -> None:
    """A field that is left out means the same in a cluster, where the schema fills it in, and on one machine."""

    def filled(node: Mapping[str, Any]) -> dict[str, Any]:
        known = {n: c for n, c in node.get("properties", {}).items() if "default" in c}
        return {
            n: filled(c) or c["default"] if c["type"] == "object" else c["default"] for n, c in known.items()
        }

    given = {"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "users"}
    spec = schema()["properties"]["spec"]

    assert parse_spec({**filled(spec), **given}) == parse_spec(given)


def test_durations_in_defaults_can_be_read() -> None:
    """Every default of a duration is one that nodes understand."""
    for path, field in fields(schema(), ""):
        if "ms|s|m|h|d" in field.get("pattern", "") and "default" in field:
            assert duration_ms(field["default"], path) >= 0
