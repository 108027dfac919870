"""Parse JSON under one set of rules for ingest, writes, keys and the Python client.

Strategy: Python's parser checks the grammar, in C, and calls back for each number, whose length is bounded here. It has no bound
for depth, so that is checked on the text, also in C: strings are removed, and brackets are counted. The parsed value would not
do: of a repeated name it has only the last member. The row writer's `Checks.java` has the same rules in the JVM;
`tests/golden/json_values.json` and a property test compare the two. A value is stored as its text, so the readers here return
the text, as bytes, with the value.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar

from queryable_app.errors import shown

T = TypeVar("T")

DEPTH_MAX: Final = 100
"""Arrays and objects that are open at once. Every common JSON parser takes this many."""
NUMBER_CHARACTERS_MAX: Final = 1000

_CONVERTED_CHARACTERS_MAX: Final = 64  # every number of the formats of keys and values is shorter
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: one deeper, one less deep
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[{]}"))
_SPACES: Final = (" ", "\t", "\n", "\r")
# Possessive quantifiers: each regex reads any text in one pass.
_SPACE: Final = re.compile(r"[ \t\n\r]*+")
_STRING_OR_BRACKET: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_TOO_LONG: Final = f"has a number of more than {NUMBER_CHARACTERS_MAX} characters"


class BadJson(ValueError):
    """Report what is wrong with a text, in words that continue a sentence about it."""


class JsonText(NamedTuple):
    """Hold a JSON value and its text."""

    value: Any
    raw: bytes


def parse_json(raw: bytes, unique_names: bool = False) -> JsonText:
    """Parse bytes that are one JSON document.

    A value that is stored may repeat a name. With `unique_names`, which a node uses for its own requests, it may not.
    """
    value = parse_text(decoded(raw), unique_names)
    check_depth(raw)
    return JsonText(value, raw)


def parse_text(text: str, unique_names: bool = False) -> Any:
    """Parse a text that is one JSON document. The caller checks its depth."""
    try:
        value = (_UNIQUE if unique_names else _ANY).decode(text)
        if _SURROGATE.search(text):
            _CHECKED_NAMES.decode(text)
    except (ValueError, RecursionError) as error:
        raise _bad_json(error) from None
    return value


# A reader takes a text and a position, and returns the value there and the position after it.


def read_json(text: str, at: int) -> tuple[JsonText, int]:
    """Read the JSON value at a position."""
    value, end = read_value(text, at)
    raw = text[at:end].encode()
    if end - at > DEPTH_MAX:  # a shorter text cannot exceed the bound
        check_depth(raw)
    return JsonText(value, raw), end


def read_value(text: str, at: int) -> tuple[Any, int]:
    """Read the value at a position without its text. The caller checks its depth."""
    try:
        value, end = _ANY.raw_decode(text, at)
        if _SURROGATE.search(text, at, end):
            _CHECKED_NAMES.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise _bad_json(error) from None
    return value, end


def read_stored(text: str, at: int) -> tuple[Any, int]:
    """Read a stored value, which may be older than the bounds. One too deep for Python's parser is the bytes of its text."""
    try:
        return _STORED.raw_decode(text, at)
    except RecursionError:
        end = skip_deep(text, at)
        return text[at:end].encode(), end
    except ValueError as error:
        raise _bad_json(error) from None


def read_array(text: str, at: int, read: Callable[[str, int], tuple[T, int]]) -> tuple[list[T], int]:
    """Read the array at a position, each element with `read`."""
    elements = Elements(text, at, read)
    return list(elements), elements.end


class Elements(Generic[T]):
    """Iterate over the array at a position, and read each element with `read`. `end` is the position after the array."""

    def __init__(self, text: str, at: int, read: Callable[[str, int], tuple[T, int]]) -> None:
        self._text = text
        self._at = at
        self._read = read
        self.end = -1  # until the iteration is over

    def __iter__(self) -> Iterator[T]:
        text, at = self._text, skip_space(self._text, self._at + 1)
        if text[at : at + 1] != "]":
            while True:
                element, end = self._read(text, at)
                yield element
                at = skip_space(text, end)
                if text[at : at + 1] == "]":
                    break
                at = skip_space(text, _expect(text, at, ","))
        self.end = at + 1


def read_object(
    text: str, at: int, read: Callable[[str, str, int], tuple[T, int]]
) -> tuple[dict[str, T], int]:
    """Read the object at a position, each member with `read`, which also gets the name. Refuse a repeated name."""
    members: dict[str, T] = {}
    at = skip_space(text, at + 1)
    if text[at : at + 1] == "}":
        return members, at + 1
    while True:
        _expect(text, at, '"')
        name, end = read_value(text, at)
        if name in members:
            raise BadJson(f"has the name {shown(name)} twice")
        at = skip_space(text, _expect(text, skip_space(text, end), ":"))
        members[name], end = read(name, text, at)
        at = skip_space(text, end)
        if text[at : at + 1] == "}":
            return members, at + 1
        at = skip_space(text, _expect(text, at, ","))


def read_document(raw: bytes, read: Callable[[str, int], tuple[T, int]]) -> T:
    """Read bytes that are one JSON document, with `read` for its value."""
    text = decoded(raw)
    found, end = read(text, skip_space(text, 0))
    require_end(text, end)
    return found


