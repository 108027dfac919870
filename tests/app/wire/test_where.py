"""Test the conditions of `where`: what they are true of, what is refused, and that both stay within their bounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.errors import Failure, Reason
from queryable_app.wire.json_paths import TEXT_BYTES_MAX
from queryable_app.wire.where import CONDITIONS_MAX, DEPTH_MAX, decoded_exactly, parse_where

ROW = b"""{"name": "O'Hara", "odd name": {"x": 1}, "n": 9007199254740993, "d": 0.1000000000000000055, "t": true, "z": null,
 "tags": ["new", 5], "empty": {}, "a": {"b": {"c": "deep"}}, "and": 1, "na\\u00efve": "yes", "again": 1, "again": 2}"""


def verdict(text: str, row: bytes = ROW) -> bool | None:
    return parse_where(text.encode()).test(decoded_exactly(row))


def refusal(text: str | bytes) -> str:
    with pytest.raises(Failure) as raised:
        parse_where(text if isinstance(text, bytes) else text.encode())
    assert raised.value.reason is Reason.INVALID_REQUEST
    assert raised.value.detail.startswith("where: ")
    return raised.value.detail


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name = 'O''Hara'", True),
        ("name != 'O''Hara'", False),
        ("NAME = 'O''Hara'", None),  # names keep their case
        ('"odd name".x = 1', True),
        ("a.b.c = 'deep' AND Not t = FALSE", True),
        ("n = 9007199254740993", True),
        ("n = 9007199254740992", False),
        ("n = 9007199254740993.0", True),
        ("n > 9.007199254740992e15", True),
        ("d = 0.1000000000000000055", True),
        ("d > 0.1", True),
        ("0.1 < d", True),
        ("n < d", False),
        ("n = '9007199254740993'", None),
        ("t = true", True),
        ("t = 1", None),
        ("t > false", True),
        ("z = null", None),
        ("z is null", True),
        ("z is not null", False),
        ("absent is null", True),
        ("absent.deeper is null", True),
        ("name.deeper is null", True),
        ("empty is not null", True),
        ("empty = empty", None),
        ("tags[0] = 'new'", True),
        ("tags[1] = 5", True),
        ("tags[2] is null", True),
        ("tags.0x is null", "refused"),
        ("name[0] is null", True),
        ("$.name = name", True),
        ("$ is not null", True),
        ("name in ('x', 'O''Hara')", True),
        ("name in ('x', null)", None),
        ("name not in ('x', 'y')", True),
        ("name not in ('x', null)", None),
        ("name in (1, 2)", None),
        ("n in (9007199254740993.00)", True),
        ("t in (1)", None),
        ("z in (null)", None),
        ("name like 'O''%'", True),
        ("name not like 'O%'", False),
        ("name like 'o%'", False),
        ("name like '%'", True),
        ("n like '9%'", None),
        ("not z = 1", None),
        ("z = 1 and n = 1", False),
        ("z = 1 and t = true", None),
        ("z = 1 or t = true", True),
        ("z = 1 or t = false", None),
        ("t = false or t = true and n > 1", True),  # `and` binds closer
        ("(t = false or t = true) and n < 1", False),
        ('"and" = 1', True),
        ("na\u00efve = 'yes'", True),
        ("again = 2", True),
        ("1 = 1", True),
        ("null is null", True),
    ],
)
def test_condition_has_its_truth_value(text: str, expected: object) -> None:
    """A condition is true, false, or unknown (None), as in SQL."""
    if expected == "refused":
        refusal(text)
    else:
        assert verdict(text) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at character 1: a field or a value is expected, not the end"),
        ("total", "at character 6: =, !=, <, <=, >, >=, `in`, `like` or `is` is expected, not the end"),
        ("total == 1", "at character 8: a field or a value is expected, not '='"),
        ("total = 1 status = 2", "at character 11: `and`, `or` or the end is expected, not 'status'"),
        ("(total = 1", "at character 11: `)` is expected, not the end"),
        ("name = 'Ada", "at character 8: the quote ' is not closed"),
        ('"name = 1', 'at character 1: the quote " is not closed'),
        ("order.like = 1", "at character 7: 'like' is a word of the language"),
        ("a = 007", "at character 5: '007' is not understood"),
        ("a = 1x", "at character 5: '1x' is not understood"),
        ("a + 1 = 2", "at character 3: '+ 1 = 2' is not understood"),
        ("a[-1] = 2", "at character 3: the index of an element, from 0, is expected, not '-1'"),
        ("a in ()", "at character 7: a text, a number, true, false or null is expected, not ')'"),
        ("a in (b)", "at character 7: a text, a number, true, false or null is expected, not 'b'"),
        ("a is 5", "at character 6: `null` is expected, not '5'"),
        ("a like 5", "at character 8: a text in single quotes is expected, not '5'"),
        ("a like 'Ada'", "at character 8: like has the pattern 'Ada'"),
        ("a like '%Ada%'", "at character 8: like has the pattern '%Ada%'"),
        ("a like 'A_a%'", "at character 8: like has the pattern 'A_a%'"),
        ("a like 'A\\%'", "at character 8: like has the pattern 'A\\%'"),
        ("a like 'A%%'", "at character 8: like has the pattern 'A%%'"),
        (
            "a = 1e999999999999999999999",
            "at character 5: a number has at most 1000 characters, and 17 in its exponent",
        ),
    ],
)
def test_refusal_names_the_position(text: str, message: str) -> None:
    """A text that is not understood is refused with the character where reading it ended."""
    assert refusal(text) == f"where: {message}"


def test_text_is_bounded() -> None:
    """A text beyond 4 KiB is refused by its size, before it is read."""
    assert refusal("a = '" + "x" * (64 << 10)) == f"where: has {(64 << 10) + 5} bytes"
    assert parse_where(("a = '" + "x" * (TEXT_BYTES_MAX - 6) + "'").encode())


def test_text_that_is_not_utf8_is_refused() -> None:
    """The text is UTF-8."""
    assert refusal(b"a = '\xff'") == "where: is not UTF-8 at byte 5"


@pytest.mark.parametrize("opening", ["(", "not ", "not("])
def test_depth_is_bounded(opening: str) -> None:
    """Neither parentheses nor `not` nest beyond the bound, and 500 levels are refused like one too many."""
    closing = ")" * opening.count("(")
    levels = DEPTH_MAX // (2 if opening == "not(" else 1)
    parse_where((opening * levels + "a = 1" + closing * levels).encode())
    for many in (levels + 1, 500):
        assert f"is nested deeper than {DEPTH_MAX}" in refusal(opening * many + "a = 1" + closing * many)


def test_conditions_are_bounded() -> None:
    """There may be 100 conditions, and not one more."""
    parse_where(" or ".join(["a = 1"] * CONDITIONS_MAX).encode())
    assert "has more than 100 conditions" in refusal(" or ".join(["a = 1"] * (CONDITIONS_MAX + 1)))


@pytest.mark.parametrize(
    "row",
    [b"[" * 3000 + b"]" * 3000, b"\xff", b"1" * 5000, b'{"n": 1e%d}' % 10**30, b"NaN", b"", b'"n"', b"5"],
)
def test_value_that_cannot_be_compared_is_null(row: bytes) -> None:
    """A value that Python's parser or its numbers cannot hold has no fields, and fails no read."""
    assert verdict("n = 1", row) is None
    assert verdict("n is null", row) is True


