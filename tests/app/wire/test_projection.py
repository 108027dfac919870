"""Test that `fields` takes the named fields of a value, each as it is stored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.errors import Failure
from queryable_app.wire.projection import FIELDS_MAX, parse_projection

ROW = rb""" {"a": 1.00, "b" : {"c": [1, {"x":2}], "d":"\u00e9\"}"} , "\u0061b":1E2, "z":null, "e":{}, "again":1,"again" : -0.0,
 "nested":{"x":1}, "nested":5, "big":9007199254740993.10, "say \"hi\"":true}"""


def taken(fields: str, row: bytes = ROW) -> bytes:
    return parse_projection(fields.encode()).of(row)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("a", b'{"a":1.00}'),
        ("big,a", b'{"big":9007199254740993.10,"a":1.00}'),
        ("b.d", rb'{"b":{"d":"\u00e9\"}"}}'),
        ("b.c", b'{"b":{"c":[1, {"x":2}]}}'),
        ("b.c,a,b", rb'{"b":{"c": [1, {"x":2}], "d":"\u00e9\"}"},"a":1.00}'),
        ("ab", b'{"ab":1E2}'),
        ("z , e", b'{"z":null,"e":{}}'),
        ("again", b'{"again":-0.0}'),
        ("nested.x", b"{}"),
        ("a.b", b"{}"),
        ("absent,$.a", b'{"a":1.00}'),
        ('"say ""hi"""', b'{"say \\"hi\\"":true}'),
    ],
)
def test_fields_are_taken_as_they_are_stored(fields: str, expected: bytes) -> None:
    """Numbers and texts keep their form, nested fields their nesting, and of a repeated name the last one counts."""
    assert taken(fields) == expected


@pytest.mark.parametrize(
    "row",
    [b"5", b'"a"', b"null", b'[{"a":1}]', b"", b"{", b'{"a"', b'{"a":', b'{"a" 1}', b"\xff", b'{"b":1}']
)  # fmt: skip
def test_value_without_the_fields_is_an_empty_object(row: bytes) -> None:
    """What is no object, or no JSON, has no fields, and fails no read."""
    assert taken("a", row) == b"{}"


def test_deep_value_is_passed_over() -> None:
    """A value that is deeper than Python's parser goes, which an older version stored, hides nothing behind it."""
    deep = b'{"deep":' + b"[" * 5000 + b"]" * 5000 + b',"a":1}'
    assert taken("a", deep) == b'{"a":1}'
    assert taken("deep", deep) == deep[:-7] + b"}"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("", "at character 1: a field is expected, not the end"),
        ("a,", "at character 3: a field is expected, not the end"),
        ("a b", "at character 3: a comma or the end is expected, not 'b'"),
        ("b,a[0]", "at character 3: an element of an array, or $, is no field"),
        ("$", "at character 1: an element of an array, or $, is no field"),
        ("a..b", "at character 3: a field is expected, not '.'"),
        ('"a', 'at character 1: the quote " is not closed'),
        ("x" * 5000, "has 5000 bytes"),
        (",".join("a" * (FIELDS_MAX + 1)), f"names more than {FIELDS_MAX} fields"),
        ("a" + ".b" * 32, "at character 1: the path has more than 32 parts"),
    ],
)
def test_refusal_names_the_position(fields: str, message: str) -> None:
    """A text that is not understood is refused with the character where reading it ended."""
    with pytest.raises(Failure) as raised:
        parse_projection(fields.encode())
    assert raised.value.detail == f"fields: {message}"


NAMES = ["a", "b", 'x"y', "\u00fc", "c d"]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
PATHS = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3), min_size=1, max_size=4)


def selected(value: Any, paths: list[list[str]]) -> dict[str, Any]:
    """Take the fields in the simplest way: by parsing the value, a path after the other."""
    result: dict[str, Any] = {}
    for path in sorted(paths, key=len, reverse=True):  # a beginning includes what goes on from it
        found = value
        for name in path:
            found = found.get(name, ...) if isinstance(found, dict) else ...
        if found is not ...:
            into = result
            for name in path[:-1]:
                into = into.setdefault(name, {})
            into[path[-1]] = found
    return result


@settings(max_examples=300, deadline=None)
@given(value=VALUES, paths=PATHS, ascii_only=st.booleans(), indent=st.none() | st.integers(0, 2))
def test_fields_are_those_of_the_parsed_value(
    value: Any, paths: list[list[str]], ascii_only: bool, indent: int | None
) -> None:
    """Random fields of random values, however they are written, are those that a parser finds."""
    stored = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    quoted = ('"' + name.replace('"', '""') + '"' for name in NAMES)
    by_name = dict(zip(NAMES, quoted, strict=True))
    fields = ",".join(".".join(by_name[name] for name in path) for path in paths)
    assert json.loads(taken(fields, stored)) == selected(value, paths)
