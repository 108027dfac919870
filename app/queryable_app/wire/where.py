"""Parse the conditions of `where`, and decide which values match them.

Strategy: a recursive-descent parser makes one function of the text, once for each request. The text, its depth and the number of
its conditions are bounded, and nothing in the language repeats or searches. So evaluating a value costs no more than parsing it
and a bounded number of comparisons. The language has SQL's three truth values: a condition about null, about an absent field, or
between different types is unknown, and `matches` takes true alone. Numbers are compared as they are written, as int or Decimal.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from queryable_app.wire.json_paths import Get, Token, Tokens, getter, read_path
from queryable_app.wire.json_text import NUMBER_CHARACTERS_MAX

DEPTH_MAX: Final = 32
"""Parentheses and `not` that are open at once."""
CONDITIONS_MAX: Final = 100

_WORDS: Final = frozenset(("and", "or", "not", "in", "like", "is", "null", "true", "false"))
_ADVICE: Final = "write it like status = 'paid' and total >= 100; docs/queries.md has the language"
_LIKE_ADVICE: Final = (
    "only a beginning can be looked for: like 'abc%'; a literal % or _ is written \\% or \\_"
)

Test = Callable[[Any], bool | None]
"""From a decoded JSON value to true, false, or None: unknown."""

_NUMBER: Final = "number"
_KINDS: Final[dict[type, str]] = {int: _NUMBER, Decimal: _NUMBER, str: "text", bool: "boolean"}
"""What can be compared, each only with its like. Objects and arrays are not here, nor is null."""
_kind_of: Final = _KINDS.get
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Where:
    """The conditions of one request. Equal texts are equal conditions."""

    text: str
    test: Test = field(compare=False, repr=False)

    def matches(self, value: bytes) -> bool:
        """Return whether the conditions are true of a JSON value."""
        return self.test(decoded_exactly(value)) is True


def parse_where(raw: bytes) -> Where:
    """Parse the text of a parameter. Raises Failure that names the position."""
    parser = _Parser(Tokens("where", raw, _ADVICE))
    return Where(raw.decode(), parser.parse())


class _Parser:
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._depth = self._conditions = 0

    def parse(self) -> Test:
        test = self._any_of()
        if self._tokens.next.kind != "end":
            raise self._tokens.expected("`and`, `or` or the end")
        return test

    def _any_of(self) -> Test:
        tests = [self._all_of()]
        while self._tokens.skip_word("or"):
            tests.append(self._all_of())
        return tests[0] if len(tests) == 1 else _any_of(tests)

    def _all_of(self) -> Test:
        tests = [self._one()]
        while self._tokens.skip_word("and"):
            tests.append(self._one())
        return tests[0] if len(tests) == 1 else _all_of(tests)

    def _one(self) -> Test:
        negated = self._tokens.next.is_word("not")
        if not negated and not self._tokens.next.is_sign("("):
            return self._condition()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._tokens.wrong(f"is nested deeper than {DEPTH_MAX}")
        self._tokens.take()
        if negated:
            test = _not(self._one())
        else:
            test = self._any_of()
            self._tokens.expect_sign(")")
        self._depth -= 1
        return test

    def _condition(self) -> Test:
        tokens = self._tokens
        self._conditions += 1
        if self._conditions > CONDITIONS_MAX:
            raise tokens.wrong(f"has more than {CONDITIONS_MAX} conditions")
        left = self._operand()
        if tokens.next.is_sign(*_OPERATORS):
            return _comparison(_OPERATORS[tokens.take().text], left, self._operand())
        if tokens.skip_word("is"):
            is_null = not tokens.skip_word("not")
            if not tokens.skip_word("null"):
                raise tokens.expected("`null`")
            return _is_null(left, is_null)
        negated = tokens.skip_word("not")
        if tokens.skip_word("in"):
            test = _in(left, self._list())
        elif tokens.skip_word("like"):
            test = _begins(left, self._prefix())
        else:
            raise tokens.expected("=, !=, <, <=, >, >=, `in`, `like` or `is`")
        return _not(test) if negated else test

    def _operand(self) -> Get | _Literal:
        literal = self._literal()
        if literal is not None:
            return literal
        if self._tokens.next.kind not in ("word", "quoted") and not self._tokens.next.is_sign("$"):
            raise self._tokens.expected("a field or a value")
        return getter(read_path(self._tokens, _WORDS))

    def _literal(self) -> _Literal | None:
        token = self._tokens.next
        if token.kind == "text":
            literal = _Literal(_unquoted(token))
        elif token.kind == "number":
            literal = _Literal(self._number(token))
        elif token.is_word("true", "false", "null"):
            literal = _Literal({"true": True, "false": False, "null": None}[token.text.lower()])
        else:
            return None
        self._tokens.take()
        return literal

    def _number(self, token: Token) -> int | Decimal:
        number = _fraction(token.text) if set(token.text) & set(".eE") else _whole_number(token.text)
        if number is None:
            raise self._tokens.wrong(
                f"a number has at most {NUMBER_CHARACTERS_MAX} characters, and 17 in its exponent"
            )
        return number

    def _list(self) -> Sequence[Any]:
        self._tokens.expect_sign("(")
        values = []
        while True:
            literal = self._literal()
            if literal is None:
                raise self._tokens.expected("a text, a number, true, false or null")
            values.append(literal.value)
            if not self._tokens.skip_sign(","):
                break
        self._tokens.expect_sign(")")
        return values

    def _prefix(self) -> str:
        """Read a pattern that matches a beginning."""
        token = self._tokens.next
        if token.kind != "text":
            raise self._tokens.expected("a text in single quotes")
        pattern = _unquoted(token)
        prefix = []
        at = 0
        while at < len(pattern) and pattern[at] not in "%_":
            at += pattern[at] == "\\" and pattern[at + 1 : at + 2] in ("%", "_", "\\")
            prefix.append(pattern[at])
            at += 1
        if pattern[at:] != "%":
            raise self._tokens.wrong(f"like has the pattern {token.text[:64]}", advice=_LIKE_ADVICE)
        self._tokens.take()
        return "".join(prefix)


@dataclass(frozen=True, slots=True)
class _Literal:
    value: Any


def _unquoted(token: Token) -> str:
    return token.text[1:-1].replace("''", "'")


# Conditions.


def _comparison(compare: Callable[[Any, Any], bool], left: Get | _Literal, right: Get | _Literal) -> Test:
    if isinstance(right, _Literal) and not isinstance(left, _Literal):
        return _with_literal(compare, left, right.value)
    if isinstance(left, _Literal) and not isinstance(right, _Literal):
        return _with_literal(lambda value, literal: compare(literal, value), right, left.value)
    get_left, get_right = _as_get(left), _as_get(right)

    def test(value: Any) -> bool | None:
        one, other = get_left(value), get_right(value)
        kind = _kind_of(type(one))
        return compare(one, other) if kind is not None and kind is _kind_of(type(other)) else None

    return test


def _with_literal(compare: Callable[[Any, Any], bool], get: Get, literal: Any) -> Test:
    kind = _kind_of(type(literal))
    if kind is None:
        return lambda _: None

    def test(value: Any) -> bool | None:
        found = get(value)
        return compare(found, literal) if _kind_of(type(found)) is kind else None

    return test


def _as_get(operand: Get | _Literal) -> Get:
    if isinstance(operand, _Literal):
        value = operand.value
        return lambda _: value
    return operand


def _is_null(operand: Get | _Literal, is_null: bool) -> Test:
    get = _as_get(operand)
    return lambda value: (get(value) is None) is is_null


def _in(operand: Get | _Literal, values: Sequence[Any]) -> Test:
    get = _as_get(operand)
    by_kind = {
        kind: frozenset(value for value in values if _kind_of(type(value)) is kind)
        for kind in set(_KINDS.values())
    }
    # As SQL has it: `x = a or x = b`. One that is unknown makes it unknown, unless another is true.
    certain = {
        kind: len(by_kind[kind]) > 0 and all(_kind_of(type(v)) is kind for v in values) for kind in by_kind
    }

    def test(value: Any) -> bool | None:
        found = get(value)
        kind = _kind_of(type(found))
        if kind is None:
            return None
        return True if found in by_kind[kind] else False if certain[kind] else None

    return test


def _begins(operand: Get | _Literal, prefix: str) -> Test:
    get = _as_get(operand)

    def test(value: Any) -> bool | None:
        found = get(value)
        return found.startswith(prefix) if type(found) is str else None

    return test


def _not(test: Test) -> Test:
    def negated(value: Any) -> bool | None:
        found = test(value)
        return None if found is None else not found

    return negated


def _all_of(tests: Sequence[Test]) -> Test:
    def test(value: Any) -> bool | None:
        result: bool | None = True
        for each in tests:
            found = each(value)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return test


def _any_of(tests: Sequence[Test]) -> Test:
    def test(value: Any) -> bool | None:
        result: bool | None = False
        for each in tests:
            found = each(value)
            if found is True:
                return True
            if found is None:
                result = None
        return result

    return test


# Values.


def decoded_exactly(value: bytes) -> Any:
    """Decode a stored JSON value without rounding its numbers. A value that cannot be decoded is null."""
    try:
        text = value.decode()
        try:
            return _FAST.raw_decode(text)[0]
        except (ValueError, InvalidOperation):
            return _CAREFUL.decode(text)
    except (ValueError, RecursionError):
        return None


def _whole_number(text: str) -> int | None:
    return int(text) if len(text) <= NUMBER_CHARACTERS_MAX else None


def _fraction(text: str) -> Decimal | None:
    """Return the number, or None for one that Decimal cannot hold: its exponent has 18 digits or more."""
    if len(text) > NUMBER_CHARACTERS_MAX:
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


_FAST: Final = json.JSONDecoder(parse_float=Decimal)
_CAREFUL: Final = json.JSONDecoder(parse_float=_fraction, parse_int=_whole_number)
"""It also takes spaces at the beginning, and the longest numbers, which are null if they cannot be compared."""
