"""Test which JSON is valid in Python. tests/app/ingest/test_json_values.py compares it with the row writer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.wire.json_text import (
    DEPTH_MAX,
    BadJson,
    JsonText,
    Structure,
    parse_json,
    read_array,
    read_document,
    read_json,
    read_object,
    skip_deep,
)
from tests.support.golden import json_values, shortened

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=12,
)
SPACE = st.text(" \t\r\n", max_size=2)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Generate a JSON text in one of its notations."""
    value = draw(VALUES.filter(lambda value: "Infinity" not in json.dumps(value)))
    separators = draw(st.sampled_from([(",", ":"), (" , ", "\t:\n"), (", ", ": ")]))
    return json.dumps(value, ensure_ascii=draw(st.booleans()), separators=separators)


@pytest.mark.parametrize("raw", json_values("good"), ids=shortened)
def test_valid_json_keeps_its_text(raw: bytes) -> None:
    """A valid value comes with its exact text."""
    assert parse_json(raw).raw == raw


@pytest.mark.parametrize("raw", json_values("bad"), ids=shortened)
def test_invalid_json_is_refused_briefly(raw: bytes) -> None:
    """The message about an invalid value is short."""
    with pytest.raises(BadJson) as refused:
        parse_json(raw)
    assert 0 < len(str(refused.value)) < 120


@given(st.binary(max_size=30) | st.text('[]{}",:\\ 019-+.eEtrufalsn\n', max_size=30).map(str.encode))
def test_any_bytes_are_valid_or_refused(raw: bytes) -> None:
    """Any bytes are a value or refused, as in Python's own parser."""
    try:
        expected: object = json.loads(raw.decode(), parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        with pytest.raises(BadJson):
            parse_json(raw)
    else:
        assert repr(parse_json(raw).value) == repr(expected)


@given(st.lists(st.sampled_from("[{"), min_size=95, max_size=105), texts())
def test_depth_counts_open_brackets_only(opened: list[str], sibling: str) -> None:
    """Brackets in sequence or in strings do not add to the depth."""
    inner = "1"
    for bracket in opened:
        inner = f"[{sibling},{inner}]" if bracket == "[" else f'{{"[":{inner},"]":{sibling}}}'
    if len(opened) > DEPTH_MAX:
        with pytest.raises(BadJson, match="nested deeper"):
            parse_json(inner.encode())
    elif _depth(sibling) == 0:
        parse_json(inner.encode())


def _depth(text: str) -> int:
    def depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    return depth(json.loads(text))


@given(st.lists(st.tuples(texts(), texts(), SPACE), max_size=4), SPACE)
def test_parts_of_a_document_keep_their_text(records: list[tuple[str, str, str]], space: str) -> None:
    """Each member of each object in an array comes with its exact text."""
    objects = [f'{{{s}"value"{s}:{s}{value}{s},{s}"k"{s}:{s}{key}{s}}}' for key, value, s in records]
    raw = f"{space}[{space}{f'{space},{space}'.join(objects)}{space}]{space}".encode()

    def member(name: str, text: str, at: int) -> tuple[JsonText, int]:
        return read_json(text, at)

    found = read_document(raw, lambda text, at: read_array(text, at, lambda t, a: read_object(t, a, member)))
    assert [(item["k"].raw, item["value"].raw) for item in found] == [
        (k.encode(), v.encode()) for k, v, _ in records
    ]


@given(st.text('[]{}",:\\ 1akv', max_size=24))
def test_reading_in_parts_equals_reading_the_whole(text: str) -> None:
    """Reading a document in parts has the same result as reading it at once."""

    def value(text: str, at: int) -> tuple[object, int]:
        if text[at : at + 1] == "[":
            return read_array(text, at, value)
        if text[at : at + 1] == "{":
            return read_object(text, at, lambda _, text, at: value(text, at))
        found, end = read_json(text, at)
        return found.value, end

    try:
        whole: object = parse_json(text.encode(), unique_names=True).value
    except BadJson:
        with pytest.raises(BadJson):
            read_document(text.encode(), value)
    else:
        assert read_document(text.encode(), value) == whole


def test_repeated_name_is_refused_in_requests() -> None:
    """A request that repeats a name is refused, and the message has the name."""
    with pytest.raises(BadJson, match="has the name 'keys' twice"):
        parse_json(b'{"keys":[],"keys":[1]}', unique_names=True)


@given(texts(), st.text(max_size=5))
def test_end_is_found_at_any_depth(text: str, rest: str) -> None:
    """The end of a very deep array or object is found."""
    for nested in (f"[{text}]", "[" * 5000 + text + "]" * 5000):
        assert skip_deep(nested + rest, 0) == len(nested)


@given(texts(), st.integers(1, 9))
def test_structure_is_the_values_in_portions_of_any_size(text: str, size: int) -> None:
    """The counts of a text, taken in portions, are the commas, brackets and depth of its value, and nothing of its strings."""

    def count(value: object) -> tuple[int, int]:
        if not isinstance(value, list | dict):
            return 0, 0
        inner = [count(each) for each in (value if isinstance(value, list) else value.values())]
        return 1 + sum(c for c, _ in inner), max(0, len(value) - 1) + sum(c for _, c in inner)

    raw, structure = text.encode(), Structure()
    for start in range(0, len(raw), size):
        structure.add(raw[start : start + size])
    assert (structure.openings, structure.commas) == count(json.loads(text))
    assert structure.depth_max == _depth(text)


@pytest.mark.parametrize("text", ["9" * 65, "-" + "9" * 999, "0." + "1" * 900, "1" * 400, "9" * 310 + "e-9"])
def test_long_number_is_the_same_double(text: str) -> None:
    """A number of many characters is not converted before it is needed, and is then the same double or none."""
    given = parse_json(text.encode()).value
    try:
        expected = float(json.loads(text))
    except OverflowError:
        with pytest.raises(OverflowError):
            float(given)
    else:
        assert (float(given), repr(given)) == (expected, text)


@pytest.mark.parametrize(
    "evil",
    [
        b'"' + b'\\"' * 500_000,
        b"1" * 1_000_000,
        b"[" * 1_000_000,
        (b"9" * 999 + b",") * 1000,
        b"\\" * 1_000_000,
    ],
)
def test_hostile_text_takes_one_pass(evil: bytes) -> None:
    """A text that aims at slow regexes is refused within the timeout of the test."""
    with pytest.raises(BadJson):
        parse_json(evil)
    with pytest.raises(BadJson):
        parse_json(b"[" + evil + b',"' + evil + b"]")
