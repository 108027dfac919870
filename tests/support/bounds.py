"""Generate for each bound of a schema a value just outside of it, which an API server must refuse, by field path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
Step = str | int
_WRONG_TYPES: Mapping[str, Any] = {
    "object": "text",
    "array": "text",
    "string": {"an": "object"},
    "integer": "text",
    "number": "text",
    "boolean": "text",
}


def outside(schema: Schema, path: tuple[Step, ...] = ()) -> Iterator[tuple[tuple[Step, ...], str, Any]]:
    """Yield the path of a field, the bound, and a value outside of it."""
    for bound, value in _values(schema):
        yield path, bound, value
    for name, field in schema.get("properties", {}).items():
        yield from outside(field, (*path, name))
    if "items" in schema:
        yield from outside(schema["items"], (*path, 0))
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from outside(schema["additionalProperties"], (*path, "any"))


def inside(path: tuple[Step, ...], value: Any) -> Any:
    """Return the value, nested in as many objects and lists as its path has steps."""
    for step in reversed(path):
        value = [value] if step == 0 else {step: value}
    return value


def words(path: tuple[Step, ...]) -> str:
    """Return the path as the API server writes it."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _values(schema: Schema) -> Iterator[tuple[str, Any]]:
    if "type" in schema:
        yield "type", _WRONG_TYPES[schema["type"]]
    if "enum" in schema:
        yield "enum", "nonsense"
    if "minimum" in schema:
        yield "minimum", schema["minimum"] - 1
    if "maximum" in schema:
        yield "maximum", schema["maximum"] + 1
    if schema.get("minLength"):
        yield "minLength", "a" * (schema["minLength"] - 1)
    if "maxLength" in schema:
        yield "maxLength", "a" * (schema["maxLength"] + 1)
    if "pattern" in schema:
        yield (
            "pattern",
            next(text for text in ("?", "-", " ", "_", ".") if not re.search(schema["pattern"], text)),
        )
    if "minItems" in schema:
        yield "minItems", []
    if "maxItems" in schema:
        yield "maxItems", [_item(schema["items"], n) for n in range(schema["maxItems"] + 1)]
    if "maxProperties" in schema:
        yield "maxProperties", {f"k{n}": "a" for n in range(schema["maxProperties"] + 1)}


def _item(schema: Schema, number: int) -> Any:
    match schema["type"]:
        case "string":
            return f"item{number}"
        case "number":
            return schema["maximum"] / (number + 1)
        case _:
            return {"name": f"item{number}"}
