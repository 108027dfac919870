"""Take the fields of a value that `fields` names, each as the text that is stored.

Strategy: a scanner walks over the members of an object, and remembers where the wanted ones begin and end. So no number is
rounded, and no text is written in another way. Python's parser finds the ends of arrays and objects, in C.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from queryable_app.errors import invalid
from queryable_app.wire.json_paths import Path, Tokens, read_path
from queryable_app.wire.json_text import skip_deep, skip_space

FIELDS_MAX: Final = 100

_ADVICE: Final = 'write it like status,customer.name,"ship to"; docs/queries.md has the rules'
_NO_WORDS: Final = frozenset[str]()

# Possessive quantifiers: each regex reads any text in one pass.
_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NEXT: Final = re.compile(r"[ \t\n\r]*+(?:,[ \t\n\r]*+)?")
# A name, then its value if that is no array or object, and what is before the next name.
_MEMBER: Final = re.compile(
    rf"({_STRING})[ \t\n\r]*+:[ \t\n\r]*+(?:({_STRING}|[^\s,\]}}\[{{\"]++){_NEXT.pattern})?", re.DOTALL
)
# Only the end of what it reads counts, so no number is converted.
_SCANNER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The wanted members of an object. Each has its own wanted members, or none if all of it is wanted."""

    members: Mapping[str, _Wanted | None]
    names: Mapping[str, str] = field(default_factory=dict)
    """How each name is written in the answer."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The fields that one request names. Equal texts name equal fields."""

    text: str
    paths: tuple[Path, ...]
    _wanted: _Wanted = field(compare=False, repr=False)

    def of(self, value: bytes) -> bytes:
        """Return an object with the named fields that a JSON value has. What is no object has none."""
        try:
            text = value.decode()
            return (_taken(text, skip_space(text, 0), self._wanted)[0] or "{}").encode()
        except (ValueError, RecursionError):  # no JSON, which an older version may have stored
            return b"{}"


def parse_projection(raw: bytes) -> Projection:
    """Parse the text of a parameter. Raises Failure that names the position."""
    tokens = Tokens("fields", raw, _ADVICE)
    paths: list[Path] = []
    while True:
        at = tokens.next.at
        path = read_path(tokens, _NO_WORDS)
        if not path or not all(isinstance(part, str) for part in path):
            raise tokens.wrong(
                "an element of an array, or $, is no field", at, "name the array, or leave out `fields`"
            )
        paths.append(path)
        if len(paths) > FIELDS_MAX:
            raise invalid(
                "fields", f"names more than {FIELDS_MAX} fields", "name fewer, or leave out `fields`"
            )
        if not tokens.skip_sign(","):
            break
    if tokens.next.kind != "end":
        raise tokens.expected("a comma or the end")
    return Projection(raw.decode(), tuple(paths), _tree(paths))


def _tree(paths: Iterable[Path]) -> _Wanted:
    """Return the wanted members as a tree. A path that is the beginning of another one includes it."""
    below: dict[str, list[Path]] = {}
    for first, *rest in paths:
        assert isinstance(first, str)
        below.setdefault(first, []).append(tuple(rest))
    members = {name: None if () in others else _tree(others) for name, others in below.items()}
    return _Wanted(members, {name: json.dumps(name, ensure_ascii=False) for name in members})


def _taken(text: str, at: int, wanted: _Wanted) -> tuple[str, int]:
    """Return the wanted members of the value at a position, as an object or an empty text, and the position after it."""
    if text[at : at + 1] != "{":
        return "", _end(text, at)
    found: dict[str, str] = {}
    members = wanted.members
    at = skip_space(text, at + 1)
    while (member := _MEMBER.match(text, at)) is not None:
        written, scalar = member.groups()
        name = json.loads(written) if "\\" in written else written[1:-1]
        at = end = member.end()
        if name in members:
            inner = members[name]
            if inner is not None:
                found[name], end = _taken(text, at, inner) if scalar is None else ("", at)
            elif scalar is not None:
                found[name] = scalar
            else:
                end = _end(text, at)
                found[name] = text[at:end]
        elif scalar is None:
            end = _end(text, at)
        if scalar is None:
            following = _NEXT.match(text, end)
            assert following is not None  # it also matches the empty text
            at = following.end()
    if text[at : at + 1] != "}":
        raise ValueError("not JSON")
    pieces = [f"{written}:{found[name]}" for name, written in wanted.names.items() if found.get(name)]
    return "{" + ",".join(pieces) + "}" if pieces else "", at + 1


def _end(text: str, at: int) -> int:
    """Return the position after the value at a position."""
    try:
        return _SCANNER.raw_decode(text, at)[1]
    except RecursionError:
        return skip_deep(text, at)