def require_end(text: str, at: int) -> None:
    """Refuse a text that has more than space after a position."""
    if (at := skip_space(text, at)) != len(text):
        raise _bad_json(json.JSONDecodeError("Extra data", text, at))


def skip_space(text: str, at: int) -> int:
    if text[at : at + 1] not in _SPACES:
        return at
    found = _SPACE.match(text, at)
    assert found is not None  # it also matches the empty text
    return found.end()


def skip_deep(text: str, at: int) -> int:
    """Return where the array or object at a position ends, however deep it is. The text must be JSON."""
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(text, at):
        character = text[found.start()]
        if character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if depth == 0:
            return found.end()
    raise BadJson("ends too early")


def decoded(raw: bytes) -> str:
    """Return the text of a JSON document."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise BadJson(f"is not UTF-8 at byte {error.start}") from None
    if text.startswith("\ufeff"):
        raise BadJson("begins with a byte order mark, which is not JSON")
    return text


def _expect(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise _bad_json(json.JSONDecodeError(f"Expecting {character!r}", text, at))
    return at + 1


class Structure:
    """Count what a JSON text has outside its strings: commas, brackets that open, and the depth.

    Add the text in portions of any size. If it is not JSON, the counts hold up to the place where it ceases to be.
    """

    def __init__(self) -> None:
        self.commas = self.openings = self.depth_max = 0
        self._depth = self._in_string = 0
        self._half_escape = b""  # the last byte of the portion before, if the byte that it escapes is missing

    def add(self, portion: bytes) -> None:
        bare = self._without_strings(portion)
        self.commas += bare.count(b",")
        brackets = bare.translate(_STEPS, _NO_BRACKETS)
        if brackets:
            self.openings += brackets.count(b"\x01")
            steps = array("b", brackets)
            self.depth_max = max(self.depth_max, max(accumulate(steps, initial=self._depth)))
            self._depth += sum(steps)

    def _without_strings(self, portion: bytes) -> bytes:
        """Return a portion with a space in place of each string."""
        portion, self._half_escape = self._half_escape + portion, b""
        if b"\\" in portion:
            if (len(portion) - len(portion.rstrip(b"\\"))) % 2:
                portion, self._half_escape = portion[:-1], b"\\"
            portion = portion.replace(b"\\\\", b"").replace(
                b'\\"', b""
            )  # the other quotes begin and end strings
        pieces = portion.split(b'"')
        bare = b" ".join(pieces[self._in_string :: 2])
        self._in_string ^= (len(pieces) - 1) & 1
        return bare


def check_depth(raw: bytes) -> None:
    """Raise BadJson for a JSON text that is too deep."""
    if not may_be_deep(raw):
        return
    structure = Structure()
    structure.add(raw)
    if structure.depth_max > DEPTH_MAX:
        raise too_deep()


def may_be_deep(raw: bytes) -> bool:
    """Return whether a text has enough brackets to be too deep, in its strings or outside."""
    return len(raw) > DEPTH_MAX and raw.count(b"[") + raw.count(b"{") > DEPTH_MAX


def too_deep() -> BadJson:
    return BadJson(f"is nested deeper than {DEPTH_MAX}")


def _bad_json(error: Exception) -> BadJson:
    if isinstance(error, BadJson):
        return error
    if isinstance(error, RecursionError):
        return too_deep()
    if isinstance(error, json.JSONDecodeError):
        return BadJson(f"is not JSON ({error})")
    return BadJson(_TOO_LONG)  # Python's bound on digits of a stored value, which is above ours


def _refuse_constant(name: str) -> NoReturn:
    raise BadJson(f"is not JSON ({name} is no JSON number)")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise BadJson(f"has the name {shown(name)} twice")
        members[name] = value
    return members


def _check_names(pairs: list[tuple[str, Any]]) -> None:
    """Refuse a name that UTF-8 cannot carry, as Spark's parser does. It takes such a string only as a value."""
    try:
        for name, _ in pairs:
            name.encode()
    except UnicodeEncodeError:
        raise BadJson("has a name with half of a surrogate pair") from None


class LongNumber:
    """Hold the text of a number that takes too long to convert. Only a double, or nothing, can be made of it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def __float__(self) -> float:
        try:
            return float(int(self._text))
        except ValueError:
            return float(self._text)


def _whole_number(text: str) -> int | LongNumber:
    return int(text) if len(text) <= _CONVERTED_CHARACTERS_MAX else _long_number(text)


def _fraction(text: str) -> float | LongNumber:
    return float(text) if len(text) <= _CONVERTED_CHARACTERS_MAX else _long_number(text)


def _long_number(text: str) -> LongNumber:
    if len(text) > NUMBER_CHARACTERS_MAX:
        raise BadJson(_TOO_LONG)
    return LongNumber(text)


_NUMBERS: Final[Any] = {
    "parse_constant": _refuse_constant,
    "parse_int": _whole_number,
    "parse_float": _fraction,
}
_ANY: Final = json.JSONDecoder(**_NUMBERS)
_UNIQUE: Final = json.JSONDecoder(**_NUMBERS, object_pairs_hook=_unique)
_CHECKED_NAMES: Final = json.JSONDecoder(**_NUMBERS, object_pairs_hook=_check_names)
_STORED: Final = json.JSONDecoder(parse_constant=_refuse_constant)
