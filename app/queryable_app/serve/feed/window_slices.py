"""Fold the records of a slice into the stored windows of their groups.

Strategy: a tumbling or hopping window is a group of its own, whose key has the window's start. A session has no fixed start: the
sessions of each group that the slice may touch are read, its records are folded into them one by one, and those that were merged
away are deleted. Everything is written in the batch that moves the position, with the clock of the partition. Each step follows
from the records before it alone, so it does not matter where a slice ends or what is sent again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from queryable_app.aggregates.clock import Clock
from queryable_app.aggregates.folding import Folding
from queryable_app.aggregates.session_states import Session, SessionStates
from queryable_app.aggregates.sessions import merged, touching
from queryable_app.aggregates.window_keys import first_key, window_key, window_start
from queryable_app.aggregates.windows import Windows
from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.serve.feed.aggregate_slices import AggregateRows, BeginGrouping
from queryable_app.serve.feed.slices import Changes, View
from queryable_app.serve.store.store import Store
from queryable_app.wire.contributions import Contribution, types_of
from queryable_app.wire.disk_format import ROW_HEADER, TOMBSTONE, Row, encode_row

_EXPIRY: Final = 3  # of the fields of a row header


def aggregate_view(spec: AggregateSpec, windows: Windows | None) -> View:
    """Return what turns the records of an aggregate view into rows."""
    if windows is None:
        return AggregateRows(spec)
    if windows.gap_ms:
        return SessionRows(spec, windows)
    return AggregateRows(spec, begin_windows(windows))


def begin_windows(windows: Windows) -> BeginGrouping:
    """Return the function that begins the grouping of a slice, at the clock of a store."""
    return lambda store, times: _WindowGrouping(windows, store.clock.copy(), times)


class _WindowGrouping:
    """Group the records of one slice by tumbling or hopping windows."""

    def __init__(self, windows: Windows, clock: Clock, source_times: Sequence[int] | None) -> None:
        self._windows = windows
        self.clock = clock
        self._source_times: Iterator[int] | None = None if source_times is None else iter(source_times)

    def take(self, disk_key: bytes, event_time_ms: int) -> Sequence[tuple[bytes, int]]:
        windows, times = self._windows, self._source_times
        starts = (
            windows.take(self.clock, event_time_ms)
            if times is None
            else windows.take_at(self.clock, event_time_ms, next(times))
        )
        return [
            (window_key(disk_key, start_ms), windows.expiry(start_ms + windows.size_ms))
            for start_ms in starts
        ]


class SessionRows:
    """Turn the contributions of slices into sessions."""

    def __init__(self, spec: AggregateSpec, windows: Windows) -> None:
        self._spec = spec
        self._windows = windows
        self._gap_ms = windows.gap_ms
        self._foldings: dict[bytes, tuple[Folding, SessionStates]] = {}  # by the types of a contribution

    def changes(
        self, store: Store, rows: Sequence[tuple[bytes, bytes]], source_times: Sequence[int] | None = None
    ) -> Changes:
        """Return the new sessions, and the keys of those that became part of others, in this slice or before."""
        records = [(key, stored) for key, stored in rows if stored]
        dropped = len(rows) - len(records)
        if not records:
            return Changes((), dropped)
        folding, states = self._folding(types_of(records[0][1]))
        contributions = [(key, folding.layout.decode(stored)) for key, stored in records]
        clock = store.clock.copy()
        if source_times is None:
            taken = [each for each in contributions if self._windows.take(clock, each[1][2])]
        else:
            pairs = zip(contributions, source_times, strict=True)
            taken = [each for each, shown in pairs if self._windows.take_at(clock, each[1][2], shown)]
        sessions = self._load(store, states, taken)
        gone: dict[bytes, bytes] = {}
        for key, (offset, timestamp_ms, event_ms, inputs) in taken:
            session, merged_away = self._joined(sessions[key], states, event_ms)
            for start_ms in merged_away:
                gone[window_key(key, start_ms)] = encode_row(Row(offset, timestamp_ms, 0, None))
            states.fold(session, offset, timestamp_ms, inputs)
        puts: list[tuple[bytes, bytes]] = []
        for key, found in sessions.items():
            for session in found:
                disk_key = window_key(key, session.start_ms)
                gone.pop(disk_key, None)
                if session.changed:
                    puts.append((disk_key, states.encode(session, self._windows.expiry(session.end_ms))))
        return Changes(puts, dropped, gone, clock)

    def _joined(
        self, sessions: list[Session], states: SessionStates, event_ms: int
    ) -> tuple[Session, Sequence[int]]:
        """Return the session that a record belongs to, after merging those that it touches, and the starts that are none any
        more."""
        found = touching(sessions, event_ms, self._gap_ms)
        merging = sessions[found]
        starts_ms = [each.start_ms for each in merging]
        session = states.merged(merging, *merged(merging, event_ms, self._gap_ms))
        sessions[found] = [session]
        return session, [start_ms for start_ms in starts_ms if start_ms != session.start_ms]

    def _load(
        self, store: Store, states: SessionStates, taken: Sequence[tuple[bytes, Contribution]]
    ) -> dict[bytes, list[Session]]:
        """Return the stored sessions of each group that its records may touch, in order of their starts."""
        spans: dict[bytes, tuple[int, int]] = {}
        for key, (_, _, event_ms, _) in taken:
            first, last = spans.get(key, (event_ms, event_ms))
            spans[key] = min(first, event_ms), max(last, event_ms)
        return {key: self._sessions(store, states, key, *span) for key, span in spans.items()}

    def _sessions(
        self, store: Store, states: SessionStates, key: bytes, first_ms: int, last_ms: int
    ) -> list[Session]:
        stop = window_key(key, last_ms + self._gap_ms + 1)
        found: list[Session] = []
        rows = store.rows(first_key(key), stop, reverse=True)
        try:
            for disk_key, stored in rows:
                if stored[0] & TOMBSTONE:  # of a session that became part of another
                    continue
                end_ms = self._windows.end(ROW_HEADER.unpack_from(stored)[_EXPIRY])
                if end_ms < first_ms:
                    break
                found.append(states.decode(window_start(disk_key), end_ms, stored))
        finally:
            rows.close()
        return found[::-1]

    def _folding(self, types: bytes) -> tuple[Folding, SessionStates]:
        found = self._foldings.get(types)
        if found is None:
            folding = Folding(self._spec, types)
            found = self._foldings[types] = folding, SessionStates(self._spec, folding)
        return found
