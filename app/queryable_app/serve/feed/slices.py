"""Apply each slice of rows as one write to its replica.

Strategy: nearly every slice is complete and has only rows to put. Its rows go straight from the frame into the batch, and its
header brings the counters. A slice of which a part was applied before (a replay), or that has other kinds of rows, is applied row
by row, and the kinds of its rows give the counters. A first offset above the position is a gap, which is normal.

Slices that arrive together and follow one another are applied as one. So a backlog costs fewer writes, and an aggregate reads and
writes each of its groups once for all of them.

What rows change in the store depends on the view: `LatestRows` puts them as they are, and `aggregate_slices.py` folds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from queryable_app.aggregates.clock import Clock
from queryable_app.aggregates.states import StateError
from queryable_app.config.topic_spec import OnBadRecord
from queryable_app.errors import Failure
from queryable_app.policy.source_positions import SourcePositions
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.replicas import Replicas
from queryable_app.serve.store.store import Store
from queryable_app.wire import row_frames
from queryable_app.wire.disk_format import ReplicaState, count_tombstones
from queryable_app.wire.envelopes import EnvelopeError
from queryable_app.wire.partitioners import (
    MismatchCounts,
    count_mismatches,
    mismatched_algorithms,
    sum_of_mismatches,
)
from queryable_app.wire.row_frames import BadRecord, FrameError, SliceHeader, SliceRow
from queryable_app.wire.serde import KeyCodec

_PUT: Final = (row_frames.ROW, row_frames.DROPPED)
_SHOWN_KEY_BYTES: Final = 200
_SHOWN_REASON_CHARS: Final = 500


Part = tuple[SliceHeader, bytes]
"""A slice with its header."""


class DeadLetter(NamedTuple):
    partition: int
    offset: int
    key: bytes
    bad: BadRecord


class DeadLetters(Protocol):
    """Write dead letters. Return once all are acknowledged, however long that takes."""

    async def send_dead_letters(self, letters: Sequence[DeadLetter]) -> None: ...


class Changes(NamedTuple):
    """What the rows of a slice change in the store, in the batch that moves the position."""

    puts: Iterable[tuple[bytes, bytes]]
    tombstones: int
    """How many of the rows have no value."""
    deletes: Mapping[bytes, bytes] = MappingProxyType({})
    """The stored keys whose rows are deleted, each with the tombstone of the record that deletes it."""
    clock: Clock | None = None
    sources: SourcePositions | None = None
    """How far a rekeyed view then is in its source topic."""
    skipped: int = 0
    """How many of the rows change nothing: markers and duplicates of a rekeyed view."""
    entries: Iterable[tuple[bytes, bytes | None]] = ()
    """What changes behind the rows of a latest-value view under another key."""
    deleted_ranges: Iterable[tuple[bytes, bytes]] = ()
    """Ranges of stored keys, each without its end, whose rows are deleted before the others change."""


class View(Protocol):
    """Decide what rows change in the store."""

    def changes(
        self, store: Store, rows: Sequence[tuple[bytes, bytes]], source_times: Sequence[int] | None = None
    ) -> Changes:
        """Return the changes for rows of kinds ROW and DROPPED, in offset order, that the store does not have yet.

        `source_times` is the event time that the source partition of each row shows, in a rekeyed view with windows."""


class LatestRows:
    """Keep the latest row of each key."""

    def changes(
        self, _store: Store, rows: Sequence[tuple[bytes, bytes]], _source_times: Sequence[int] | None = None
    ) -> Changes:
        return Changes(rows, count_tombstones(rows))


class Slices:
    """Apply slices to this node's replicas."""

    def __init__(
        self,
        replicas: Replicas,
        codec: KeyCodec,
        on_bad_record: OnBadRecord,
        dead_letters: DeadLetters | None = None,
        view: View | None = None,
    ) -> None:
        self._view = view or LatestRows()
        self._replicas = replicas
        self._codec = codec
        self._fail_on_bad = on_bad_record == "Fail"
        self._dead_letters = dead_letters if on_bad_record == "DeadLetter" else None

    def can_be_applied_now(self, payload: bytes) -> bool:
        """Tell whether a frame is a slice, and `write_dead_letters` has nothing to wait for."""
        return payload[0] == row_frames.SLICE and (
            self._dead_letters is None or row_frames.decode_slice_header(payload).bad == 0
        )

    async def write_dead_letters(self, payload: bytes) -> None:
        """Write the slice's dead letters. Call it before `apply`."""
        if self._dead_letters is None:
            return
        header, replica = self._addressed(row_frames.decode_slice_header(payload))
        if replica is None or header.bad == 0 or not replica.writable:
            return
        letters = [
            DeadLetter(header.partition, row.offset, row.disk_key, row_frames.decode_bad(row.stored))
            for row in row_frames.rows(payload, header)
            if row.kind == row_frames.BAD and row.offset >= replica.position
        ]
        if letters:
            await self._dead_letters.send_dead_letters(letters)

    def apply(self, *payloads: bytes) -> None:
        """Apply slices in order, each in one write or together with others. A failed replica ignores them; other replicas
        continue."""
        parts = list(zip(map(row_frames.decode_slice_header, payloads), payloads, strict=True))
        start = 0
        for end in range(1, len(parts)):
            if not _follows(parts[end - 1][0], parts[end][0]):
                self._apply(parts[start:end])
                start = end
        self._apply(parts[start:])

    def _apply(self, parts: Sequence[Part]) -> None:
        header = parts[0][0] if len(parts) == 1 else row_frames.joined([part for part, _ in parts])
        header, replica = self._addressed(header)
        store = None if replica is None else replica.writable_store
        if replica is None or store is None or header.last_offset < (position := store.state.position):
            return
        if header.first_offset >= position and header.bad == 0 and header.null_keys == 0:
            self._apply_whole(replica, store, header, parts)
        else:
            self._apply_row_by_row(replica, store, header, parts)
        if not mismatched_algorithms(store.state.mismatches) <= self._replicas.partitioner.mismatched:
            self._replicas.note_mismatches()

    def _addressed(self, header: SliceHeader) -> tuple[SliceHeader, Replica | None]:
        """Return the header with the mismatches that count, and the replica, or None if it was removed or opened since the query
        started."""
        if self._replicas.source_partitions:  # markers go to every partition, whatever their key is
            header = header._replace(mismatches_murmur2=0, mismatches_crc32=0, mismatches_fnv1a=0)
        replica = self._replicas.by_partition.get(header.partition)
        if replica is None and header.partition >= self._replicas.partitions:
            raise FrameError(
                f"a slice of partition {header.partition}, and there are {self._replicas.partitions}"
            )
        return header, replica if replica is not None and replica.accepts_slices else None

    def _apply_whole(
        self, replica: Replica, store: Store, header: SliceHeader, parts: Sequence[Part]
    ) -> None:
        rows = row_frames.puts(parts[0][1], parts[0][0])
        for part, payload in parts[1:]:
            rows += row_frames.puts(payload, part)
        changes = self._changes(replica, store, rows)
        if changes is None:
            return
        state = store.state
        replica.apply(
            changes.puts,
            ReplicaState(
                position=header.last_offset + 1,
                complete=state.complete,
                rows=state.rows + len(rows) - changes.skipped - changes.tombstones,
                deletes=state.deletes + changes.tombstones - header.dropped,
                null_keys=state.null_keys,
                bad=state.bad,
                dropped=state.dropped + header.dropped,
                last_timestamp_ms=header.last_timestamp_ms,
                mismatches=_mismatches_of_all(state, header),
            ),
            None,
            changes.deletes,
            changes.clock,
            changes.sources,
            changes.entries,
            changes.deleted_ranges,
        )

    def _apply_row_by_row(
        self, replica: Replica, store: Store, header: SliceHeader, parts: Sequence[Part]
    ) -> None:
        state, position = store.state, header.last_offset + 1
        all_rows = [row for part, payload in parts for row in row_frames.rows(payload, part)]
        new = [row for row in all_rows if row.offset >= state.position]
        bad = [row for row in new if row.kind == row_frames.BAD]
        stopped = bool(bad) and self._fail_on_bad
        if stopped:  # the position stays at the bad record, so later rows do not count
            position = bad[0].offset
            new = [row for row in new if row.offset < position]
        rows = [(row.disk_key, row.stored) for row in new if row.kind in _PUT]
        changes = self._changes(replica, store, rows)
        if changes is None:
            return
        kinds = Counter(row.kind for row in new)
        last_bad = _shown(bad[0 if stopped else -1], header) if bad else None
        whole = header.first_offset >= state.position and not stopped
        replica.apply(
            changes.puts,
            state._replace(
                position=max(position, state.position),
                rows=state.rows + len(rows) - changes.skipped - changes.tombstones,
                deletes=state.deletes + changes.tombstones - kinds[row_frames.DROPPED],
                null_keys=state.null_keys + kinds[row_frames.NULL_KEY],
                bad=state.bad + kinds[row_frames.BAD],
                dropped=state.dropped + kinds[row_frames.DROPPED],
                last_timestamp_ms=header.last_timestamp_ms,
                mismatches=_mismatches_of_all(state, header)
                if whole
                else self._mismatches(state, new, header.partition),
            ),
            last_bad,
            changes.deletes,
            changes.clock,
            changes.sources,
            changes.entries,
            changes.deleted_ranges,
        )
        if stopped and last_bad is not None and replica.writable:
            replica.fail(
                f"the record at offset {position} cannot be decoded ({last_bad['reason']}) and onBadRecord is Fail; "
                f"set it to Skip or DeadLetter, or repair the producer and make a new revision"
            )

    def _changes(self, replica: Replica, store: Store, rows: Sequence[tuple[bytes, bytes]]) -> Changes | None:
        """Return what the rows change, or None if the replica fails: its stored rows do not take these."""
        try:
            return self._view.changes(store, rows)
        except Failure as failure:
            replica.fail(failure.detail)
        except StateError as error:
            replica.fail(
                f"the stored aggregates do not fit this view ({error}); make a new revision of the view"
            )
        except EnvelopeError as error:
            replica.fail(
                f"the internal topic has a record that the rekey job did not write ({error}); make a new revision of the view"
            )
        return None

    def _mismatches(self, state: ReplicaState, rows: Sequence[SliceRow], partition: int) -> MismatchCounts:
        """Add the mismatches of some of a slice's rows; the header counts those of all rows."""
        if self._replicas.source_partitions:
            return state.mismatches
        keys = [
            row.disk_key if row.kind == row_frames.BAD else self._codec.to_record(row.disk_key)
            for row in rows
            if row.kind != row_frames.NULL_KEY
        ]
        return sum_of_mismatches(
            (state.mismatches, count_mismatches(keys, partition, self._replicas.partitions))
        )


def _follows(header: SliceHeader, other: SliceHeader) -> bool:
    """Return whether two slices, of which every row is put, can be applied as one."""
    return (
        header.partition == other.partition
        and header.last_offset < other.first_offset
        and not (header.bad or header.null_keys or other.bad or other.null_keys)
    )


def _mismatches_of_all(state: ReplicaState, header: SliceHeader) -> MismatchCounts:
    murmur2, crc32, fnv1a = state.mismatches
    return (
        murmur2 + header.mismatches_murmur2,
        crc32 + header.mismatches_crc32,
        fnv1a + header.mismatches_fnv1a,
    )


def _shown(row: SliceRow, header: SliceHeader) -> dict[str, Any]:
    """Return a bad record for status, shortened. The timestamp is the slice's, because bad records arrive without theirs."""
    return {
        "offset": row.offset,
        "timestampMs": header.last_timestamp_ms,
        "reason": row_frames.decode_bad(row.stored).reason[:_SHOWN_REASON_CHARS],
        "key": row.disk_key[:_SHOWN_KEY_BYTES].decode(errors="replace"),
    }
