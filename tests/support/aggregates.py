"""Compute aggregates in the simplest way, with Python's own numbers: the oracle that tests compare a view with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, localcontext
from decimal import Decimal as PythonDecimal
from fractions import Fraction
from typing import Any

from queryable_app.config.aggregate_spec import AggregateColumn, AggregateSpec
from queryable_app.wire import contributions
from queryable_app.wire.contributions import ABSENT, Decimal
from queryable_app.wire.row_frames import DROPPED, ROW, SliceRow

Record = tuple[bytes, Sequence[Any] | None]
"""A key and the inputs of a record; None: the record adds nothing."""


def spec_of(*columns: AggregateColumn) -> AggregateSpec:
    return AggregateSpec(columns)


def contribution_row(
    offset: int, key: bytes, types: str, inputs: Sequence[Any] | None, timestamp_ms: int = 1
) -> SliceRow:
    """Return a row as the writer sends it for an aggregated view."""
    if inputs is None:
        return SliceRow(key, b"", DROPPED, offset)
    stored = contributions.encode(types, offset, timestamp_ms, timestamp_ms, inputs)
    return SliceRow(key, stored, ROW, offset)


def results(spec: AggregateSpec, types: str, records: Iterable[Record]) -> Mapping[bytes, Mapping[str, Any]]:
    """Return the parsed JSON of each group."""
    inputs = spec.inputs
    by_key: dict[bytes, list[Sequence[Any]]] = {}
    for key, values in records:
        if values is not None:
            by_key.setdefault(key, []).append(values)
    return {
        key: _row(
            [
                (column, types[place], [values[place] for values in rows if values[place] is not ABSENT])
                for column in spec.columns
                for place in (inputs.index(column.input),)
            ]
        )
        for key, rows in by_key.items()
    }


def _row(columns: Sequence[tuple[AggregateColumn, str, list[Any]]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for column, type, values in columns:
        row[column.name], error = _result(column, type, values)
        if error:
            errors[column.name] = error
    return row | ({"_errors": errors} if errors else {})


def _result(column: AggregateColumn, type: str, values: list[Any]) -> tuple[Any, str | None]:
    known = [value for value in values if value is not None]
    if column.op == "count":
        return len(known), None
    if column.op == "first":
        return (shown(values[0], type) if values else None), None
    if column.op == "last":
        return (shown(values[-1], type) if values else None), None
    if not known:
        return None, None
    if column.op in ("min", "max"):
        ordered = sorted(known, key=lambda value: _order(value, type))
        return shown(ordered[0 if column.op == "min" else -1], type), None
    if type == "n":
        return _decimal(column.op, known)
    if type == "l":
        total = sum(known)
        if column.op == "avg":
            return float(Fraction(total, len(known))), None
        return (total, None) if -(2**63) <= total < 2**63 else (None, "sum beyond 64 bits")
    total = 0.0
    for value in known:
        total += value
    return shown(total / len(known) if column.op == "avg" else total, "d"), None


def _decimal(op: str, known: list[Decimal]) -> tuple[Any, str | None]:
    scale = known[0].scale
    with localcontext(Context(prec=200)):
        total = sum((python_decimal(each) for each in known), PythonDecimal(0))
        if abs(total.scaleb(scale)) >= 10**38:
            return None, "sum beyond 38 digits"
        if op == "sum":
            return float(total), None
        places = min(38, scale + 4)
        exact = (total / len(known)).quantize(PythonDecimal(1).scaleb(-39), ROUND_HALF_UP)
        average = exact.quantize(PythonDecimal(1).scaleb(-places), ROUND_HALF_UP)
        if abs(average.scaleb(places)) >= 10**38:
            return None, "average beyond 38 digits"
        return float(average), None


def python_decimal(value: Decimal) -> PythonDecimal:
    return PythonDecimal(value.unscaled).scaleb(-value.scale, Context(prec=200))


def _order(value: Any, type: str) -> Any:
    if type in "df":
        return (math.isnan(value), 0 if math.isnan(value) else value)
    return python_decimal(value) if type == "n" else value


def shown(value: Any, type: str) -> Any:
    """Return the value as a JSON parser reads it. Only types whose JSON is a number, a boolean or plain text."""
    if value is None:
        return None
    if type in "df" and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if type == "n":
        return float(python_decimal(value))
    if type == "b":
        return bool(value)
    return value.decode() if type == "s" else value