def test_spaces_before_a_value_are_no_part_of_it() -> None:
    """A stored value may begin with white space."""
    assert verdict("n = 1", b' \n\t{"n": 1}') is True


# An evaluator of its own: conditions as tuples, numbers as fractions, with the rules of SQL written out.

NAMES = ["a", "b", "odd name", 'say "hi"', "in", "\u00fc"]
NUMBERS = [
    "0",
    "-0.0",
    "1",
    "1.0",
    "1e0",
    "10E-1",
    "9007199254740992",
    "9007199254740993",
    "-2.50",
    "0.1",
    "1e300",
    "1e-300",
]
STRINGS = ["", "a", "ab", "A", "it's", "\u00fc", "\U0001f600", "\uffff", "1", "%_\\"]

scalars = st.one_of(
    st.sampled_from(NUMBERS).map(lambda text: ("number", text)),
    st.sampled_from(STRINGS).map(lambda text: ("string", text)),
    st.sampled_from([("boolean", True), ("boolean", False), ("null", None)]),
)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda elements: ("array", elements)),
        st.dictionaries(st.sampled_from(NAMES), inner, max_size=4).map(lambda members: ("object", members)),
    ),
    max_leaves=12,
)
paths = st.lists(st.sampled_from(NAMES) | st.integers(0, 2), min_size=1, max_size=3).filter(
    lambda path: isinstance(path[0], str)
)
operands = st.one_of(paths.map(lambda path: ("path", path)), scalars)
conditions = st.recursive(
    st.one_of(
        st.tuples(st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">="]), operands, operands),
        st.tuples(st.just("in"), operands, st.lists(scalars, min_size=1, max_size=3), st.booleans()),
        st.tuples(st.just("like"), operands, st.sampled_from(STRINGS), st.booleans()),
        st.tuples(st.just("is null"), operands, st.booleans()),
    ),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=6,
)


def as_json(value: Any) -> str:
    kind, content = value
    if kind == "number":
        return str(content)
    if kind == "array":
        return "[" + ",".join(map(as_json, content)) + "]"
    if kind == "object":
        return "{" + ",".join(f"{json.dumps(name)}: {as_json(each)}" for name, each in content.items()) + "}"
    return json.dumps(content)


