"""Test the functions, the stored states and the JSON of aggregates against a plain oracle."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.aggregates.catalog import takes
from queryable_app.aggregates.folding import Folding
from queryable_app.aggregates.rendering import state_renderer
from queryable_app.aggregates.states import StateError
from queryable_app.config.aggregate_spec import AggregateColumn, AggregateOp
from queryable_app.wire.contributions import ABSENT, Decimal
from queryable_app.wire.disk_format import ROW_HEADER_SIZE
from queryable_app.wire.row_frames import FrameError
from tests.support.aggregates import results, spec_of

I64 = st.integers(-(2**63), 2**63 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "l": I64 | st.integers(-3, 3),
    "d": st.floats() | st.sampled_from((0.0, -0.0)),
    "f": st.floats(width=32),
    "b": st.integers(0, 1),
    "s": st.text(max_size=3).map(str.encode),
    "n": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda unscaled: Decimal(unscaled, 2)),
    "-": st.just(2),
}
SCALAR_OPS: tuple[AggregateOp, ...] = ("count", "sum", "min", "max", "avg", "first", "last")
COLUMNS = [(op, type) for op in SCALAR_OPS for type in VALUES if takes(op, type)]


def folded(op: AggregateOp, type: str, values: Sequence[Any], cuts: Sequence[int] = ()) -> dict[str, Any]:
    """Return the JSON of one column after its values, with the state stored and loaded at each cut."""
    spec = spec_of(AggregateColumn("c", op, None if type == "-" else "x"))
    folding = Folding(spec, type.encode())
    group = folding.codec.new()
    for offset, value in enumerate(values):
        folding.fold(group, offset, 1, [value])
        if offset in cuts:
            group = folding.codec.decode(folding.codec.encode(group))
    row: dict[str, Any] = json.loads(state_renderer(spec)(folding.codec.encode(group)[ROW_HEADER_SIZE:]))
    return row


@pytest.mark.parametrize(("op", "type"), COLUMNS)
@settings(max_examples=40)
@given(st.data())
def test_column_equals_the_oracle(op: AggregateOp, type: str, data: st.DataObject) -> None:
    """Wherever states are stored and loaded, each function has the result of the plain oracle, for every type it takes."""
    values = data.draw(
        st.lists(st.sampled_from((ABSENT, None)) | VALUES[type], min_size=1, max_size=8), "values"
    )
    cuts = data.draw(st.lists(st.integers(0, 8)), "cuts")
    column = AggregateColumn("c", op, None if type == "-" else "x")

    expected = results(spec_of(column), type, [(b"k", [value]) for value in values])[b"k"]

    got = folded(op, type, values, cuts)
    if type == "f" and op in ("min", "max", "first", "last") and isinstance(got["c"], float):
        got["c"] = as_float(
            got["c"]
        )  # what is rendered is the shortest number, as test_float_is_shown_as_itself tests
    assert got == expected


@pytest.mark.parametrize(("op", "type"), [*COLUMNS, ("collect_set", "s"), ("approx_count_distinct", "l")])
@settings(max_examples=20)
@given(st.data())
def test_groups_folded_together_have_the_bytes_of_each(
    op: AggregateOp, type: str, data: st.DataObject
) -> None:
    """Groups that are decoded, folded and encoded by column have the same rows as those that take record by record."""
    value = st.sampled_from((ABSENT, None)) | VALUES[type]
    slices = data.draw(
        st.lists(st.lists(st.tuples(st.integers(0, 2), value), min_size=1, max_size=6), max_size=4)
    )
    folding = Folding(spec_of(AggregateColumn("c", op, None if type == "-" else "x")), type.encode())
    codec = folding.codec
    one_by_one = [codec.empty] * 3
    together = [codec.empty] * 3
    for offset, records in enumerate(slices):
        for slot, each in records:
            group = codec.decode(one_by_one[slot])
            folding.fold(group, offset, 7, [each])
            one_by_one[slot] = codec.encode(group)
        slots, values = zip(*records, strict=True)
        states = codec.decode_all(together)
        folding.fold_all(states, slots, [values])
        of_last = [offset if slot in slots else codec.decode(together[slot]).offset for slot in range(3)]
        times = [7 if last >= 0 else -1 for last in of_last]
        together = codec.encode_all(states, of_last, times, [0, 0, 0])
        assert together == one_by_one


def as_float(number: float) -> float:
    rounded: float = struct.unpack(">f", struct.pack(">f", number))[0]
    return rounded


@pytest.mark.parametrize(("op", "type"), COLUMNS)
@settings(max_examples=40)
@given(st.data())
def test_merged_states_are_those_of_all_records(op: AggregateOp, type: str, data: st.DataObject) -> None:
    """The states of two runs of records merge into the state of all of them; sums of doubles may round elsewhere."""
    finite = {"d": st.integers(-9, 9).map(float), "f": st.integers(-9, 9).map(float)}
    strategy = st.lists(st.sampled_from((ABSENT, None)) | finite.get(type, VALUES[type]), max_size=6)
    earlier, later = data.draw(strategy), data.draw(strategy)
    spec = spec_of(AggregateColumn("c", op, None if type == "-" else "x"))
    folding = Folding(spec, type.encode())

    def states_of(values: Sequence[Any]) -> list[Any]:
        group = folding.codec.new()
        for value in values:
            folding.fold(group, 0, 1, [value])
        return group.states

    assert folding.codec.merge(states_of(earlier), states_of(later)) == states_of([*earlier, *later])


@pytest.mark.parametrize(
    ("type", "value", "text"),
    [
        ("l", -(2**63), "-9223372036854775808"),
        ("d", 1.0, "1.0"),
        ("d", math.nan, '"NaN"'),
        ("d", -math.inf, '"-Infinity"'),
        ("f", 0.10000000149011612, "0.1"),
        ("f", 3.4028234663852886e38, "3.4028235e+38"),
        ("f", 1.401298464324817e-45, "1e-45"),
        ("b", 1, "true"),
        ("s", 'a"ü\n'.encode(), '"a\\"ü\\n"'),
        ("s", b"\xff", '"\ufffd"'),
        ("x", b"\0\xff", '"AP8="'),
        ("n", Decimal(-5, 2), "-0.05"),
        ("n", Decimal(10**37, 0), "1" + "0" * 37),
        ("n", Decimal(12345, 3), "12.345"),
        ("t", 1_795_341_600_123_456, '"2026-11-22T10:00:00.123Z"'),
        ("t", -1, '"1969-12-31T23:59:59.999Z"'),
        ("t", -62_135_596_800_000_000, '"0001-01-01T00:00:00.000Z"'),
        ("t", 253_402_300_800_000_000, '"+10000-01-01T00:00:00.000Z"'),
        ("D", 0, '"1970-01-01"'),
        ("D", -1, '"1969-12-31"'),
        ("D", 11_016, '"2000-02-29"'),
        ("D", 2_932_896, '"9999-12-31"'),
    ],
)
def test_json_of_a_value(type: str, value: Any, text: str) -> None:
    """A value is rendered as Spark's to_json renders it."""
    spec = spec_of(AggregateColumn("a", "last", "x"))
    folding = Folding(spec, type.encode())
    group = folding.codec.new()
    folding.fold(group, 0, 1, [value])

    stored = folding.codec.encode(group)

    assert state_renderer(spec)(stored[ROW_HEADER_SIZE:]).decode() == f'{{"a":{text}}}'


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_is_shown_as_itself(value: float) -> None:
    """The number that a float is rendered as is nearest to that float."""
    assert as_float(folded("max", "f", [value])["c"]) == value


