"""Select the windows with the greatest or the least results of one column.

Strategy: rows come in batches, in the order of keys and starts. After each batch only the best are retained, so memory does not
grow with the number of windows. Of equal results the first in that order counts.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from decimal import Decimal
from typing import Any, Final

from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.errors import Failure, invalid, shown
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.reads.scans import Batches, ToLines

TOP_MAX: Final = 1000
_MANY_VALUED: Final = ("collect_set", "approx_quantiles", "top_k")
# Numbers that JSON has as text: NaN is the greatest, as in Spark.
_TEXT_NUMBERS: Final = {"-Infinity": (0, 0), "Infinity": (2, 0), "NaN": (3, 0)}

Rank = tuple[int, Any]


def check_column(spec: AggregateSpec, name: str | None) -> str:
    """Return the column to order by. Raises Failure for one that has no order."""
    ordered = [column.name for column in spec.columns if column.op not in _MANY_VALUED]
    if name is None or name not in ordered:
        raise _no_order(name, ordered)
    return name


def _no_order(name: str | None, ordered: list[str]) -> Failure:
    problem = "is missing" if name is None else f"{shown(name)} is not a column with an order"
    return invalid("by", problem, f"There are {', '.join(ordered)}")


async def top(
    batches: Batches, lines: ToLines, column: str, count: int, greatest: bool, reservation: AnswerReservation
) -> list[bytes]:
    """Return the best rows as JSON, the best one first. Windows without a result in the column do not take part."""
    best: list[tuple[Rank, bytes]] = []
    async with aclosing(batches):
        async for batch in batches:
            for _, line in lines(batch):
                value = json.loads(line, parse_float=Decimal)["value"][column]
                if value is not None:
                    best.append((_rank(value), line))
            best.sort(key=lambda ranked: ranked[0], reverse=greatest)
            del best[count:]
    items = [line for _, line in best]
    reservation.take(sum(map(len, items)))
    return items


def _rank(value: Any) -> Rank:
    if isinstance(value, str):
        return _TEXT_NUMBERS.get(value, (4, value))
    return 1, value
