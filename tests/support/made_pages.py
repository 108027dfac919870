"""Generate docs/reference.md and the chart's copy from the CRD. `make docs` writes both, and tests compare them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from queryable_operator.spec.changes import CHANGES, Change

ROOT: Final = Path(__file__).parents[2]
CRD: Final = ROOT / "crds" / "queryabletopic.yaml"
CHART_CRD: Final = ROOT / "charts" / "queryable-topics" / "files" / "crds" / "queryabletopic.yaml"
REFERENCE: Final = ROOT / "docs" / "reference.md"

_HEAD: Final = """\
# Every field

Look up a field of a `QueryableTopic`, its default, and what a change of it does. In a cluster,
`kubectl explain qt.spec --recursive` shows the same. (`make docs` generates this page from `crds/queryabletopic.yaml`.)

{about}

The column *A change* says what happens when you change the field:

| | |
|---|---|
{changes}

So fields of the class `roll` restart pods. A duration is a number and one of `ms`, `s`, `m`, `h`, `d`.
"""

Node = Mapping[str, Any]


def reference() -> str:
    version = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]
    whole = version["schema"]["openAPIV3Schema"]
    changes = "\n".join(f"| {change.name.lower()} | {change.value} |" for change in Change)
    parts = [_HEAD.format(about=_line(whole["description"]), changes=changes)]
    metadata, spec, status = (whole["properties"][name] for name in ("metadata", "spec", "status"))
    parts += [
        "## metadata",
        "",
        *_table(metadata, "", None),
        *_rules(whole),
    ]
    parts += ["", "## spec", _line(spec["description"]), *_rules(spec)]
    plain = [name for name, field in spec["properties"].items() if not _children(field)]
    parts += ["", "### Fields of its own", "", *_table(_only(spec, plain), "", CHANGES)]
    for name, field in spec["properties"].items():
        if name not in plain:
            parts += ["", f"### {name}", _line(field["description"]), *_rules(field)]
            parts += ["", *_table(field, f"{name}.", CHANGES)]
    parts += ["", "## status", _line(status["description"]), "", *_table(status, "", None)]
    return "\n".join(parts) + "\n"


def _only(node: Node, names: list[str]) -> Node:
    return {**node, "properties": {name: node["properties"][name] for name in names}}


def _table(node: Node, prefix: str, changes: Mapping[str, Change] | None) -> Iterator[str]:
    change = "A change | " if changes is not None else ""
    yield f"| Field | Type | Default | {change}Meaning |"
    yield "|---|---|---|---|" + ("---|" if change else "")
    for path, field, required in _fields(node, prefix):
        default = (
            "" if "default" not in field or field["type"] == "object" else f"`{_text(field['default'])}`"
        )
        cells = [f"`{path}`", _type(field) + (", required" if required else ""), default]
        if changes is not None:
            cells.append(_change(path, changes))
        rules = "".join(f" Rule: {rule['message']}." for rule in _validations(field))
        meaning = _line(field["description"]) + rules
        yield f"| {' | '.join(cells)} | {meaning} |"


def _fields(node: Node, prefix: str) -> Iterator[tuple[str, Node, bool]]:
    for name, field in node.get("properties", {}).items():
        yield f"{prefix}{name}", field, name in node.get("required", ())
        inner, mark = (field["items"], "[]") if "items" in field else (field, "")
        yield from _fields(inner, f"{prefix}{name}{mark}.")


def _children(field: Node) -> bool:
    return "properties" in field or "properties" in field.get("items", {})


def _change(path: str, changes: Mapping[str, Change]) -> str:
    """Return the effect of a change by the longest known path, or nothing for a field of which only parts are known."""
    parts = path.replace("[]", "").split(".")
    for length in range(len(parts), 0, -1):
        if (found := changes.get(".".join(parts[:length]))) is not None:
            return found.name.lower()
    return "" if any(known.startswith(f"{path}.") for known in changes) else Change.REVISION.name.lower()


def _type(field: Node) -> str:
    if "enum" in field:
        return "one of " + " ".join(f"`{_text(value)}`" for value in field["enum"])
    match field:
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}" + _between(field, "Items", "")
        case {"type": "object", "additionalProperties": {}}:
            return "map of texts"
        case {"type": "object"}:
            return "object"
        case {"type": "boolean"}:
            return "`true` or `false`"
        case {"type": "integer"}:
            low, high = field.get("minimum"), field.get("maximum")
            return "integer" if low is None else f"integer, {low} to {high}"
        case {"type": "number", "minimum": low, "maximum": high}:
            return f"number, {low} to {high}"
        case {"format": "date-time"}:
            return "time"
        case {"pattern": pattern} if "ms|s|m|h|d" in pattern:
            return "duration"
    return "text" + _between(field, "Length", " characters")


def _between(field: Node, what: str, unit: str) -> str:
    most = field.get(f"max{what}")
    return f", at most {most}{unit}" if most else ""


def _validations(field: Node) -> Iterator[Node]:
    yield from field.get("x-kubernetes-validations", ())
    yield from field.get("items", {}).get("x-kubernetes-validations", ())


def _rules(node: Node) -> Iterator[str]:
    for rule in node.get("x-kubernetes-validations", ()):
        yield f"Rule: {rule['message']}."


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    REFERENCE.write_text(reference())
    CHART_CRD.write_bytes(CRD.read_bytes())
