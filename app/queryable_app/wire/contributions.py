"""Encode and decode contributions: what one record adds to the aggregates of its group.

Strategy: a contribution is the content of a row of kind ROW in an aggregated view, after the row header. It has the record's
event time and the value of each input that the view's columns aggregate (docs/protocols.md has the layout). The types of the
inputs are the same for all records of a view, so one `struct` for each type string decodes header, time and fixed values in one
call. Malformed bytes raise `FrameError`, and nothing of them is returned.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE
from queryable_app.wire.row_frames import FrameError

TYPES: Final = b"ldfbtDsxn-"
"""Integer, double, float, boolean, timestamp (µs), date (days), string, binary, decimal, and no value (records are counted)."""

DECIMAL_SCALE_MAX: Final = 38  # Spark's

_FIXED: Final = {
    "l": "q",
    "d": "d",
    "f": "d",
    "b": "B",
    "t": "q",
    "D": "q",
    "s": "I",
    "x": "I",
    "n": "BI",
    "-": "",
}
_VARIABLE: Final = frozenset("sxn")
_FIRST_FIELD: Final = 6  # after the row header, the prefix and the event time
_ABSENT, _NULL, _VALUE = 0, 1, 2


class _Absent:
    """Mark the input of a record for which the filter is not true."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
_NO_VALUE: Final = (ABSENT, None)  # by presence
_BOOLEANS: Final = frozenset((ABSENT, None, 0, 1))


class Decimal(NamedTuple):
    """A decimal number: the unscaled value over ten to the power of the scale."""

    unscaled: int
    scale: int


Input = Any
"""ABSENT, None, or the value: int (l, t, D; 0 or 1 for b; 2 for no value), float (d, f), bytes (s, x) or Decimal (n)."""
Contribution = tuple[int, int, int, list[Input]]
"""Offset, timestamp (ms), event time (ms) and inputs; a plain tuple, because one is made for every record."""


class Contributions(NamedTuple):
    """Contributions by column: item n of each column is of record n."""

    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    event_times_ms: Sequence[int]
    inputs: Sequence[Sequence[Input]]

    def picked(self, places: Sequence[int]) -> Contributions:
        """Return those of these records, of which one may occur several times."""
        offsets, timestamps, times, *inputs = [
            [column[place] for place in places] for column in (*self[:3], *self.inputs)
        ]
        return Contributions(offsets, timestamps, times, inputs)


