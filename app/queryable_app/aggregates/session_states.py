"""Encode, decode and merge what sessions hold.

Strategy: a record can bridge two sessions whose records alternate in the log. Which `first` or `last` value then counts follows
from the offsets of the values, so the row of a session has them behind its states, one for each such column.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from queryable_app.aggregates.folding import Folding
from queryable_app.aggregates.merging import state_merger
from queryable_app.aggregates.states import Group
from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.wire.contributions import ABSENT

_NO_VALUE = -1
_OFFSET_BYTES = 8


class Session:
    """Hold one session of a group: its time, its states, and the offsets of its first and last values."""

    __slots__ = ("changed", "end_ms", "group", "offsets", "start_ms")

    def __init__(
        self, start_ms: int, end_ms: int, group: Group, offsets: list[int], changed: bool = False
    ) -> None:
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.group = group
        self.offsets = offsets
        self.changed = changed
        """Whether it is not stored as it is now."""


class SessionStates:
    """Fold, merge and encode the sessions of one view, whose inputs have one string of types."""

    def __init__(self, spec: AggregateSpec, folding: Folding) -> None:
        self._folding = folding
        self._codec = folding.codec
        # Of each first and last: its column, its input, and whether the least offset counts.
        self._ends = [
            (column, spec.inputs.index(each.input), each.op == "first")
            for column, each in enumerate(spec.columns)
            if each.op in _END_OPS
        ]
        self._offsets = struct.Struct(f">{len(self._ends)}q")

    def decode(self, start_ms: int, end_ms: int, stored: bytes) -> Session:
        """Decode a row, with its header."""
        cut = len(stored) - self._offsets.size
        group = self._codec.decode(stored[:cut])
        return Session(start_ms, end_ms, group, list(self._offsets.unpack_from(stored, cut)))

    def encode(self, session: Session, expiry: int) -> bytes:
        """Encode a row, with its header."""
        session.group.expiry_ms = expiry
        return self._codec.encode(session.group) + self._offsets.pack(*session.offsets)

    def merged(self, sessions: Sequence[Session], start_ms: int, end_ms: int) -> Session:
        """Return one session with the records of all, or an empty one if there are none."""
        if not sessions:
            return Session(start_ms, end_ms, self._codec.new(), [_NO_VALUE] * len(self._ends), True)
        earlier, *others = sorted(sessions, key=lambda session: session.group.offset)
        group, offsets = earlier.group, earlier.offsets
        for later in others:
            group, offsets = self._merge(group, offsets, later)
        return Session(start_ms, end_ms, group, offsets, True)

    def _merge(self, group: Group, offsets: list[int], later: Session) -> tuple[Group, list[int]]:
        states = self._codec.merge(group.states, later.group.states)
        kept: list[int] = []
        for (column, _, is_first), one, other in zip(self._ends, offsets, later.offsets, strict=True):
            takes_other = one == _NO_VALUE or (other != _NO_VALUE and (other < one) == is_first)
            states[column] = (later.group if takes_other else group).states[column]
            kept.append(other if takes_other else one)
        return Group(states, later.group.offset, later.group.timestamp_ms), kept

    def fold(self, session: Session, offset: int, timestamp_ms: int, inputs: Sequence[Any]) -> None:
        """Fold one record into a session. Call it in offset order."""
        self._folding.fold(session.group, offset, timestamp_ms, inputs)
        for place, (_, input_, is_first) in enumerate(self._ends):
            if inputs[input_] is not ABSENT and not (is_first and session.offsets[place] != _NO_VALUE):
                session.offsets[place] = offset


_END_OPS = ("first", "last")


def state_of_session(spec: AggregateSpec, stored: bytes) -> bytes:
    """Return a stored row or state without the offsets behind it."""
    ends = sum(column.op in _END_OPS for column in spec.columns)
    return stored[: len(stored) - ends * _OFFSET_BYTES]


def session_merger(spec: AggregateSpec) -> Callable[[bytes, bytes], bytes]:
    """Return the function from two rows of sessions that start together to the row of both, to be shown."""
    merge = state_merger(spec)

    def merge_sessions(earlier: bytes, later: bytes) -> bytes:
        state = state_of_session(spec, later)
        return merge(state_of_session(spec, earlier), state) + later[len(state) :]

    return merge_sessions
