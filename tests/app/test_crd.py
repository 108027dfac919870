"""Test the CustomResourceDefinition as documentation and as a contract."""

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


def test_every_field_has_a_description() -> None:
    """`kubectl explain` shows a type and a sentence for every field; the one of metadata is from Kubernetes."""
    silent = [
        path
        for path, field in fields(schema(), "")
        if path != ".metadata"
        and ("type" not in field or not str(field.get("description", "")).endswith((".", "`")))
    ]

    assert silent == []


def test_every_default_is_valid() -> None:
    """A default has the field's type and is within its bounds."""
    for path, field in fields(schema(), ""):
        if "default" in field:
            assert not list(Draft202012Validator(field).iter_errors(field["default"])), path


def test_defaults_equal_those_of_nodes() -> None:
    """An absent field means the same in a cluster, where the schema sets its default, and on one machine."""

    def filled(node: Mapping[str, Any]) -> dict[str, Any]:
        known = {n: c for n, c in node.get("properties", {}).items() if "default" in c}
        return {
            n: filled(c) or c["default"] if c["type"] == "object" else c["default"] for n, c in known.items()
        }

    given = {"kafka": {"bootstrapServers": "kafka:9092"}, "topic": "users"}
    spec = schema()["properties"]["spec"]

    assert parse_spec({**filled(spec), **given}) == parse_spec(given)


def test_default_durations_are_valid() -> None:
    """Nodes parse every default of a duration."""
    for path, field in fields(schema(), ""):
        if "ms|s|m|h|d" in field.get("pattern", "") and "default" in field:
            assert duration_ms(field["default"], path) >= 0
