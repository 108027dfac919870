"""Test that the bytes of index entries sort as the indexed values do, and name them exactly."""

from __future__ import annotations

import json
import math
from itertools import repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.config.indexes import IndexSpec, IndexType
from queryable_app.wire.disk_format import Row, encode_row
from queryable_app.wire.index_entries import RowIndexes, expiry_of
from queryable_app.wire.index_keys import (
    ENCODERS,
    TEXT_BYTES_MAX,
    NotOfType,
    after_value,
    encode_parameter,
    value_end,
    value_json,
)

LONGS = st.integers(-(2**63), 2**63 - 1)
VALUES: dict[IndexType, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(codec="utf-8"), max_size=8)
    | st.text(st.sampled_from("a\0\x01ÿ"), max_size=5),
    "long": LONGS,
    "double": st.floats(allow_nan=False, allow_infinity=False) | LONGS,
    "boolean": st.booleans(),
    "timestamp": LONGS,
}
TYPES: list[IndexType] = list(VALUES)


def order(value: Any, type: IndexType) -> Any:
    return value.encode() if type == "string" else float(value) if type == "double" else value


@pytest.mark.parametrize("type", TYPES)
@given(data=st.data())
def test_entries_sort_as_values_and_then_keys(type: IndexType, data: st.DataObject) -> None:
    """Entries of any two rows compare as their values do, and those of one value as the keys of their rows."""
    one, other = data.draw(VALUES[type]), data.draw(VALUES[type])
    key, other_key = data.draw(st.binary(max_size=4)), data.draw(st.binary(max_size=4))
    entry = b"\1" + ENCODERS[type](one) + key
    other_entry = b"\1" + ENCODERS[type](other) + other_key

    assert (entry < other_entry) == ((order(one, type), key) < (order(other, type), other_key))
    assert entry[value_end(entry, type) :] == key


@pytest.mark.parametrize("type", TYPES)
@given(data=st.data())
def test_value_is_read_back(type: IndexType, data: st.DataObject) -> None:
    """The value of an entry is shown as JSON, and a request that writes it finds the same entries."""
    value = data.draw(VALUES[type])
    encoded = b"\0" + ENCODERS[type](value)
    shown, cut = value_json(encoded, type)
    read = json.loads(shown)

    assert not cut
    assert type == "timestamp" or read == (float(value) if type == "double" else value)
    text = json.dumps(read) if isinstance(read, bool | float) else str(read)
    assert b"\0" + encode_parameter(text, type, bound=True) == encoded


@given(tail=st.text(max_size=3), other=st.text(max_size=3))
def test_long_text_is_found_exactly(tail: str, other: str) -> None:
    """Texts that differ only behind the first KiB have different entries, behind those of every shorter text."""
    begin = "é" * (TEXT_BYTES_MAX // 2)
    one, two = (ENCODERS["string"](begin + each.replace("\ud800", "")) for each in ("x" + tail, "x" + other))
    assert (one == two) == (tail == other)
    assert ENCODERS["string"](begin) < one < ENCODERS["string"]("ê")
    assert len(one) <= 2 * TEXT_BYTES_MAX + 18
    assert value_json(b"\0" + one, "string") == (json.dumps(begin).encode(), True)


def test_text_is_cut_between_characters() -> None:
    """What is shown of a long text ends before a character that does not fit."""
    encoded = ENCODERS["string"]("a" + "é" * TEXT_BYTES_MAX)
    assert json.loads(value_json(b"\0" + encoded, "string")[0]) == "a" + "é" * (TEXT_BYTES_MAX // 2 - 1)


def test_zeroes_are_equal() -> None:
    """-0.0 and 0.0 are one value."""
    assert ENCODERS["double"](-0.0) == ENCODERS["double"](0.0) == ENCODERS["double"](0)


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("string", 1),
        ("string", ["a"]),
        ("long", 1.0),
        ("long", True),
        ("long", "1"),
        ("long", 2**63),
        ("double", "1"),
        ("double", math.inf),
        ("double", True),
        ("double", 10**400),
        ("boolean", 1),
        ("timestamp", "yesterday"),
        ("timestamp", 1.5),
        ("timestamp", True),
    ],
)
def test_value_of_another_type_is_refused(type: IndexType, value: object) -> None:
    """A value of another type has no entry."""
    with pytest.raises(NotOfType):
        ENCODERS[type](value)


