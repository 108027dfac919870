"""Keep the versions of one store: in the batch that changes rows, for reads as of a moment, and for the sweeper.

Strategy: a write puts each record as a version and reads nothing. A read as of a moment finds the newest version of a key that is
old enough with one or two seeks, however many versions there are. What is removed is first excluded by the *floor*, the first
moment that can still be answered, so no read takes a removed version for a missing key.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from rocksdict import WriteBatch

from queryable_app.config.history import HistorySpec
from queryable_app.errors import Failure, Reason
from queryable_app.platform.clock import monotonic_ms
from queryable_app.wire import version_keys as keys
from queryable_app.wire.disk_format import META_HISTORY_KEY, ROW_HEADER, ReplicaState
from queryable_app.wire.times import to_iso
from queryable_app.wire.version_keys import OFFSET_END, HistoryState

PENDING: Final = OFFSET_END
"""The gap position until an end offset is looked up: only from there on all records that a gap hides are replaced."""
_MARKS: Final = 256  # in the time of the retention
_LINEAR: Final = 8  # versions, before a search by time becomes binary

Pairs = Generator[tuple[bytes, bytes], None, None]


class VersionedStore(Protocol):
    """Read the versions of a store."""

    def version_cursor(self) -> AbstractContextManager[Any]: ...


class HistoryFamily:
    """Maintain the versions of one store. `handle` is their column family, `meta` that of the state."""

    def __init__(
        self,
        spec: HistorySpec,
        partition: int,
        handle: Any,
        meta: Any,
        stored: bytes | None,
        state: ReplicaState,
    ) -> None:
        self.spec = spec
        self.handle = handle
        self._partition = partition
        self._meta = meta
        self.state = HistoryState() if stored is None else HistoryState.decode(stored)
        if stored is None and state.position > 0:  # the rows are older than the versions
            self.state = HistoryState(floor_position=state.position, floor_ms=max(0, state.last_timestamp_ms))
        self.gap_at_ms = monotonic_ms()
        """When the last gap was met, at the latest."""
        self._compacted = True  # or it may be
        self._mark_ms = max(1, spec.retention_ms // _MARKS)

    def stage(
        self,
        batch: WriteBatch,
        puts: Iterable[tuple[bytes, bytes]],
        before: ReplicaState,
        after: ReplicaState,
    ) -> HistoryState:
        """Add to a batch the versions that its rows make. Return the state that it has then."""
        old = self.state
        put, handle, unpack, partition = batch.put, self.handle, ROW_HEADER.unpack_from, self._partition
        clock, first = old.clock_ms, -1
        first_ms = old.floor_ms
        for key, stored in puts:
            _, offset, timestamp_ms, _ = unpack(stored)
            if timestamp_ms > clock:
                clock = timestamp_ms
            if first < 0:
                first, first_ms = offset, clock
            put(
                keys.version_key(keys.group_of(key), offset, partition),
                keys.encode_version(clock, stored),
                handle,
            )
        state = old._replace(clock_ms=clock)
        start = before.position
        if start < 0:
            start = after.position - _records(after)
            if 0 <= first < start:
                start = first
            if start > 0:
                floor_ms = first_ms if first >= 0 else after.last_timestamp_ms
                state = state._replace(floor_position=start, floor_ms=floor_ms)
        if after.position - start != _records(after) - _records(before):
            if self._compacted:
                state = state._replace(gap_position=PENDING)
                self.gap_at_ms = monotonic_ms()
            else:
                state = state._replace(harmless_gaps=1)
        if 0 <= old.gap_position < PENDING and before.position < old.gap_position <= after.position:
            state = state._replace(gap_ms=clock)
        if clock - old.marked_ms >= self._mark_ms and after.position > 0:
            put(keys.mark_key(after.position), keys.encode_mark(clock), handle)
            state = state._replace(marked_ms=clock)
        put(META_HISTORY_KEY, state.encode(), self._meta)
        return state

    def with_end_offset(self, end_offset: int, as_of_ms: int, position: int) -> HistoryState | None:
        """Return the state, now that the log is known to have ended there after the last gap; None if nothing changes."""
        if self.state.gap_position != PENDING or as_of_ms <= self.gap_at_ms:
            return None
        gap_ms = self.state.clock_ms if position >= end_offset else OFFSET_END
        return self.state._replace(gap_position=end_offset, gap_ms=gap_ms)

    def with_compaction(self, compacted: bool) -> HistoryState | None:
        """Note whether the topic is compacted, or may be. Return the state if that changes it.

        Offsets that were missing before count again, since compaction may have begun before this was known."""
        self._compacted = compacted
        if not (compacted and self.state.harmless_gaps):
            return None
        self.gap_at_ms = monotonic_ms()
        return self.state._replace(gap_position=PENDING, harmless_gaps=0)

    def stage_clear(self, batch: WriteBatch) -> None:
        """Add to a batch that there are no versions."""
        batch.delete_range(keys.MARKS_FIRST, keys.END, self.handle)
        batch.delete(META_HISTORY_KEY, self._meta)

    def refusal(self, time_ms: int | None, position: int | None) -> Failure | None:
        """Return why a moment cannot be answered, or None: it is before the floor."""
        floor_position, floor_ms = self.state.floor
        if time_ms is not None and time_ms < floor_ms:
            when = "no time yet" if floor_ms == OFFSET_END else to_iso(floor_ms)
            return self._not_retained(
                f"has no versions for {to_iso(time_ms)} any more", f"its first time is {when}"
            )
        if position is not None and position < floor_position:
            where = "none yet" if floor_position == PENDING else f"{self._partition}:{floor_position}"
            return self._not_retained(
                f"has no versions for the position {position} any more", f"its first position is {where}"
            )
        return None

    def _not_retained(self, what: str, first: str) -> Failure:
        return Failure(
            Reason.NOT_RETAINED,
            f"the replica of partition {self._partition} {what}; {first}",
            "name a later moment; spec.view.history says how long versions are kept, and docs/history.md what limits it",
            partition=self._partition,
        )

    def rows_as_of(
        self,
        store: VersionedStore,
        start: bytes | None,
        stop: bytes | None,
        reverse: bool,
        time_ms: int | None,
        position: int | None,
    ) -> Pairs:
        """Iterate over the rows of `[start, stop)` as they were, and empty bytes for keys that did not exist.

        A row whose version is removed is one of `not_retained_row`. The caller has checked the floor in the same step."""
        first = keys.FIRST if start is None else keys.group_of(start)
        last = keys.END if stop is None else keys.group_of(stop)
        with store.version_cursor() as cursor:
            at = last if reverse else first
            while True:
                if reverse:
                    _seek_before(cursor, at)
                else:
                    cursor.seek(at)
                if not cursor.valid():
                    cursor.status()
                    return
                key = cursor.key()
                if not first <= key < last:
                    return
                group = keys.group_in(key)
                if not reverse and position is not None and keys.offset_in(key) < position:
                    yield keys.key_in(key), keys.row_of(cursor.value())  # the newest
                else:
                    yield keys.key_in(key), self._version_at(cursor, group, time_ms, position)
                at = group if reverse else keys.after_group(group)

    def _version_at(self, cursor: Any, group: bytes, time_ms: int | None, position: int | None) -> bytes:
        """Return the row of a group at a moment; empty if the key did not exist."""
        if position is None:
            assert time_ms is not None
            position = position_at(cursor, group, time_ms)
        cursor.seek(keys.newest_before(group, position))
        if cursor.valid() and cursor.key().startswith(group):
            return keys.row_of(cursor.value())
        cursor.status()
        _seek_before(cursor, keys.after_group(group))
        if cursor.valid() and cursor.key().startswith(group) and keys.is_truncated(cursor.value()):
            return keys.not_retained_row(keys.offset_in(cursor.key()))
        cursor.status()
        return b""


def position_at(cursor: Any, group: bytes, time_ms: int) -> int:
    """Return a position below which are exactly the versions of a key whose clock is not later than a time."""
    cursor.seek(group)
    for _ in range(_LINEAR):
        if not (cursor.valid() and cursor.key().startswith(group)):
            cursor.status()
            return 0
        if keys.clock_of(cursor.value()) <= time_ms:
            return keys.offset_in(cursor.key()) + 1
        cursor.next()
    if not (cursor.valid() and cursor.key().startswith(group)):
        cursor.status()
        return 0
    low, high = 0, keys.offset_in(cursor.key()) + 1  # the clock never falls from one offset to the next
    while low < high:
        middle = (low + high + 1) // 2
        cursor.seek(keys.newest_before(group, middle))
        if not (cursor.valid() and cursor.key().startswith(group)):
            cursor.status()
            low = middle  # there is none below it
        elif keys.clock_of(cursor.value()) <= time_ms:
            low = middle
        else:
            high = keys.offset_in(cursor.key())
    return low


def _seek_before(cursor: Any, key: bytes) -> None:
    """Move to the last entry before a key."""
    cursor.seek_for_prev(key)
    if cursor.valid() and cursor.key() == key:
        cursor.prev()


def _records(state: ReplicaState) -> int:
    """Return how many records have arrived."""
    return state.rows + state.deletes + state.null_keys + state.bad + state.dropped
