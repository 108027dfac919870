"""Encode and decode the states of a group: the row that a store keeps for it.

Strategy: after the row header come the number of columns, a code for the function of each, the fixed part of each state, and the
bytes of the states whose length varies. So a row describes itself, and is rendered without ingest. One `struct` for each code
string packs and unpacks header and fixed parts in one call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import repeat
from typing import Any, Final

from queryable_app.aggregates.catalog import UnknownFunction, function_of
from queryable_app.aggregates.functions import COUNT, VARIABLE
from queryable_app.config.aggregate_spec import AggregateColumn
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE

_FIRST_FIELD: Final = 5  # after the row header and the prefix


class StateError(Exception):
    """Report stored bytes that are no state of this view."""


class Group:
    """Hold the states of one group while records are folded into it, and of which record the last was."""

    __slots__ = ("expiry_ms", "offset", "states", "timestamp_ms")

    def __init__(self, states: list[Any], offset: int, timestamp_ms: int, expiry_ms: int = 0) -> None:
        self.states = states
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.expiry_ms = expiry_ms


class StateCodec:
    """Encode and decode rows whose functions have one string of codes."""

    def __init__(self, columns: Sequence[AggregateColumn], codes: bytes) -> None:
        if len(codes) != len(columns):
            raise StateError(f"a state of {len(codes)} columns in a view with {len(columns)}")
        self.codes = codes
        self.prefix = bytes((len(codes),)) + codes
        try:
            self.functions = tuple(
                [function_of(column, code) for column, code in zip(columns, codes, strict=True)]
            )
        except UnknownFunction as error:
            raise StateError(str(error)) from None
        layouts = [function.layout for function in self.functions]
        self._struct = struct.Struct(f"{ROW_HEADER.format}{len(self.prefix)}s{''.join(layouts)}")
        self._size = self._struct.size
        self._loads: list[tuple[Callable[[Any], Any], slice]] = []  # with the place of each column's fields
        field = _FIRST_FIELD
        for function in self.functions:
            self._loads.append((function.load, slice(field, field + len(function.layout))))
            field += len(function.layout)
        self._layouts = layouts
        self._dumps = [function.dump for function in self.functions]
        self._is_variable = [layout == VARIABLE for layout in layouts]
        self._any_variable = any(self._is_variable)
        self._states_are_fields = layouts == [COUNT] * len(layouts)

    def new(self, offset: int = -1, timestamp_ms: int = -1, expiry_ms: int = 0) -> Group:
        """Return a group without records."""
        return Group([function.new() for function in self.functions], offset, timestamp_ms, expiry_ms)

    @cached_property
    def empty(self) -> bytes:
        """Return the row of a group without records."""
        return self.encode(self.new())

    def decode(self, stored: bytes) -> Group:
        """Decode a row, with its header."""
        try:
            fields = self._struct.unpack_from(stored)
        except struct.error:
            raise StateError(f"a state of {len(stored)} bytes is cut off") from None
        if fields[4] != self.prefix:
            raise StateError(f"a state with the functions {fields[4]!r} where {self.prefix!r} are expected")
        if self._any_variable:
            states = self._load_variable(stored, fields)
        elif len(stored) != self._size:
            raise StateError(f"a state of {len(stored)} bytes where {self._size} are expected")
        elif self._states_are_fields:
            states = list(fields[_FIRST_FIELD:])
        else:
            states = [load(fields[place]) for load, place in self._loads]
        return Group(states, fields[1], fields[2], fields[3])

    def _load_variable(self, stored: bytes, fields: tuple[Any, ...]) -> list[Any]:
        end = self._size
        states: list[Any] = []
        try:
            for (load, place), variable in zip(self._loads, self._is_variable, strict=True):
                if variable:
                    start, end = end, end + fields[place.start]
                    states.append(load(stored[start:end]))
                else:
                    states.append(load(fields[place]))
        except (struct.error, IndexError) as error:
            raise StateError(f"a state of {len(stored)} bytes is malformed: {error}") from None
        if end != len(stored):
            raise StateError(f"a state of {len(stored)} bytes whose content ends at {end}")
        return states

    def encode(self, group: Group) -> bytes:
        """Encode a row, with its header."""
        variable: list[bytes] = []
        if self._states_are_fields:
            fields = group.states
        else:
            fields = []
            for dump, state, is_variable in zip(self._dumps, group.states, self._is_variable, strict=True):
                dumped = dump(state)
                if is_variable:
                    fields.append(len(dumped))
                    variable.append(dumped)
                else:
                    fields += dumped
        head = self._struct.pack(0, group.offset, group.timestamp_ms, group.expiry_ms, self.prefix, *fields)
        return head + b"".join(variable) if variable else head

    def decode_all(self, rows: Sequence[bytes]) -> list[list[Any]]:
        """Return the states of at least one row by column. Rows of a fixed length are decoded in one call."""
        if self._any_variable or {*map(len, rows)} != {self._size}:
            return [[*states] for states in zip(*[self.decode(row).states for row in rows], strict=True)]
        fields = [*zip(*self._struct.iter_unpack(b"".join(rows)), strict=True)]
        if fields[4].count(self.prefix) != len(rows):
            raise StateError(f"{len(rows)} states of which one has not the functions {self.prefix!r}")
        return [
            [*fields[place.start]] if layout == COUNT else [*map(load, zip(*fields[place], strict=True))]
            for layout, (load, place) in zip(self._layouts, self._loads, strict=True)
        ]

    def encode_all(
        self,
        states: Sequence[Sequence[Any]],
        offsets: Sequence[int],
        timestamps_ms: Sequence[int],
        expiries_ms: Iterable[int],
    ) -> list[bytes]:
        """Encode at least one row, with their headers. `states` are by column."""
        if self._any_variable:
            groups = map(Group, map(list, zip(*states, strict=True)), offsets, timestamps_ms, expiries_ms)
            return [*map(self.encode, groups)]
        fields: list[Iterable[Any]] = []
        for layout, dump, column in zip(self._layouts, self._dumps, states, strict=True):
            fields += [column] if layout == COUNT else zip(*map(dump, column), strict=True)
        pack, prefixes = self._struct.pack, repeat(self.prefix)
        return [*map(pack, repeat(0), offsets, timestamps_ms, expiries_ms, prefixes, *fields)]

    def merge(self, earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
        """Return the states of the records of both, of which those of `later` have the higher offsets."""
        return [
            function.merge(one, other)
            for function, one, other in zip(self.functions, earlier, later, strict=True)
        ]


@lru_cache(maxsize=64)
def state_codec(columns: tuple[AggregateColumn, ...], codes: bytes) -> StateCodec:
    return StateCodec(columns, codes)


def codes_of(stored: bytes) -> bytes:
    """Return the codes of a row's functions."""
    try:
        return stored[ROW_HEADER_SIZE + 1 : ROW_HEADER_SIZE + 1 + stored[ROW_HEADER_SIZE]]
    except IndexError:
        raise StateError(f"a state of {len(stored)} bytes") from None