class Layout:
    """Decode and encode contributions with one string of types. `layout_of` returns it."""

    def __init__(self, types: bytes) -> None:
        if not types or len(types) > 255 or set(types) - set(TYPES):
            raise FrameError(f"{types!r} are no types of inputs")
        self.types = types.decode()
        self.prefix = bytes((len(types),)) + types
        self._struct = struct.Struct(
            f"{ROW_HEADER.format}{len(self.prefix)}sq" + "".join("B" + _FIXED[each] for each in self.types)
        )
        self._places: list[tuple[int, int]] = []  # of presence and value in the fields
        field = _FIRST_FIELD
        for each in self.types:
            self._places.append((field, field + 1 if each != "-" else field))
            field += 1 + len(_FIXED[each])
        self._booleans = [n for n, each in enumerate(self.types) if each == "b"]
        self._variable = [n for n, each in enumerate(self.types) if each in _VARIABLE]

    def decode(self, stored: bytes) -> Contribution:
        """Decode a row's content, with its header."""
        try:
            fields = self._struct.unpack_from(stored)
            inputs = [
                fields[value] if fields[presence] == _VALUE else _NO_VALUE[fields[presence]]
                for presence, value in self._places
            ]
        except (struct.error, IndexError):
            raise FrameError(f"{len(stored)} bytes are no contribution with the types {self.types}") from None
        end = self._struct.size
        if self._variable:
            end = self._decode_variable(stored, fields, inputs, end)
        if end != len(stored) or fields[0] or fields[4] != self.prefix:
            raise FrameError(f"a contribution of {len(stored)} bytes whose content ends at {end}")
        for n in self._booleans:
            if inputs[n] not in (ABSENT, None, 0, 1):
                raise FrameError(f"the boolean {inputs[n]}")
        return fields[1], fields[2], fields[5], inputs

    def decode_all(self, rows: Sequence[bytes]) -> Contributions:
        """Decode the contents of at least one row, with their headers. Rows of a fixed length are decoded in one call."""
        if self._variable or {*map(len, rows)} != {self._struct.size}:
            offsets, timestamps, times, inputs = zip(*map(self.decode, rows), strict=True)
            return Contributions(offsets, timestamps, times, [*zip(*inputs, strict=True)])
        fields = [*zip(*self._struct.iter_unpack(b"".join(rows)), strict=True)]
        if any(fields[0]) or fields[4].count(self.prefix) != len(rows):
            raise FrameError(f"{len(rows)} rows of which one is no contribution with the types {self.types}")
        columns = [_inputs(fields[presence], fields[value]) for presence, value in self._places]
        for n in self._booleans:
            if not {*columns[n]} <= _BOOLEANS:
                raise FrameError("a boolean that is neither 0 nor 1")
        return Contributions(fields[1], fields[2], fields[5], columns)

    def _decode_variable(self, stored: bytes, fields: tuple[Any, ...], inputs: list[Input], end: int) -> int:
        """Replace the lengths in `inputs` by the values behind the fixed part, and return their end."""
        for n in self._variable:
            _, place = self._places[n]
            is_decimal = self.types[n] == "n"
            start, end = end, end + fields[place + is_decimal]
            if inputs[n] is None or inputs[n] is ABSENT:
                if start != end:
                    raise FrameError("an input without a value that has a length")
                continue
            content = stored[start:end]
            if not is_decimal:
                inputs[n] = content
            elif content and fields[place] <= DECIMAL_SCALE_MAX:
                inputs[n] = Decimal(int.from_bytes(content, "big", signed=True), fields[place])
            else:
                raise FrameError(f"a decimal of {len(content)} bytes with the scale {fields[place]}")
        return end

    def encode(self, contribution: Contribution) -> bytes:
        """Encode a contribution with its row header, as the JVM writer does."""
        offset, timestamp_ms, event_time_ms, inputs = contribution
        fixed: list[Any] = []
        variable: list[bytes] = []
        for each, given in zip(self.types, inputs, strict=True):
            fixed.append(_ABSENT if given is ABSENT else _NULL if given is None else _VALUE)
            value = None if given is ABSENT else given
            if each == "n":
                content = b"" if value is None else twos_complement(value.unscaled)
                fixed += (0 if value is None else value.scale, len(content))
                variable.append(content)
            elif each in _VARIABLE:
                fixed.append(len(value or b""))
                variable.append(value or b"")
            elif each != "-":
                fixed.append(0 if value is None else value)  # -0.0 keeps its sign
        head = self._struct.pack(0, offset, timestamp_ms, 0, self.prefix, event_time_ms, *fixed)
        return head + b"".join(variable)


def _inputs(presences: Sequence[int], values: Sequence[Any]) -> Sequence[Input]:
    """Return a column of values, of which some may be absent or null."""
    if presences.count(_VALUE) == len(presences):
        return values
    if max(presences) > _VALUE:
        raise FrameError(f"an input with the presence {max(presences)}")
    return [
        value if presence == _VALUE else _NO_VALUE[presence]
        for presence, value in zip(presences, values, strict=True)
    ]


@lru_cache(maxsize=64)
def layout_of(types: bytes) -> Layout:
    return Layout(types)


def types_of(stored: bytes) -> bytes:
    """Return the type string of a row's content."""
    try:
        return stored[ROW_HEADER_SIZE + 1 : ROW_HEADER_SIZE + 1 + stored[ROW_HEADER_SIZE]]
    except IndexError:
        raise FrameError(f"a contribution of {len(stored)} bytes") from None


def decode(stored: bytes) -> Contribution:
    """Decode a row's content, with its header."""
    return layout_of(types_of(stored)).decode(stored)


def encode(types: str, offset: int, timestamp_ms: int, event_time_ms: int, inputs: Sequence[Input]) -> bytes:
    """Encode a contribution with its row header."""
    return layout_of(types.encode()).encode((offset, timestamp_ms, event_time_ms, list(inputs)))


def twos_complement(number: int) -> bytes:
    """Return the fewest bytes, as Java's BigInteger does."""
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)
