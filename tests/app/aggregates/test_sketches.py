"""Test sets and sketches: the same state however the log is cut, answers within the stated error, and bounded states."""

from __future__ import annotations

import json
import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.aggregates.folding import Folding
from queryable_app.aggregates.rendering import state_renderer
from queryable_app.aggregates.sets import SET_BYTES_MAX
from queryable_app.aggregates.sketches import TOP_VALUE_BYTES_MAX
from queryable_app.config.aggregate_spec import AggregateColumn, AggregateSpec
from queryable_app.wire.contributions import Decimal
from queryable_app.wire.disk_format import ROW_HEADER_SIZE

RANKS = (0.0, 0.01, 0.5, 0.95, 0.999, 1.0)
COLUMNS = {
    "collect_set": AggregateColumn("c", "collect_set", "x", limit=50),
    "approx_count_distinct": AggregateColumn("c", "approx_count_distinct", "x"),
    "approx_quantiles": AggregateColumn("c", "approx_quantiles", "x", quantiles=RANKS),
    "top_k": AggregateColumn("c", "top_k", "x", k=5),
}


def fold(column: AggregateColumn, type: str, values: Sequence[Any], is_cut: Callable[[], bool]) -> bytes:
    """Return the stored row after the values, with the state stored and loaded at each cut."""
    folding = Folding(AggregateSpec((column,)), type.encode())
    group = folding.codec.new()
    for value in values:
        folding.fold(group, 0, 1, [value])
        if is_cut():
            group = folding.codec.decode(folding.codec.encode(group))
    return folding.codec.encode(group)


def whole(column: AggregateColumn, type: str, values: Sequence[Any]) -> bytes:
    return fold(column, type, values, lambda: False)


def row(column: AggregateColumn, stored: bytes) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(state_renderer(AggregateSpec((column,)))(stored[ROW_HEADER_SIZE:]))
    return shown


@pytest.mark.parametrize("op", COLUMNS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 4000), spread=st.integers(1, 3000), data=st.data())
def test_state_does_not_depend_on_cuts(
    op: str, seed: int, count: int, spread: int, data: st.DataObject
) -> None:
    """Wherever the log is cut into slices, the stored bytes are the same; reads between them change nothing."""
    dice = random.Random(seed)
    values = [None if dice.random() < 0.1 else dice.randrange(spread) for _ in range(count)]
    chance = data.draw(st.sampled_from((0.001, 0.02, 0.5)))

    cut = fold(COLUMNS[op], "l", values, lambda: dice.random() < chance)

    assert cut == whole(COLUMNS[op], "l", values)
    assert row(COLUMNS[op], cut) == row(COLUMNS[op], cut)


@pytest.mark.parametrize("distinct", [0, 1, 63, 500, 3000, 40_000])
def test_distinct_values_are_estimated(distinct: int) -> None:
    """The estimate is within three standard errors of 1.6 %, whatever the number and the repetition of values."""
    column = COLUMNS["approx_count_distinct"]
    values = [b"value-%d" % (n % max(1, distinct)) for n in range(2 * distinct)]

    estimate = row(column, whole(column, "s", values))["c"]

    assert abs(estimate - distinct) <= 3 * 0.016 * distinct


@pytest.mark.parametrize("shape", ["uniform", "sorted", "exponential", "two values"])
def test_quantiles_are_estimated(shape: str) -> None:
    """The rank of each estimate is within 1 % of the one that was asked for, and the ends are exact."""
    dice = random.Random(7)
    makers: dict[str, Callable[[int], float]] = {
        "uniform": lambda _: dice.random(),
        "sorted": float,
        "exponential": lambda _: dice.expovariate(1.0),
        "two values": lambda n: float(n % 2),
    }
    values = [makers[shape](n) for n in range(20_000)]
    ordered = sorted(values)

    estimates = row(COLUMNS["approx_quantiles"], whole(COLUMNS["approx_quantiles"], "d", values))["c"]

    assert (estimates[0], estimates[-1]) == (ordered[0], ordered[-1])
    for rank, estimate in zip(RANKS, estimates, strict=True):
        low, high = (
            bisect_left(ordered, estimate) / len(values),
            bisect_right(ordered, estimate) / len(values),
        )
        assert low - 0.01 <= rank <= high + 0.01


def test_quantiles_leave_out_what_is_no_finite_number() -> None:
    """NaN and infinite values do not disturb the quantiles of the others, and the answer says that they are left out."""
    values = [1.0, float("nan"), float("inf"), 1.0, None]

    shown = row(COLUMNS["approx_quantiles"], whole(COLUMNS["approx_quantiles"], "d", values))

    assert shown == {
        "c": [1.0] * len(RANKS),
        "_errors": {"c": "values that are no finite numbers are left out"},
    }


@pytest.mark.parametrize(
    ("op", "shown"),
    [("collect_set", []), ("approx_count_distinct", 0), ("approx_quantiles", None), ("top_k", [])],
)
def test_group_without_values(op: str, shown: Any) -> None:
    """Nulls alone are no values."""
    assert row(COLUMNS[op], whole(COLUMNS[op], "l", [None, None])) == {"c": shown}


