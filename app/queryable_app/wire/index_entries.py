"""Compute which index entries a row has, from its stored bytes.

Strategy: a decoder that is made for the fields of the indexes reads them, and skips the rest of the value. What it refuses, such
as a lone surrogate or an object in place of a number, is parsed as a whole. A field that is absent or null has no entry. A field
of another type than its index has none either, and is counted: the row itself stays readable. Rows that are plain are taken
together, one index after the other, with less CPU than one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from itertools import compress
from operator import add, attrgetter
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from queryable_app.config.indexes import IndexSpec, canonical_text
from queryable_app.wire.disk_format import ROW_HEADER_SIZE, TOMBSTONE
from queryable_app.wire.index_keys import COLUMN_ENCODERS, ENCODERS, NotOfType

Render = Callable[[bytes], bytes]

Entries = tuple[tuple[bytes, ...], tuple[int, ...]]
"""The entries of a row without its key: index number and value, for each index that has the row. And the numbers of the indexes
whose field is of another type."""

_EXPIRY: Final = slice(ROW_HEADER_SIZE - 8, ROW_HEADER_SIZE)
_NEVER: Final = bytes(8)


NONE: Final[Entries] = ((), ())


class Column(NamedTuple):
    """The entries of many rows in one index."""

    entries: list[bytes]
    expiries: list[bytes] | None
    """When the row of each entry expires, as `expiry_of`. None: all are empty."""


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
        names = list(dict.fromkeys(index.path[0] for index in indexes))
        attributes = {name: f"f{number}" for number, name in enumerate(names)}
        members = [(attribute, Any, None) for attribute in attributes.values()]
        renamed = {attribute: name for name, attribute in attributes.items()}
        self._document = msgspec.defstruct("Document", members, rename=renamed, gc=False)
        self._attributes = attributes
        self._decode = msgspec.json.Decoder(self._document).decode
        self._fields = [
            (
                number,
                bytes((number,)),
                attrgetter(attributes[index.path[0]]),
                index.path[1:],
                ENCODERS[index.type],
            )
            for number, index in enumerate(indexes)
        ]
        self._all: Entries = ((), tuple(range(len(indexes))))
        self._columns = [
            (number, member, COLUMN_ENCODERS[indexes[number].type])
            for number, _, member, _, _ in self._fields
        ]
        self._nested = any(len(index.path) > 1 for index in indexes)

    def entries(self, stored: bytes) -> Entries:
        """Return the entries of a row."""
        if stored[0] & TOMBSTONE:
            return NONE
        value = stored[ROW_HEADER_SIZE:]
        if self._render is not None:
            value = self._render(value)
        try:
            document = self._decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._parsed(value)
        return self._found(document)

    def entries_by_column(self, keys: Collection[bytes], rows: Collection[bytes]) -> list[Column] | None:
        """Return for each index the entries of these rows, by their on-disk keys and stored bytes. None: a row is not plain, and
        `entries` has to look at each."""
        if self._nested:
            return None
        if any([row[0] & TOMBSTONE for row in rows]):
            live = [not row[0] & TOMBSTONE for row in rows]
            keys, rows = list(compress(keys, live)), list(compress(rows, live))
        decode, render, start = self._decode, self._render, ROW_HEADER_SIZE
        try:
            if render is not None:
                documents = [decode(render(row[start:])) for row in rows]
            else:
                documents = [decode(row[start:]) for row in rows]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        expire = not {_NEVER}.issuperset([row[_EXPIRY] for row in rows])
        expiries = [expiry_of(row) for row in rows] if expire else None
        columns: list[Column] = []
        for number, member, encode in self._columns:
            values, of, expiring = list(map(member, documents)), keys, expiries
            if None in values:
                there = [value is not None for value in values]
                values, of = list(compress(values, there)), list(compress(keys, there))
                expiring = None if expiries is None else list(compress(expiries, there))
            try:
                columns.append(Column(list(map(add, encode(number, values), of)), expiring))
            except NotOfType:
                return None
        return columns

    def _found(self, document: Any) -> Entries:
        values: list[bytes] = []
        mistyped: tuple[int, ...] = ()
        for number, head, member, below, encode in self._fields:
            found = member(document)
            if found is None:
                continue
            try:
                for name in below:
                    if found is not None:
                        found = _member(found, name)
                if found is not None:
                    values.append(head + encode(found))
            except NotOfType:
                mistyped += (number,)
        return tuple(values), mistyped

    def _parsed(self, value: bytes) -> Entries:
        try:
            parsed = _parse(value.decode())
        except (ValueError, RecursionError):
            return self._all
        if parsed is None:
            return NONE
        if type(parsed) is not dict:
            return self._all
        members = {attribute: parsed.get(name) for name, attribute in self._attributes.items()}
        return self._found(self._document(**members))


def _member(value: Any, name: str) -> Any:
    """Return a member of an object; None if it is absent."""
    if type(value) is not dict:
        raise NotOfType
    return value.get(name)
