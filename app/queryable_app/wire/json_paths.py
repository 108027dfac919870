"""Parse the paths of a query into the values of rows, such as `customer."home address".city` and `items[0].price`.

Strategy: one tokeniser serves `where` and `fields`, so a path is written alike in both. A path has no wildcard and no
function: it names one place, and a value that does not have that place is null there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from queryable_app.errors import Failure, invalid, shown

TEXT_BYTES_MAX: Final = 4096
PATH_PARTS_MAX: Final = 32
_INDEX_DIGITS_MAX: Final = 9

Path = tuple[str | int, ...]
"""The names and indexes that lead to a value. Empty: the whole value."""
Get = Callable[[Any], Any]
"""From a decoded JSON value to the value at a path. None stands for null and for what is absent."""

# Possessive quantifiers: the regex reads any text in one pass.
_TOKEN: Final = re.compile(
    r"""[ \t\r\n]*+(?:
    (?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![\w.]))
    |(?P<text>'(?:[^']|'')*+')
    |(?P<quoted>"(?:[^"]|"")*+")
    |(?P<word>[^\W\d]\w*+)
    |(?P<sign><=|>=|!=|<>|[=<>(),.\[\]$])
    |(?P<end>\Z)
    )""",
    re.VERBOSE,
)


class Token(NamedTuple):
    kind: str  # number, text, quoted, word, sign or end
    text: str
    at: int  # of its first character

    def is_sign(self, *signs: str) -> bool:
        return self.kind == "sign" and self.text in signs

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words


class Tokens:
    """Read the tokens of one parameter, one at a time."""

    def __init__(self, parameter: str, raw: bytes, advice: str) -> None:
        self._parameter = parameter
        self._advice = advice
        if len(raw) > TEXT_BYTES_MAX:
            raise invalid(
                parameter, f"has {len(raw)} bytes", f"write at most {TEXT_BYTES_MAX}, or filter at the client"
            )
        try:
            self._text = raw.decode()
        except UnicodeDecodeError as error:
            raise invalid(parameter, f"is not UTF-8 at byte {error.start}", "encode it as UTF-8") from None
        self._end = 0
        self.next = self._read()

    def take(self) -> Token:
        """Return the next token, and go on to the one after it."""
        token = self.next
        self.next = self._read()
        return token

    def skip_sign(self, sign: str) -> bool:
        """Take the next token if it is this sign."""
        found = self.next.is_sign(sign)
        if found:
            self.take()
        return found

    def skip_word(self, word: str) -> bool:
        """Take the next token if it is this word."""
        found = self.next.is_word(word)
        if found:
            self.take()
        return found

    def expect_sign(self, sign: str) -> None:
        if not self.skip_sign(sign):
            raise self.expected(f"`{sign}`")

    def expected(self, what: str) -> Failure:
        """Return the failure of a text that has something else at the next token."""
        found = "the end" if self.next.kind == "end" else shown(self.next.text)
        return self.wrong(f"{what} is expected, not {found}")

    def wrong(self, problem: str, at: int | None = None, advice: str = "") -> Failure:
        """Return the failure for a problem at a position, by default that of the next token."""
        position = (self.next.at if at is None else at) + 1
        return invalid(self._parameter, f"at character {position}: {problem}", advice or self._advice)

    def _read(self) -> Token:
        found = _TOKEN.match(self._text, self._end)
        if found is None or found.lastgroup is None:
            at = self._end + len(self._text[self._end :]) - len(self._text[self._end :].lstrip(" \t\r\n"))
            raise self.wrong(_unreadable(self._text[at:]), at)
        self._end = found.end()
        return Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup))


def _unreadable(text: str) -> str:
    if text[0] in "'\"":
        return f"the quote {text[0]} is not closed"
    return f"{shown(text[:16])} is not understood"


def read_path(tokens: Tokens, reserved: frozenset[str]) -> Path:
    """Read the path at the next token. A name that is one of the `reserved` words, or has other characters, is in quotes."""
    at = tokens.next.at
    parts: list[str | int] = []
    if not tokens.skip_sign("$"):
        parts.append(_read_name(tokens, reserved))
    while True:
        if tokens.skip_sign("."):
            parts.append(_read_name(tokens, reserved))
        elif tokens.skip_sign("["):
            parts.append(_read_index(tokens))
            tokens.expect_sign("]")
        else:
            break
        if len(parts) > PATH_PARTS_MAX:
            raise tokens.wrong(f"the path has more than {PATH_PARTS_MAX} parts", at)
    return tuple(parts)


def _read_name(tokens: Tokens, reserved: frozenset[str]) -> str:
    token = tokens.next
    if token.kind == "quoted":
        tokens.take()
        return token.text[1:-1].replace('""', '"')
    if token.kind != "word":
        raise tokens.expected("a field")
    if token.text.lower() in reserved:
        raise tokens.wrong(
            f"{shown(token.text)} is a word of the language",
            advice=f'write a field of that name as "{token.text}"',
        )
    tokens.take()
    return token.text


def _read_index(tokens: Tokens) -> int:
    text = tokens.next.text
    if tokens.next.kind != "number" or not text.isdigit() or len(text) > _INDEX_DIGITS_MAX:
        raise tokens.expected("the index of an element, from 0,")
    tokens.take()
    return int(text)


def getter(path: Path) -> Get:
    """Return the function that finds the value at a path."""
    if not path:
        return lambda value: value
    first, *others = (_member(part) for part in path)
    if not others:
        return first

    def get(value: Any) -> Any:
        value = first(value)
        for other in others:
            if value is None:
                return None
            value = other(value)
        return value

    return get


def _member(part: str | int) -> Get:
    if isinstance(part, str):
        return lambda value: value.get(part) if type(value) is dict else None
    return lambda value: value[part] if type(value) is list and part < len(value) else None
