"""Parse `spec.view.indexes`, or raise an error that names the field and what to write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.config.spec_fields import SpecError, one_of

IndexType = Literal["string", "long", "double", "boolean", "timestamp"]

INDEXES_MAX: Final = 16  # as in the schema
_PATH: Final = "spec.view.indexes"
_ELEMENT: Final = re.compile(r"\[\d+\]$")  # as in `where`
_NUMBERS: Final = frozenset({"count", "sum", "avg", "approx_count_distinct"})
"""The operations of an aggregate whose results are numbers, whatever they read."""


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """Describe a secondary index: rows are found by a field of their value."""

    name: str
    field: str
    """The names on the way to the field, joined by dots."""
    type: IndexType

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.field.split("."))


def parse_indexes(
    view: Mapping[str, Any], value_is_json: bool, aggregate: AggregateSpec | None
) -> tuple[IndexSpec, ...]:
    """Return the indexes of a view, in their order, which numbers them."""
    given: Sequence[Mapping[str, Any]] = view.get("indexes") or ()
    if not given:
        return ()
    if len(given) > INDEXES_MAX:
        raise SpecError(f"{_PATH}: write at most {INDEXES_MAX} indexes, not {len(given)}")
    if aggregate is not None and aggregate.window is not None:
        raise SpecError(
            f"{_PATH}: a view with windows has no indexes in this version; leave the field out, "
            "and read its greatest windows at /v1/top"
        )
    if not value_is_json:
        raise SpecError(
            f"{_PATH}: only JSON values have fields; write spec.value.format: json, or a transform, or leave the field out"
        )
    indexes = tuple(_index(index, place) for place, index in enumerate(given))
    names = [index.name for index in indexes]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"{_PATH}: the name {name!r} is there twice")
    if aggregate is not None:
        columns = {column.name: column.op for column in aggregate.columns}
        for index in indexes:
            if index.path[0] not in columns:
                raise SpecError(
                    f"{_PATH}[{index.name}].field: {index.path[0]!r} is not a column of the aggregate; "
                    f"there are {', '.join(columns)}"
                )
            op = columns[index.path[0]]
            if op in _NUMBERS and index.type in ("string", "boolean"):
                raise SpecError(
                    f"{_PATH}[{index.name}].type: {op} gives numbers, of which an index of the type {index.type} has none; "
                    "write long or double"
                )
    return indexes


def _index(index: Mapping[str, Any], place: int) -> IndexSpec:
    for field in ("name", "field", "type"):
        if not isinstance(index.get(field), str) or not index[field]:
            raise SpecError(
                f"{_PATH}[{place}].{field}: missing; an index is like {{name: by-user, field: user, type: string}}"
            )
    name = index["name"]
    spec = IndexSpec(name, index["field"], one_of(IndexType, index["type"], f"{_PATH}[{name}].type"))
    if any(_ELEMENT.search(part) for part in spec.path):
        raise SpecError(
            f"{_PATH}[{name}].field: {spec.field!r} names an element of an array, which no index has; name a field, or "
            "find the rows with where="
        )
    if not all(spec.path):
        raise SpecError(
            f"{_PATH}[{name}].field: {spec.field!r} has an empty name; write names joined by single dots"
        )
    return spec


def canonical_text(indexes: Sequence[IndexSpec]) -> str:
    """Return what identifies the indexes of a store; empty if there are none."""
    return json.dumps([[index.name, index.field, index.type] for index in indexes]) if indexes else ""
