"""Parse `spec.view.aggregate`, or raise an error that names the field and what to write."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queryable_app.config.aggregate_spec import AggregateColumn, AggregateOp, AggregateSpec, WindowSpec
from queryable_app.config.spec_fields import SpecError, duration_ms, one_of, whole

_PATH: Final = "spec.view.aggregate"
COLUMNS_MAX: Final = 64  # as in the schema, like the next four
NAME_CHARACTERS_MAX: Final = 128
TOP_MAX: Final = 1000
SET_MAX: Final = 10_000
QUANTILES_MAX: Final = 32
WINDOWS_OF_A_RECORD_MAX: Final = 100
"""How many overlapping windows a record may be in. Each is a row that the record changes."""

_DURATION_MAX_MS: Final = 3650 * 86_400_000  # a longer one could overflow a time
RECORD_KEY: Final = ("key",)
"""The columns of a group, or of a new key, that is the record key."""

_WINDOW: Final = WindowSpec()  # for its defaults, like the next one
_COLUMN: Final = AggregateColumn("", "count")

# The fields of a column that only one operation has.
_FIELD_OF: Final = {"k": "top_k", "limit": "collect_set", "quantiles": "approx_quantiles"}
_NEEDED: Final = {
    "k": "how many values to return, such as 10",
    "quantiles": "the ranks to return, such as [0.5, 0.99]",
}


def parse_view_aggregate(view: Mapping[str, Any]) -> AggregateSpec | None:
    """Return what `spec.view` computes, or None if it is no aggregate."""
    aggregate = view.get("aggregate")
    if view.get("kind", "latest") != "aggregate":
        if aggregate is not None:
            raise SpecError(
                "spec.view.kind: only the kind aggregate has the field aggregate; write kind: aggregate"
            )
        return None
    if aggregate is None:
        raise SpecError(f"{_PATH}: missing; name the columns to compute, such as {{name: n, op: count}}")
    if view.get("ttl"):
        raise SpecError(
            "spec.view.ttl: an aggregate has no record whose age could count; "
            "use spec.view.aggregate.window and its retention"
        )
    return _aggregate(aggregate)


def _aggregate(aggregate: Mapping[str, Any]) -> AggregateSpec:
    columns = [_column(column, index) for index, column in enumerate(aggregate.get("columns", ()))]
    if not 1 <= len(columns) <= COLUMNS_MAX:
        raise SpecError(f"{_PATH}.columns: write 1 to {COLUMNS_MAX} columns, not {len(columns)}")
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"{_PATH}.columns: two columns are called {name}; rename one")
    group_by = tuple(aggregate.get("groupBy", ()))
    window = aggregate.get("window")
    return AggregateSpec(
        tuple(columns),
        () if group_by == RECORD_KEY else group_by,
        None if window is None else _window(window),
    )


def _column(column: Mapping[str, Any], index: int) -> AggregateColumn:
    name = column.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARACTERS_MAX or name.startswith("_"):
        raise SpecError(
            f"{_PATH}.columns[{index}].name: write a name of at most {NAME_CHARACTERS_MAX} characters "
            "that does not begin with _"
        )
    path = f"{_PATH}.columns[{name}]"
    op: AggregateOp = one_of(AggregateOp, column.get("op"), f"{path}.op")
    if op != "count" and not column.get("of"):
        raise SpecError(f"{path}.of: missing; write the column or the expression that {op} is of")
    for field, owner in _FIELD_OF.items():
        if field in column and op != owner:
            raise SpecError(f"{path}.{field}: only {owner} has this field, and {path}.op is {op}")
        if field in _NEEDED and op == owner and field not in column:
            raise SpecError(f"{path}.{field}: missing; write {_NEEDED[field]}")
    return AggregateColumn(
        name,
        op,
        column.get("of"),
        column.get("filter"),
        whole(column["k"], TOP_MAX, f"{path}.k") if op == "top_k" else 0,
        whole(column.get("limit", _COLUMN.limit), SET_MAX, f"{path}.limit"),
        _quantiles(column["quantiles"], f"{path}.quantiles") if op == "approx_quantiles" else (),
    )


def _quantiles(ranks: Sequence[Any], path: str) -> tuple[float, ...]:
    def is_rank(rank: Any) -> bool:
        return (
            isinstance(rank, int | float)
            and not isinstance(rank, bool)
            and math.isfinite(rank)
            and 0 <= rank <= 1
        )

    if not 1 <= len(ranks) <= QUANTILES_MAX or not all(map(is_rank, ranks)):
        raise SpecError(f"{path}: write 1 to {QUANTILES_MAX} numbers from 0 to 1, such as [0.5, 0.99]")
    if len(set(ranks)) < len(ranks):
        raise SpecError(f"{path}: the same number is there twice")
    return tuple(map(float, ranks))


def _window(window: Mapping[str, Any]) -> WindowSpec:
    path = f"{_PATH}.window"
    gap_ms, size_ms = _above_zero(window, "sessionGap"), _above_zero(window, "size")
    if bool(gap_ms) == bool(size_ms):
        raise SpecError(f"{path}: give either size, or sessionGap for windows that silence ends")
    slide_ms = _above_zero(window, "slide")
    if slide_ms and gap_ms:
        raise SpecError(f"{path}.slide: session windows do not slide; leave the field out")
    slide_ms = slide_ms or size_ms
    if slide_ms > size_ms:
        raise SpecError(
            f"{path}.slide: {window['slide']} is longer than the size, {window['size']}, "
            "so some records would be in no window; write at most the size"
        )
    if size_ms > slide_ms * WINDOWS_OF_A_RECORD_MAX:
        raise SpecError(
            f"{path}.slide: a record would be in {-(-size_ms // slide_ms)} windows, and the limit is "
            f"{WINDOWS_OF_A_RECORD_MAX}; write a longer slide or a smaller size"
        )
    grace_ms = _duration(window, "grace", _WINDOW.grace_ms)
    retention_ms = _above_zero(window, "retention") or _WINDOW.retention_ms
    if grace_ms > retention_ms:
        raise SpecError(
            f"{path}.grace: {window.get('grace', '10s')} is longer than the retention, so a window "
            "would be deleted while records of it still count; write at most the retention"
        )
    return WindowSpec(size_ms, slide_ms, gap_ms, grace_ms, retention_ms, window.get("timeColumn"))


def _above_zero(window: Mapping[str, Any], field: str) -> int:
    """Return the field's duration, which must not be 0 ms; 0 if the field is missing."""
    duration = _duration(window, field, 0)
    if field in window and duration == 0:
        raise SpecError(f"{_PATH}.window.{field}: write more than 0 ms")
    return duration


def _duration(window: Mapping[str, Any], field: str, default: int) -> int:
    path = f"{_PATH}.window.{field}"
    duration = duration_ms(window[field], path) if field in window else default
    if duration > _DURATION_MAX_MS:
        raise SpecError(f"{path}: {window[field]} is more than ten years")
    return duration
