"""Test the selection of the best windows by a column."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from queryable_app.config.aggregate_spec import AggregateColumn, AggregateSpec
from queryable_app.errors import Failure
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.base.byte_budget import ByteBudget
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads.scans import Batches, Line
from queryable_app.serve.reads.top_windows import check_column, top

# As they stand in an answer, from the least to the greatest; null takes no part.
VALUES = [
    '"-Infinity"',
    "-1.50",
    "2",
    "2.5",
    "12345678901234567890.5",
    "12345678901234567890.6",
    '"Infinity"',
    '"NaN"',
]


def best(values: Sequence[str], count: int, greatest: bool) -> list[str]:
    """Return the best of rows whose values are these, from batches of two rows."""

    async def batches() -> Batches:
        for start in range(0, len(values), 2):
            yield [(b"", n, b"") for n in range(start, min(start + 2, len(values)))]

    def lines(batch: list[RawRow]) -> list[Line]:
        return [(b"", b'{"value":{"v":%b},"n":%d}' % (values[n].encode(), n)) for _, n, _ in batch]

    reservation = AnswerReservation(ByteBudget(1 << 20))
    found = asyncio.run(top(batches(), lines, "v", count, greatest, reservation))
    return [values[json.loads(line)["n"]] for line in found]


@pytest.mark.parametrize("count", [1, 3, 100])
def test_numbers_are_ordered_exactly(count: int) -> None:
    """Numbers that no double can tell apart have their order, NaN is the greatest, and null takes no part."""
    mixed = [VALUES[n] for n in (3, 7, 0, 5, 2, 6, 1, 4)]
    mixed.insert(3, "null")

    assert best(mixed, count, greatest=True) == VALUES[::-1][:count]
    assert best(mixed, count, greatest=False) == VALUES[:count]


def test_texts_have_an_order() -> None:
    """Texts, such as times, are compared as texts."""
    assert best(['"2026-11-22"', '"2027-01-01"', '"2026-12-01"'], 2, True) == ['"2027-01-01"', '"2026-12-01"']


@pytest.mark.parametrize("name", [None, "", "missing", "set"])
def test_column_without_an_order_is_refused(name: str | None) -> None:
    """A column that does not exist, or has many values, is refused with those that have an order."""
    spec = AggregateSpec((AggregateColumn("n", "count"), AggregateColumn("set", "collect_set", "v")))

    assert check_column(spec, "n") == "n"
    with pytest.raises(Failure) as failure:
        check_column(spec, name)
    assert (failure.value.detail[:4], failure.value.advice) == ("by: ", "There are n")
