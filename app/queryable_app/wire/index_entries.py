"""Compute which index entries a row has, from its stored bytes.

Strategy: the value is parsed once for all indexes. Most values are flat objects without escapes: in them a name in quotes and a
colon can only be a member, so a regex finds the field faster than a parser. Every other value is parsed. A field that is absent
or null has no entry. A field of another type than its index has none either, and is counted: the row itself stays readable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from queryable_app.config.indexes import IndexSpec, canonical_text
from queryable_app.wire.disk_format import ROW_HEADER_SIZE, TOMBSTONE
from queryable_app.wire.index_keys import ENCODERS, TEXT_BYTES_MAX, TEXT_END, NotOfType

Render = Callable[[bytes], bytes]

Finder = tuple[bytes, Callable[[bytes], re.Match[bytes] | None], bool, bytes, Callable[[object], bytes]]
"""The name in quotes, the search for its value, whether it is a text, the index's number, and the encoder."""

# What a regex finds of a value in a flat object. A number of 18 digits fits into 64 bits.
_CONTENTS: Final = {"string": rb'"([^"]*)"', "long": rb"(-?[0-9]{1,18})(?=[ \t\r\n]*[,}])"}
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")

_EXPIRY: Final = slice(ROW_HEADER_SIZE - 8, ROW_HEADER_SIZE)
_NEVER: Final = bytes(8)


class Entries(NamedTuple):
    """The entries of a row."""

    values: tuple[bytes, ...]
    """Index number and value, for each index that has the row."""
    mistyped: tuple[int, ...]
    """The indexes whose field is of another type."""


NONE: Final = Entries((), ())


def expiry_of(stored: bytes) -> bytes:
    """Return what an entry keeps besides its key: when the row expires; empty: never."""
    expiry = stored[_EXPIRY]
    return b"" if expiry == _NEVER else expiry


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_parse: Final = json.JSONDecoder(parse_constant=_refuse_constant).decode


class RowIndexes:
    """Hold the indexes of a view. An index's number is its place in the spec."""

    def __init__(self, indexes: Sequence[IndexSpec], render: Render | None = None) -> None:
        """`render` makes JSON of a stored value that is none."""
        self.specs = tuple(indexes)
        self.names = tuple(index.name for index in indexes)
        self.text = canonical_text(indexes)
        """What identifies the indexes of a store."""
        self._render = render
        self._fields = [
            (number, bytes((number,)), index.path, ENCODERS[index.type])
            for number, index in enumerate(indexes)
        ]
        self._finders = _finders(indexes)
        """What finds each field in a flat object; None: some field is not found that way."""
        self._all = Entries((), tuple(range(len(indexes))))

    def entries(self, stored: bytes) -> Entries:
        """Return the entries of a row, without the row's key."""
        if stored[0] & TOMBSTONE:
            return NONE
        value = stored[ROW_HEADER_SIZE:]
        if self._render is not None:
            value = self._render(value)
        elif (
            self._finders is not None and value[:1] == b"{" and b"\\" not in value and value.count(b"{") == 1
        ):
            found = self._found(value)
            if found is not None:
                return found
        return self._parsed(value)

    def _found(self, value: bytes) -> Entries | None:
        """Return the entries of a row whose value is one flat object without escapes; None if the value must be parsed."""
        entries: list[bytes] = []
        for name, find, is_text, head, encode in self._finders or ():
            if value.count(name) != 1:
                if name in value:
                    return None  # it is there twice, or is a value too
                continue
            match = find(value)
            if match is None:
                return None
            text = match[1]
            if not is_text:
                entries.append(head + encode(int(text)))
            elif len(text) > TEXT_BYTES_MAX:
                return None
            else:
                entries.append(head + text + TEXT_END)
        return Entries(tuple(entries), ())

    def _parsed(self, value: bytes) -> Entries:
        try:
            document = _parse(value.decode())
        except (ValueError, RecursionError):
            return self._all
        values: list[bytes] = []
        mistyped: list[int] = []
        for number, head, path, encode in self._fields:
            found = document
            try:
                for name in path:
                    if found is not None:
                        found = _member(found, name)
                if found is not None:
                    values.append(head + encode(found))
            except NotOfType:
                mistyped.append(number)
        return Entries(tuple(values), tuple(mistyped))


def _finders(indexes: Sequence[IndexSpec]) -> list[Finder] | None:
    """Return what finds each field in a flat object; None if a field is nested, or of a type that is only parsed."""
    finders: list[Finder] = []
    for number, index in enumerate(indexes):
        content = _CONTENTS.get(index.type)
        if content is None or len(index.path) > 1 or not _PLAIN_NAME.fullmatch(index.field):
            return None
        name = b'"%b"' % index.field.encode()
        find = re.compile(re.escape(name) + rb"[ \t\r\n]*:[ \t\r\n]*" + content).search
        finders.append((name, find, index.type == "string", bytes((number,)), ENCODERS[index.type]))
    return finders


def _member(value: Any, name: str) -> Any:
    """Return a member of an object; None if it is absent."""
    if type(value) is not dict:
        raise NotOfType
    return value.get(name)