def as_text(condition: Any) -> str:
    match condition:
        case ("not", inner):
            return f"not ({as_text(inner)})"
        case ("and" | "or" as word, list(inner)):
            return f" {word} ".join(f"({as_text(each)})" for each in inner)
        case ("is null", operand, negated):
            return f"{operand_text(operand)} is {'not ' if negated else ''}null"
        case ("in", operand, values, negated):
            texts = ", ".join(map(operand_text, values))
            return f"{operand_text(operand)}{' not' if negated else ''} in ({texts})"
        case ("like", operand, prefix, negated):
            escaped = "".join("\\" + c if c in "%_\\" else c for c in prefix).replace("'", "''")
            return f"{operand_text(operand)}{' not' if negated else ''} like '{escaped}%'"
        case (sign, one, other):
            return f"{operand_text(one)} {sign} {operand_text(other)}"
    raise AssertionError(condition)


def operand_text(operand: Any) -> str:
    kind, content = operand
    if kind == "path":
        quoted = (
            '"' + each.replace('"', '""') + '"' if isinstance(each, str) else f"[{each}]" for each in content
        )
        return ".".join(quoted).replace(".[", "[")
    if kind == "string":
        return "'" + str(content).replace("'", "''") + "'"
    return str(content) if kind == "number" else json.dumps(content)


def looked_up(operand: Any, row: Any) -> Any:
    kind, content = operand
    if kind != "path":
        return operand
    found = row
    for part in content:
        kind, content = found
        has_part = kind == ("object" if isinstance(part, str) else "array")
        if not has_part or (part not in content if isinstance(part, str) else part >= len(content)):
            return ("null", None)
        found = content[part]
    return found


def compared(sign: str, one: Any, other: Any) -> bool | None:
    if one[0] != other[0] or one[0] in ("null", "array", "object"):
        return None
    as_order: dict[str, Callable[[Any], Any]] = {"number": Fraction, "string": str.encode, "boolean": int}
    left, right = as_order[one[0]](one[1]), as_order[one[0]](other[1])
    less, same = bool(left < right), bool(left == right)
    return {
        "=": same, "!=": not same, "<>": not same, "<": less, "<=": less or same, ">": not (less or same), ">=": not less
    }[sign]  # fmt: skip


def opposite(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def conjunction(truths: list[bool | None]) -> bool | None:
    return False if False in truths else None if None in truths else True


def truth_of(condition: Any, row: Any) -> bool | None:
    match condition:
        case ("not", inner):
            return opposite(truth_of(inner, row))
        case ("and", list(inner)):
            return conjunction([truth_of(each, row) for each in inner])
        case ("or", list(inner)):
            return opposite(conjunction([opposite(truth_of(each, row)) for each in inner]))
        case ("is null", operand, negated):
            return (looked_up(operand, row)[0] == "null") is not negated
        case ("in", operand, values, negated):
            found = looked_up(operand, row)
            truth = opposite(conjunction([opposite(compared("=", found, value)) for value in values]))
            return opposite(truth) if negated else truth
        case ("like", operand, prefix, negated):
            kind, content = looked_up(operand, row)
            return str(content).startswith(prefix) is not negated if kind == "string" else None
        case (sign, one, other):
            return compared(sign, looked_up(one, row), looked_up(other, row))
    raise AssertionError(condition)


@settings(max_examples=500, deadline=None)
@given(condition=conditions, row=documents)
def test_conditions_are_true_of_what_an_evaluator_written_apart_says(condition: Any, row: Any) -> None:
    """Random conditions on random values have the truth values that SQL gives them."""
    assert verdict(as_text(condition), as_json(row).encode()) is truth_of(condition, row)


PIECES = ["a", ".", '"x"', "'y'", "(", ")", "and", "or", "not", "in", "like", "is", "null", "=", "<=", "!=", "1", "-", "e5",
          "[", "]", ",", "$", " ", "'%'", "\x00", "\u00fc", "%", "\\", '"', "'"]  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join) | st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    """No text raises anything but the refusal of the parameter."""
    with suppress(Failure):
        assert parse_where(text.encode(errors="surrogatepass")).matches(ROW) in (True, False)


HOSTILE = [
    "a like '" + "%a" * 2000 + "'",
    "a like '" + "\\%" * 2000 + "%'",
    '"' + '""' * 2000,
    "a = '" + "''" * 2000,
    " " * 4000 + "!",
    "a" + ".b" * 2000 + " = 1",
    "a" + "[0]" * 1300 + " = 1",
    "a in (" + "1," * 2000 + "1)",
    "1" * 4000 + " = a",
    "not " * 1000 + "a = 1",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12])
def test_hostile_text_is_read_in_one_pass(text: str) -> None:
    """The longest texts cost some milliseconds, whatever they are made of."""
    begun = process_time()
    with suppress(Failure):
        parse_where(text.encode())
    assert process_time() - begun < 0.25


def test_list_of_many_values_is_looked_up_at_once() -> None:
    """A list holds as many values as fit in the text, and matches by a look-up in a set."""
    values = ", ".join(map(str, range(800)))
    assert verdict(f"n in ({values})", b'{"n": 799}') is True
    assert verdict(f"n in ({values})", b'{"n": 800}') is False