@given(st.binary(min_size=1, max_size=6).filter(lambda value: value[0] < 16), st.binary(max_size=3))
def test_range_of_a_value_has_all_its_entries(value: bytes, key: bytes) -> None:
    """The end of a value's range is behind each of its entries, and not behind those of the next value."""
    assert value <= value + key < after_value(value)
    assert not after_value(value).startswith(value)


def stored(value: bytes | None) -> bytes:
    return encode_row(Row(1, 1, 0, value))


@pytest.mark.parametrize(
    ("value", "entries", "mistyped"),
    [
        (b'{"user": "ada", "a": {"b": 2}}', 2, ()),
        (b'{"user": null, "a": {"b": null}}', 0, ()),
        (b'{"user": "ada", "a": null}', 1, ()),
        (b'{"a": {}}', 0, ()),
        (b'{"user": 1, "a": {"b": 2.0}}', 0, (0, 1)),
        (b'{"user": "ada", "a": [1]}', 1, (1,)),
        (b"5", 0, (0, 1)),
        (b"not JSON", 0, (0, 1)),
        (b'{"user": NaN}', 0, (0, 1)),
        (None, 0, ()),
    ],
)
def test_entries_follow_from_the_value(value: bytes | None, entries: int, mistyped: tuple[int, ...]) -> None:
    """An absent or null field has no entry, and one of another type is counted."""
    indexes = RowIndexes([IndexSpec("by-user", "user", "string"), IndexSpec("by-b", "a.b", "long")])
    values, of_other_types = indexes.entries(stored(value))
    assert (len(values), of_other_types) == (entries, mistyped)


