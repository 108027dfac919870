"""Parse the .proto text of a key: a file whose only message has one scalar field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from queryable_app.errors import shown

ProtobufKeyType = Literal[
    "string", "bytes", "int32", "sint32", "sfixed32", "int64", "sint64", "sfixed64", "double"
]
_TYPES: Final[Mapping[str, ProtobufKeyType]] = {each: each for each in get_args(ProtobufKeyType)}
FIELD_NUMBER_MAX: Final = (1 << 29) - 1

_TOKEN: Final = re.compile(
    r"""(?P<space>\s++|//[^\n]*+|/\*(?s:.*?)\*/)|(?P<text>"[^"\n]*+"|'[^'\n]*+')|(?P<word>[A-Za-z_][\w.]*+)|(?P<number>\d++)|(?P<mark>[{}=;])""",
    re.ASCII,
)
_STATEMENTS: Final = ("package", "option")
_ADVICE: Final = (
    "a key is a file with one message that has one field of the types "
    f"{', '.join(_TYPES)}; other keys are read with key.format: bytes"
)


class ProtoTextError(Exception):
    """Report that a text is no schema of a key; the message says why."""


@dataclass(frozen=True, slots=True)
class ProtobufField:
    type: ProtobufKeyType
    number: int
    always_written: bool = False
    """Serializers also write the default of the type: the field is `optional`, or of proto2."""


def parse_protobuf_key(text: str) -> ProtobufField:
    """Return the field of the message. Raises ProtoTextError."""
    tokens = _Tokens(_tokens(text))
    proto3 = False
    found: ProtobufField | None = None
    while (word := tokens.next()) is not None:
        if word == "syntax":
            tokens.expect("=")
            proto3 = (tokens.next() or "")[1:-1] == "proto3"
            tokens.expect(";")
        elif word in _STATEMENTS:
            tokens.skip_statement()
        elif word == "message" and found is None:
            tokens.next()
            tokens.expect("{")
            found = _field(tokens, proto3)
            tokens.expect("}")
        elif word != ";":
            raise ProtoTextError(f"{shown(word)} is not read here: {_ADVICE}")
    if found is None:
        raise ProtoTextError(f"it has no message: {_ADVICE}")
    return found


def _field(tokens: _Tokens, proto3: bool) -> ProtobufField:
    word = tokens.next()
    label = word in ("optional", "required")
    kind = (tokens.next() if label else word) or ""
    if kind not in _TYPES:
        raise ProtoTextError(f"{shown(kind)} is not read here: {_ADVICE}")
    tokens.next()
    tokens.expect("=")
    number = tokens.next() or ""
    tokens.expect(";")
    if not (number.isdecimal() and len(number) < 10 and 1 <= int(number) <= FIELD_NUMBER_MAX):
        raise ProtoTextError(
            f"{shown(number)} is no number of a field: write one from 1 to {FIELD_NUMBER_MAX}"
        )
    return ProtobufField(_TYPES[kind], int(number), label or not proto3)


class _Tokens:
    def __init__(self, tokens: list[str]) -> None:
        self._rest = tokens[::-1]

    def next(self) -> str | None:
        return self._rest.pop() if self._rest else None

    def expect(self, mark: str) -> None:
        if (found := self.next()) != mark:
            raise ProtoTextError(f"{shown(found or 'its end')} stands where {mark} was expected: {_ADVICE}")

    def skip_statement(self) -> None:
        while self.next() not in (";", None):
            pass


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ProtoTextError(f"{shown(text[at : at + 20])} is not read here: {_ADVICE}")
        if match.lastgroup != "space":
            found.append(match[0])
        at = match.end()
    return found
