"""Parse the text of an Avro schema into values, for what reads or writes Avro outside the JVM.

Avro's own library, in the JVM, is the judge of a schema. This parser refuses what no part of a node could use.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_DEPTH_MAX: Final = 100


class SchemaTextError(Exception):
    """Report that a text is no Avro schema; the message says why."""


@dataclass(slots=True, eq=False)
class AvroType:
    """Hold a type. A recursive type contains itself, so the values are never compared or printed as a whole."""

    kind: str
    """`record`, `enum`, `fixed`, `array`, `map`, `union`, or the name of a primitive type."""

    logical: str = ""
    name: str = ""
    """The full name of a record, an enum or a fixed."""

    fields: list[AvroField] = field(default_factory=list, repr=False)
    symbols: tuple[str, ...] = ()
    branches: tuple[AvroType, ...] = field(default=(), repr=False)
    items: AvroType | None = field(default=None, repr=False)
    """The type of an array's elements, or of a map's values."""

    size: int = 0
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class AvroField:
    name: str
    type: AvroType
    default: Any = None
    """As it stands in the schema; meaningful only if `has_default`."""

    has_default: bool = False


def parse_avro_schema(text: str) -> AvroType:
    """Parse a schema. Raises SchemaTextError."""
    try:
        return _parsed(json.loads(text), "", {}, 0)
    except ValueError as error:
        raise SchemaTextError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise SchemaTextError("it is nested too deeply") from None


def _parsed(raw: Any, namespace: str, named: dict[str, AvroType], depth: int) -> AvroType:
    if depth > _DEPTH_MAX:
        raise SchemaTextError(f"it is nested deeper than {_DEPTH_MAX}")
    if isinstance(raw, str):
        return _by_name(raw, namespace, named)
    if isinstance(raw, list):
        if not raw:
            raise SchemaTextError("a union has no branches")
        return AvroType(
            "union", branches=tuple(_parsed(branch, namespace, named, depth + 1) for branch in raw)
        )
    if not isinstance(raw, dict) or "type" not in raw:
        raise SchemaTextError(f"{json.dumps(raw)[:60]} is no type")
    kind = raw["type"]
    if not isinstance(kind, str):  # {"type": {"type": ...}}
        return _parsed(kind, namespace, named, depth + 1)
    if kind in ("record", "error", "enum", "fixed"):
        return _named_type(raw, kind, namespace, named, depth)
    if kind in ("array", "map"):
        inner = raw.get("items" if kind == "array" else "values")
        return AvroType(kind, items=_parsed(inner, namespace, named, depth + 1))
    found = _by_name(kind, namespace, named)
    return _with_logical(AvroType(kind), raw) if kind in _PRIMITIVES else found


def _by_name(name: str, namespace: str, named: dict[str, AvroType]) -> AvroType:
    if name in _PRIMITIVES:
        return AvroType(name)
    found = named.get(_full_name(name, namespace)) or named.get(name)
    if found is None:
        raise SchemaTextError(f"{name[:60]!r} is no type, and none of this name stands before it")
    return found


def _named_type(
    raw: dict[str, Any], kind: str, outer: str, named: dict[str, AvroType], depth: int
) -> AvroType:
    name = raw.get("name")
    if not isinstance(name, str) or not name:
        raise SchemaTextError(f"a type {kind} has no name")
    full = _full_name(name, str(raw.get("namespace", outer) or ""))
    if full in named:
        raise SchemaTextError(f"the name {full[:60]} is there twice")
    made = named[full] = AvroType("record" if kind == "error" else kind, name=full)
    if kind == "enum":
        made.symbols = tuple(_texts(raw.get("symbols"), f"{full}.symbols"))
    elif kind == "fixed":
        size = raw.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise SchemaTextError(f"{full[:60]} has no size")
        made.size = size
        _with_logical(made, raw)
    else:
        fields = raw.get("fields")
        if not isinstance(fields, list):
            raise SchemaTextError(f"{full[:60]} has no fields")
        namespace = full.rpartition(".")[0]
        for each in fields:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str) or "type" not in each:
                raise SchemaTextError(f"a field of {full[:60]} lacks its name or its type")
            type_ = _parsed(each["type"], namespace, named, depth + 1)
            made.fields.append(AvroField(each["name"], type_, each.get("default"), "default" in each))
    return made


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _with_logical(made: AvroType, raw: dict[str, Any]) -> AvroType:
    """Add the logical type. A wrong one counts as none, as Avro says."""
    logical = raw.get("logicalType")
    if logical == "decimal":
        precision: Any = raw.get("precision")
        scale: Any = raw.get("scale", 0)
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (precision, scale))
        if not whole or not 0 <= scale <= precision or precision < 1 or made.kind not in ("bytes", "fixed"):
            return made
        made.precision, made.scale = precision, scale
    if isinstance(logical, str) and made.kind in _CARRIERS.get(logical, ()):
        made.logical = logical
    return made


_CARRIERS: Final = {
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    **{
        f"{zone}timestamp-{unit}": ("long",)
        for zone in ("", "local-")
        for unit in ("millis", "micros", "nanos")
    },
}
"""The types that a logical type annotates."""


def _texts(raw: Any, what: str) -> list[str]:
    if not isinstance(raw, list) or not raw or not all(isinstance(each, str) for each in raw):
        raise SchemaTextError(f"{what[:60]} is no list of names")
    return raw
