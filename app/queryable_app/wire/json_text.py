"""Parse JSON under one set of rules for ingest, writes, keys and the Python client.

Strategy: Python's parser checks the grammar, in C. It has no bound for depth or for the length of a number, so both are checked
on the text, also in C: strings are removed, and brackets and digits are counted. The row writer's `Checks.java` has the same
rules in the JVM; `tests/golden/json_values.json` and a property test compare the two. A value is stored as its text, so the
readers here return the text, as bytes, with the value.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from queryable_app.errors import shown

T = TypeVar("T")

DEPTH_MAX: Final = 100
"""Arrays and objects that are open at once. Every common JSON parser takes this many."""
NUMBER_CHARACTERS_MAX: Final = 1000

_IN_NUMBERS: Final = bytes(
    48 if byte in b"-+.0123456789eE" else 32 for byte in range(256)
)  # others become spaces
_LONG_NUMBER: Final = b"0" * (NUMBER_CHARACTERS_MAX + 1)
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: one deeper, one less deep
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[{]}"))
_SPACES: Final = (" ", "\t", "\n", "\r")
# Possessive quantifiers: each regex reads any text in one pass.
_SPACE: Final = re.compile(r"[ \t\n\r]*+")
_STRING_OR_BRACKET: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)
_TOO_DEEP: Final = f"is nested deeper than {DEPTH_MAX}"
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
    text = _decoded(raw)
    try:
        value = (_UNIQUE if unique_names else _ANY).decode(text)
    except (ValueError, RecursionError) as error:
        raise _bad_json(error) from None
    check_bounds(raw)
    return JsonText(value, raw)


# A reader takes a text and a position, and returns the value there and the position after it.


def read_json(text: str, at: int) -> tuple[JsonText, int]:
    """Read the JSON value at a position."""
    value, end = _read(text, at)
    raw = text[at:end].encode()
    if end - at > DEPTH_MAX:  # a shorter text cannot exceed a bound
        check_bounds(raw)
    return JsonText(value, raw), end


def _read(text: str, at: int) -> tuple[Any, int]:
    try:
        return _ANY.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise _bad_json(error) from None


def read_stored(text: str, at: int) -> tuple[Any, int]:
    """Read a stored value, which may be older than the bounds. One too deep for Python's parser is the bytes of its text."""
    try:
        return _ANY.raw_decode(text, at)
    except RecursionError:
        end = skip_deep(text, at)
        return text[at:end].encode(), end
    except ValueError as error:
        raise _bad_json(error) from None


def read_array(text: str, at: int, read: Callable[[str, int], tuple[T, int]]) -> tuple[list[T], int]:
    """Read the array at a position, each element with `read`."""
    elements: list[T] = []
    at = skip_space(text, at + 1)
    if text[at : at + 1] == "]":
        return elements, at + 1
    while True:
        element, end = read(text, at)
        elements.append(element)
        at = skip_space(text, end)
        if text[at : at + 1] == "]":
            return elements, at + 1
        at = skip_space(text, _expect(text, at, ","))


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
        name, end = _read(text, at)
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
    text = _decoded(raw)
    found, end = read(text, skip_space(text, 0))
    if (at := skip_space(text, end)) != len(text):
        raise _bad_json(json.JSONDecodeError("Extra data", text, at))
    return found


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


def _decoded(raw: bytes) -> str:
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


def without_strings(raw: bytes, strings_max: int = -1) -> bytes:
    """Return a JSON text with a space in place of each string, or of the first `strings_max` of them.

    If the text is not JSON, that holds up to the place where it ceases to be.
    """
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # the quotes that remain begin and end strings
    return b" ".join(raw.split(b'"', 2 * strings_max)[::2])


def check_bounds(raw: bytes) -> None:
    """Raise BadJson for a JSON text that is too deep or has a number that is too long."""
    deep = raw.count(b"[") + raw.count(b"{") > DEPTH_MAX
    long = len(raw) > NUMBER_CHARACTERS_MAX and _LONG_NUMBER in raw.translate(_IN_NUMBERS)
    if not deep and not long:
        return
    bare = without_strings(raw)  # brackets and digits in strings do not count
    if long and _LONG_NUMBER in bare.translate(_IN_NUMBERS):
        raise BadJson(_TOO_LONG)
    steps = array("b", bare.translate(_STEPS, _NO_BRACKETS))
    if max(accumulate(steps), default=0) > DEPTH_MAX:
        raise BadJson(_TOO_DEEP)


def _bad_json(error: Exception) -> BadJson:
    if isinstance(error, BadJson):
        return error
    if isinstance(error, RecursionError):
        return BadJson(_TOO_DEEP)
    if isinstance(error, json.JSONDecodeError):
        return BadJson(f"is not JSON ({error})")
    return BadJson(_TOO_LONG)  # Python's bound on digits, which is above ours


def _refuse_constant(name: str) -> NoReturn:
    raise BadJson(f"is not JSON ({name} is no JSON number)")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise BadJson(f"has the name {shown(name)} twice")
        members[name] = value
    return members


_ANY: Final = json.JSONDecoder(parse_constant=_refuse_constant)
_UNIQUE: Final = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)
