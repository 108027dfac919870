"""Describe `spec.view.aggregate` as frozen values: what is computed for each group, and in which windows of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

AggregateOp = Literal[
    "count",
    "sum",
    "min",
    "max",
    "avg",
    "first",
    "last",
    "collect_set",
    "approx_count_distinct",
    "approx_quantiles",
    "top_k",
]


class AggregateInput(NamedTuple):
    """Name what ingest computes for each record; columns with equal inputs share one."""

    of: str | None
    filter: str | None


@dataclass(frozen=True, slots=True)
class AggregateColumn:
    name: str
    op: AggregateOp
    of: str | None = None
    """A SQL expression over the columns of the transform. None: `count` counts records."""
    filter: str | None = None
    """A SQL condition. Records for which it is not true add nothing to this column."""
    k: int = 0
    """How many values `top_k` returns."""
    limit: int = 1000
    """How many values `collect_set` keeps."""
    quantiles: tuple[float, ...] = ()
    """The ranks of `approx_quantiles`, from 0 to 1."""

    @property
    def input(self) -> AggregateInput:
        return AggregateInput(self.of, self.filter)


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """Describe windows of event time. A session window has a gap; the others have a size and a slide."""

    size_ms: int = 0
    slide_ms: int = 0
    """How far apart windows begin; equal to the size unless windows overlap."""
    gap_ms: int = 0
    """The silence that ends a session; 0: not a session window."""
    grace_ms: int = 10_000
    retention_ms: int = 7 * 86_400_000
    time_column: str | None = None
    """A column of the transform with the event time. None: the record's timestamp."""


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    columns: tuple[AggregateColumn, ...]
    group_by: tuple[str, ...] = ()
    """Columns of the transform that form the group. Empty: the record key."""
    window: WindowSpec | None = None

    @property
    def inputs(self) -> tuple[AggregateInput, ...]:
        """Return the distinct inputs in the order in which columns first name them: the order of a contribution."""
        return tuple(dict.fromkeys(column.input for column in self.columns))