NAMES = st.sampled_from(["user", "n", "x", 'user"', "us"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(["user", '"user":', "{", "\\", "y" * 1500])
    | st.lists(st.sampled_from(["user", 1, '"n":1']), max_size=2)
)
OBJECTS = st.dictionaries(NAMES, LEAVES | st.dictionaries(NAMES, LEAVES, max_size=2), max_size=4)


def parsed_entries(specs: list[IndexSpec], text: bytes) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """Return the entries of a value by a parser of whole documents."""
    values, mistyped = [], []
    for number, spec in enumerate(specs):
        found = json.loads(text)
        try:
            for name in spec.path:
                if found is not None and type(found) is not dict:
                    raise NotOfType
                found = None if found is None else found.get(name)
            if found is not None:
                values.append(bytes((number,)) + ENCODERS[spec.type](found))
        except NotOfType:
            mistyped.append(number)
    return tuple(values), tuple(mistyped)


@given(
    value=OBJECTS | st.lists(OBJECTS, max_size=2) | LEAVES,
    ascii=st.booleans(),
    indent=st.sampled_from([None, 1]),
    types=st.lists(st.sampled_from(TYPES), min_size=4, max_size=4),
)
def test_entries_are_those_that_a_parser_of_the_whole_value_finds(
    value: Any, ascii: bool, indent: int | None, types: list[IndexType]
) -> None:
    """The decoder that skips other fields finds what a parser finds: in nested objects, beside a field that is indexed itself,
    in texts with escapes, and in values of any type."""
    fields = ["user", "n", "user.n", "x"]
    specs = [IndexSpec(f"by-{field}", field, type) for field, type in zip(fields, types, strict=True)]
    text = json.dumps(value, ensure_ascii=ascii, indent=indent).encode("utf-8", "surrogatepass")
    try:
        expected = parsed_entries(specs, text)
    except ValueError:  # a lone surrogate that is not escaped
        expected = (), tuple(range(len(specs)))
    assert RowIndexes(specs).entries(stored(text)) == expected


@given(
    documents=st.lists(OBJECTS | LEAVES, max_size=4),
    plain=st.lists(st.tuples(st.text(max_size=3), LONGS | st.none()), max_size=4),
    types=st.lists(st.sampled_from(TYPES), min_size=2, max_size=2),
    expires_ms=st.sampled_from([0, 5]),
)
def test_columns_have_the_entries_of_each_row(
    documents: list[Any], plain: list[tuple[str, int | None]], types: list[IndexType], expires_ms: int
) -> None:
    """Rows that are taken by column have the entries and expiries that each has alone, or are refused."""
    indexes = RowIndexes([IndexSpec("by-user", "user", types[0]), IndexSpec("by-n", "n", types[1])])
    values = [*documents, *({"user": user, "n": n} for user, n in plain)]
    rows = [
        (b"%d" % number, encode_row(Row(1, 1, expires_ms, json.dumps(value).encode())))
        for number, value in enumerate(values)
    ]
    rows.append((b"deleted", stored(None)))
    columns = indexes.entries_by_column([key for key, _ in rows], [row for _, row in rows])
    if columns is not None:
        alone = [(key, row, indexes.entries(row)) for key, row in rows]
        assert not any(wrong for _, _, (_, wrong) in alone)
        found = {
            entry: expiry
            for column in columns
            for entry, expiry in zip(column.entries, column.expiries or repeat(b""), strict=False)
        }
        assert found == {value + key: expiry_of(row) for key, row, (values, _) in alone for value in values}


@pytest.mark.parametrize(
    ("odd", "by_column"),
    [
        (b'{"user": "bo", "n": 1}', True),
        (b'{"n": null}', True),
        (b'{"user": "b\\u0000", "n": 1}', False),
        (b'{"user": "%b", "n": 1}' % (b"y" * (TEXT_BYTES_MAX + 1)), False),
        (b'{"user": 1, "n": 1}', False),
        (b'{"user": "bo", "n": 9223372036854775808}', False),
        (b'{"user": "bo", "n": -9223372036854775808}', True),
        (b'{"user": "bo", "n": -9223372036854775809}', False),
        (b'{"user": "bo", "n": true}', False),
        (b"not JSON", False),
    ],
)
def test_rows_beside_an_odd_one_are_taken_one_by_one(odd: bytes, by_column: bool) -> None:
    """A row whose field is of another type, or a text with a rare form, makes its slice be refused by column."""
    indexes = RowIndexes([IndexSpec("by-user", "user", "string"), IndexSpec("by-n", "n", "long")])
    rows = [(b"a", stored(b'{"user": "ada", "n": 2}')), (b"b", stored(odd))]
    assert (indexes.entries_by_column(*zip(*rows, strict=True)) is not None) == by_column


@pytest.mark.parametrize(
    "number",
    ["1.0", "-0", "-0.0", "1e2", "9223372036854775807", "9223372036854775808", "1" * 400, "1e400", "0.1"],
)
@pytest.mark.parametrize("type", ["long", "double", "timestamp"])
def test_numbers_are_read_as_a_parser_reads_them(type: IndexType, number: str) -> None:
    """A number beyond 64 bits, a whole number with a point, and one too large for a double have the entry that a parser gives."""
    specs = [IndexSpec("by-n", "n", type)]
    text = b'{"n": %b, "x": [1.5, {"n": 2}]}' % number.encode()
    assert RowIndexes(specs).entries(stored(text)) == parsed_entries(specs, text)


def test_last_of_repeated_names_counts() -> None:
    """If a value repeats a name, its last member is indexed, as parsers read it."""
    indexes = RowIndexes([IndexSpec("by-user", "user", "string")])
    assert indexes.entries(stored(b'{"user": "a", "user": "b"}')) == indexes.entries(stored(b'{"user": "b"}'))
