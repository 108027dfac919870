"""Test the encoding of contributions."""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.wire import contributions
from queryable_app.wire.contributions import ABSENT, TYPES, Decimal
from queryable_app.wire.disk_format import ROW_HEADER_SIZE
from queryable_app.wire.row_frames import FrameError

I64 = st.integers(-(2**63), 2**63 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "l": I64,
    "d": st.floats(allow_nan=False),
    "f": st.floats(width=32, allow_nan=False),
    "b": st.integers(0, 1),
    "t": I64,
    "D": I64,
    "s": st.text(max_size=20).map(str.encode),
    "x": st.binary(max_size=20),
    "n": st.builds(Decimal, st.integers(-(10**38), 10**38), st.integers(0, 38)),
    "-": st.just(2),
}
TYPE_STRINGS = st.text(st.sampled_from(TYPES.decode()), min_size=1, max_size=6)


@st.composite
def encoded(draw: st.DrawFn) -> tuple[str, tuple[int, int, int, list[Any]]]:
    types = draw(TYPE_STRINGS)
    inputs = [draw(st.sampled_from((ABSENT, None)) | VALUES[each]) for each in types]
    return types, (draw(I64), draw(I64), draw(I64), inputs)


@given(encoded())
def test_contribution_survives_encoding(case: tuple[str, tuple[int, int, int, list[Any]]]) -> None:
    """A contribution is decoded as it was encoded, and its bytes name their types."""
    types, contribution = case
    stored = contributions.encode(types, *contribution)

    assert contributions.decode(stored) == contribution
    assert contributions.types_of(stored) == types.encode()


@st.composite
def rows_of_one_type(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    types = draw(TYPE_STRINGS)
    row = st.tuples(*[st.sampled_from((ABSENT, None)) | VALUES[each] for each in types])
    rows = draw(st.lists(st.tuples(I64, I64, I64, row), min_size=1, max_size=5))
    return types, [contributions.encode(types, *each) for each in rows]


@given(rows_of_one_type())
def test_contributions_by_column_are_those_of_each_row(case: tuple[str, list[bytes]]) -> None:
    """Rows that are decoded together give the columns of the rows that are decoded one by one."""
    types, rows = case
    each = [contributions.decode(row) for row in rows]

    offsets, timestamps, times, inputs = contributions.layout_of(types.encode()).decode_all(rows)

    assert [*zip(offsets, timestamps, times, strict=True)] == [one[:3] for one in each]
    assert [[*values] for values in zip(*inputs, strict=True)] == [one[3] for one in each]


@pytest.mark.parametrize("types", ["l", "b", "-", "s"])
@given(st.data())
def test_malformed_row_among_others_is_refused(types: str, data: st.DataObject) -> None:
    """If a row is refused when it is decoded alone, it is refused among others too; whatever byte of it is wrong."""
    good = contributions.encode(types, 1, 2, 3, [b"ab" if types == "s" else 1])
    at = data.draw(st.integers(0, len(good) - 1))
    wrong = good[:at] + bytes((data.draw(st.integers(0, 255)),)) + good[at + 1 :]
    layout = contributions.layout_of(types.encode())
    try:
        layout.decode(wrong)
    except FrameError:
        with pytest.raises(FrameError):
            layout.decode_all([good, wrong, good])
    else:
        assert len(layout.decode_all([good, wrong, good]).offsets) == 3


def test_layout_of_a_contribution() -> None:
    """The bytes are those that docs/protocols.md describes."""
    stored = contributions.encode("lsn-d", 7, 8, 9, [-2, b"ab", Decimal(-129, 2), 2, ABSENT])

    assert stored[:ROW_HEADER_SIZE] == struct.pack(">BqqQ", 0, 7, 8, 0)
    assert stored[ROW_HEADER_SIZE:] == (
        b"\x05lsn-d"
        + struct.pack(">q", 9)
        + struct.pack(">Bq", 2, -2)
        + struct.pack(">BI", 2, 2)
        + struct.pack(">BBI", 2, 2, 2)
        + b"\x02"
        + struct.pack(">Bd", 0, 0)
        + b"ab\xff\x7f"
    )


def test_not_a_number_survives_encoding() -> None:
    """NaN is a value, and no null."""
    _, _, _, inputs = contributions.decode(contributions.encode("d", 0, 0, 0, [math.nan]))

    assert math.isnan(inputs[0])


@given(encoded(), st.data())
def test_cut_contribution_is_refused(
    case: tuple[str, tuple[int, int, int, list[Any]]], data: st.DataObject
) -> None:
    """A contribution with fewer or more bytes than it needs raises FrameError."""
    types, contribution = case
    stored = contributions.encode(types, *contribution)
    cut = data.draw(st.integers(0, len(stored) - 1))

    for malformed in (stored[:cut], stored + b"\0"):
        with pytest.raises(FrameError):
            contributions.decode(malformed)


@given(encoded(), st.data())
def test_any_bytes_are_a_contribution_or_refused(
    case: tuple[str, tuple[int, int, int, list[Any]]], data: st.DataObject
) -> None:
    """Changed bytes decode to as many inputs as there are types, or raise FrameError; nothing else happens."""
    types, contribution = case
    stored = bytearray(contributions.encode(types, *contribution))
    for place in data.draw(st.lists(st.integers(0, len(stored) - 1), min_size=1, max_size=4)):
        stored[place] = data.draw(st.integers(0, 255))
    try:
        _, _, _, inputs = contributions.decode(bytes(stored))
    except FrameError:
        return
    assert len(inputs) == len(contributions.types_of(bytes(stored)))


@given(st.binary(max_size=80))
def test_noise_is_a_contribution_or_refused(noise: bytes) -> None:
    """Any bytes decode or raise FrameError."""
    with suppress(FrameError):
        contributions.decode(noise)


@pytest.mark.parametrize(
    ("types", "inputs", "place", "byte"),
    [
        ("l", [1], 0, 3),  # the presence
        ("b", [1], 1, 2),  # the value
        ("s", [None], 4, 1),  # the length of a null
        ("n", [Decimal(1, 0)], 5, 0),  # the length of a decimal
        ("n", [Decimal(1, 0)], 1, 39),  # its scale
    ],
)
def test_malformed_input_is_refused(types: str, inputs: list[Any], place: int, byte: int) -> None:
    """An unknown presence, a boolean other than 0 and 1, a null with a length, a decimal without digits and a scale
    beyond Spark's are refused."""
    stored = bytearray(contributions.encode(types, 0, 0, 0, inputs))
    stored[ROW_HEADER_SIZE + 1 + len(types) + 8 + place] = byte

    with pytest.raises(FrameError):
        contributions.decode(bytes(stored) + b"\0" * 2)
    with pytest.raises(FrameError):
        contributions.decode(bytes(stored))
