"""Name the function of each column, by operation and type of input, and the byte that stands for it in a stored state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, get_args

from queryable_app.aggregates import functions, sets, sketches
from queryable_app.aggregates.functions import Function
from queryable_app.config.aggregate_spec import AggregateColumn, AggregateOp
from queryable_app.wire.contributions import TYPES

_OPS: Final[tuple[str, ...]] = get_args(AggregateOp)
_TYPES: Final = TYPES.decode()
_VALUES: Final = _TYPES.replace("-", "")

_BY_OP: Final[Mapping[str, Mapping[str, type[Any]]]] = {
    "count": dict.fromkeys(_TYPES, functions.Count),
    "sum": {
        "l": functions.IntegerSum,
        "d": functions.DoubleSum,
        "f": functions.DoubleSum,
        "n": functions.DecimalSum,
    },
    "avg": {
        "l": functions.IntegerAvg,
        "d": functions.DoubleAvg,
        "f": functions.DoubleAvg,
        "n": functions.DecimalAvg,
    },
    "min": dict.fromkeys(_VALUES, functions.Min),
    "max": dict.fromkeys(_VALUES, functions.Max),
    "first": dict.fromkeys(_VALUES, functions.First),
    "last": dict.fromkeys(_VALUES, functions.Last),
    "collect_set": dict.fromkeys(_VALUES, sets.CollectSet),
    "approx_count_distinct": dict.fromkeys(_VALUES, sketches.ApproxCountDistinct),
    "approx_quantiles": dict.fromkeys("ldfn", sketches.ApproxQuantiles),
    "top_k": dict.fromkeys(_VALUES, sketches.TopK),
}
"""By operation: the types of input that it takes, and the class of its function."""


SKETCHES: Final = frozenset(("approx_count_distinct", "approx_quantiles", "top_k"))
"""The operations that need the library of sketches."""


class UnknownFunction(Exception):
    """Report a code or a type for which there is no function."""


def takes(op: AggregateOp, type: str) -> bool:
    """Return whether an operation takes inputs of this type."""
    return type in _BY_OP[op]


def code_of(op: AggregateOp, type: str) -> int:
    """Return the byte for a function: operation and type, four bits each."""
    if not takes(op, type):
        raise UnknownFunction(f"{op} takes no input of type {type!r}")
    return _OPS.index(op) << 4 | _TYPES.index(type)


@lru_cache(maxsize=1024)
def function_of(column: AggregateColumn, code: int) -> Function:
    """Return the function of a column for the byte in a stored state."""
    op, type = code >> 4, code & 15
    if op >= len(_OPS) or type >= len(_TYPES) or _OPS[op] != column.op or not takes(column.op, _TYPES[type]):
        raise UnknownFunction(f"the stored function {code:#04x} is not that of the column {column.name!r}")
    function: Function = _BY_OP[column.op][_TYPES[type]](column, _TYPES[type])
    return function