def test_top_values_are_exact_while_they_are_few() -> None:
    """With fewer distinct values than counters, the counts are exact; equal counts are in the order of the values."""
    values = [b"\xc3\xa9"] * 300 + [b"b"] * 200 + [b"\0"] * 200 + [b"rare-%d" % n for n in range(300)]
    random.Random(3).shuffle(values)

    shown = row(COLUMNS["top_k"], whole(COLUMNS["top_k"], "s", values))["c"]

    assert [(item["value"], item["count"]) for item in shown[:3]] == [("é", 300), ("\0", 200), ("b", 200)]


def test_top_values_are_within_the_error() -> None:
    """With many distinct values, the frequent ones are found, and their counts are within 0.35 % of all values."""
    dice = random.Random(11)
    values = [
        dice.choice((1, 1, 1, 2, 2)) if dice.random() < 0.3 else dice.randrange(10**6) for _ in range(60_000)
    ]
    exact = Counter(values)

    shown = row(COLUMNS["top_k"], whole(COLUMNS["top_k"], "l", values))["c"]

    assert [item["value"] for item in shown[:2]] == [1, 2]
    for item in shown[:2]:
        assert abs(item["count"] - exact[item["value"]]) <= 0.0035 * len(values)


def test_long_values_are_left_out_of_the_top() -> None:
    """A value that is too long for a counter is left out, and the answer says so."""
    values = [b"x" * (TOP_VALUE_BYTES_MAX + 1), b"y" * TOP_VALUE_BYTES_MAX]

    shown = row(COLUMNS["top_k"], whole(COLUMNS["top_k"], "s", values))

    assert [item["count"] for item in shown["c"]] == [1]
    assert "left out" in shown["_errors"]["c"]


def test_full_set_keeps_the_first_values() -> None:
    """A set keeps its first values in their order, and beyond its limit the answer says that there are more."""
    column = COLUMNS["collect_set"]

    assert row(column, whole(column, "l", [*range(50), 0, 49])) == {"c": list(range(50))}
    assert row(column, whole(column, "l", range(100_000))) == {
        "c": list(range(50)),
        "_errors": {"c": "there are more than the 50 values that are kept"},
    }


@pytest.mark.parametrize(
    ("type", "values", "shown"),
    [
        ("d", [0.0, -0.0, float("nan"), -float("nan")], [0.0, "NaN"]),
        ("n", [Decimal(100, 2), Decimal(-5, 2), Decimal(100, 2)], [1.0, -0.05]),
        ("b", [1, 0, 1], [True, False]),
        ("x", [b"", b"\0", b""], ["", "AA=="]),
        ("t", [0, 0], ["1970-01-01T00:00:00.000Z"]),
    ],
)
def test_equal_values_are_one_value_of_a_set(type: str, values: list[Any], shown: list[Any]) -> None:
    """Values that Spark takes for equal are one value: zeros of both signs, and all NaN."""
    column = COLUMNS["collect_set"]

    assert row(column, whole(column, type, values)) == {"c": shown}


@pytest.mark.parametrize(
    ("column", "value_bytes", "bound"),
    [
        (AggregateColumn("c", "collect_set", "x", limit=10_000), 1000, SET_BYTES_MAX + 8000),
        (COLUMNS["approx_count_distinct"], 1000, 3072),
        (COLUMNS["top_k"], 200, 768 * 230 + 64 * 300),
    ],
)
def test_state_is_bounded(column: AggregateColumn, value_bytes: int, bound: int) -> None:
    """However many values a group has, its state stays below a bound."""
    values = [b"%0*d" % (value_bytes, n) for n in range(30_000)]

    assert len(whole(column, "s", values)) <= bound


def test_digest_is_bounded() -> None:
    """The state of quantiles stays below 8 KiB."""
    values = [random.Random(1).random() * n for n in range(100_000)]

    assert len(whole(COLUMNS["approx_quantiles"], "d", values)) <= 8192


@pytest.mark.parametrize("op", ["approx_count_distinct", "approx_quantiles", "top_k", "collect_set"])
def test_merged_states_have_the_values_of_both(op: str) -> None:
    """Two states merge into one of all values, also if one or both have a sketch."""
    column = COLUMNS[op]
    folding = Folding(AggregateSpec((column,)), b"l")
    for first, second in ((10, 10), (1000, 10), (10, 1000), (1000, 1000)):
        groups = [folding.codec.new(), folding.codec.new()]
        for group, count in zip(groups, (first, second), strict=True):
            for n in range(count):
                folding.fold(group, 0, 1, [n % 40])
        groups[0].states = folding.codec.merge(groups[0].states, groups[1].states)
        everything = whole(column, "l", [n % 40 for count in (first, second) for n in range(count)])
        if op == "approx_quantiles":
            merged = row(column, folding.codec.encode(groups[0]))["c"]
            assert merged == pytest.approx(row(column, everything)["c"], abs=2)
        else:
            assert row(column, folding.codec.encode(groups[0])) == row(column, everything)