def test_overflowed_sum_is_an_error_and_no_number() -> None:
    """A column whose sum exceeds its type is null with a reason; the others are as always, and it recovers with the sum."""
    spec = spec_of(AggregateColumn("total", "sum", "x"), AggregateColumn("n", "count"))
    folding = Folding(spec, b"l-")
    group = folding.codec.new()
    render = state_renderer(spec)
    seen = []
    for offset, value in enumerate((2**63 - 1, 1, -1)):
        folding.fold(group, offset, 1, [value, 2])
        seen.append(render(folding.codec.encode(group)[ROW_HEADER_SIZE:]))

    assert seen == [
        b'{"total":9223372036854775807,"n":1}',
        b'{"total":null,"n":2,"_errors":{"total": "sum beyond 64 bits"}}',
        b'{"total":9223372036854775807,"n":3}',
    ]


def test_decimals_beyond_38_digits_are_an_error_and_no_number() -> None:
    """A sum of decimals beyond 38 digits is null with a reason, for sum and avg, and is exact again once it is below."""
    spec = spec_of(AggregateColumn("total", "sum", "x"), AggregateColumn("mean", "avg", "x"))
    folding = Folding(spec, b"n")
    group = folding.codec.new()
    render = state_renderer(spec)
    seen = []
    for offset, unscaled in enumerate((10**38 - 1, 1, -(10**38) + 3)):
        folding.fold(group, offset, 1, [Decimal(unscaled, 0)])
        group = folding.codec.decode(folding.codec.encode(group))
        shown = json.loads(render(folding.codec.encode(group)[ROW_HEADER_SIZE:]), parse_float=str)
        seen.append((shown["total"], shown["mean"], shown.get("_errors", {}).get("total")))

    assert seen[1] == (None, None, "sum beyond 38 digits")
    assert (seen[0][0], seen[0][2]) == (10**38 - 1, None)
    assert seen[2] == (3, "1.0000", None)


def test_inputs_are_shared_by_expression_and_filter() -> None:
    """Columns take the input that their expression and filter name, and an absent input changes no state."""
    spec = spec_of(
        AggregateColumn("total", "sum", "x"),
        AggregateColumn("n", "count"),
        AggregateColumn("large", "sum", "x", filter="x > 9"),
        AggregateColumn("most", "max", "x"),
    )
    folding = Folding(spec, b"l-l")
    group = folding.codec.new()
    folding.fold(group, 0, 1, [10, 2, 10])
    folding.fold(group, 1, 1, [3, 2, ABSENT])

    assert group.states == [13, 2, 10, (10,)]


@pytest.mark.parametrize(("op", "types"), [("sum", b"s"), ("avg", b"t"), ("min", b"-"), ("count", b"ll")])
def test_contribution_that_no_column_takes_is_refused(op: AggregateOp, types: bytes) -> None:
    """Inputs of a type that the function does not take, or of another number, raise FrameError."""
    with pytest.raises(FrameError):
        Folding(spec_of(AggregateColumn("c", op, "x")), types)


@given(st.binary(max_size=60), st.integers(0, 200))
def test_foreign_state_is_refused(noise: bytes, cut: int) -> None:
    """Stored bytes that are no state of the view raise StateError."""
    spec = spec_of(AggregateColumn("a", "sum", "x"), AggregateColumn("b", "max", "y"))
    folding = Folding(spec, b"ls")
    group = folding.codec.new()
    folding.fold(group, 0, 1, [1, b"abc"])
    stored = folding.codec.encode(group)

    for malformed in (noise, stored[: min(cut, len(stored) - 1)], stored + b"\0"):
        with pytest.raises(StateError):
            folding.codec.decode(malformed)
    with pytest.raises(StateError):
        Folding(spec, b"ds").codec.decode(stored)
    with pytest.raises(StateError):
        state_renderer(spec_of(AggregateColumn("a", "sum", "x")))(stored[ROW_HEADER_SIZE:])
