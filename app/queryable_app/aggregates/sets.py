"""Collect the distinct values of a group, up to a limit.

The state is changed in place: it would be too large to copy for each record.
"""

from __future__ import annotations

import struct
from typing import Final

from queryable_app.aggregates.functions import VARIABLE
from queryable_app.aggregates.values import from_bytes, to_bytes, value_json
from queryable_app.config.aggregate_spec import AggregateColumn

SET_BYTES_MAX: Final = 1 << 20
_LENGTH: Final = struct.Struct(">I")


class _Set:
    __slots__ = ("full", "size", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, None] = {}  # in the order of their first records
        self.size = 0
        self.full = False


class CollectSet:
    """Keep the first `limit` distinct values, of a mebibyte together at most."""

    layout = VARIABLE

    def __init__(self, column: AggregateColumn, type: str) -> None:
        self._type = type
        self._limit = column.limit

    def new(self) -> _Set:
        return _Set()

    def fold(self, state: _Set, value: object) -> _Set:
        if value is not None:
            self._add(state, to_bytes(value, self._type))
        return state

    def _add(self, state: _Set, raw: bytes) -> None:
        if raw in state.values:
            return
        if len(state.values) == self._limit or state.size + len(raw) > SET_BYTES_MAX:
            state.full = True
            return
        state.values[raw] = None
        state.size += len(raw)

    def merge(self, earlier: _Set, later: _Set) -> _Set:
        for raw in later.values:
            self._add(earlier, raw)
        earlier.full = earlier.full or later.full
        return earlier

    def load(self, raw: bytes) -> _Set:
        state = _Set()
        state.full = raw[:1] == b"\1"
        at = 1
        while at < len(raw):
            (length,) = _LENGTH.unpack_from(raw, at)
            at += _LENGTH.size + length
            state.values[raw[at - length : at]] = None
            state.size += length
        return state

    def dump(self, state: _Set) -> bytes:
        parts = [b"\1" if state.full else b"\0"]
        for raw in state.values:
            parts += (_LENGTH.pack(len(raw)), raw)
        return b"".join(parts)

    def render(self, state: _Set) -> str:
        type = self._type
        return f"[{','.join([value_json(from_bytes(raw, type), type) for raw in state.values])}]"

    def problem(self, state: _Set) -> str | None:
        if not state.full:
            return None
        return f"there are more than the {len(state.values)} values that are kept"
