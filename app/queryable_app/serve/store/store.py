"""Keep the rows and the state of one replica in one RocksDB.

Strategy: every write is one WriteBatch over both column families, so the position on disk always matches the rows. Nothing is
synced to disk: after a crash RocksDB recovers a prefix of its batches, and ingest reads the rest again from the position in that
prefix. Both families are flushed together, because otherwise the small one would keep old WAL files alive.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocksdict import Rdict, WriteBatch

from queryable_app.aggregates.clock import Clock
from queryable_app.config.history import HistorySpec
from queryable_app.policy.source_positions import SourcePositions
from queryable_app.serve.store.database import Database
from queryable_app.serve.store.history_family import HistoryFamily
from queryable_app.serve.store.index_family import IndexCounts, IndexFamily
from queryable_app.serve.store.key_sample import KeySample
from queryable_app.serve.store.opening import StoredContent, identity_json, open_database, stored_content
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.walking import walk
from queryable_app.wire import change_log, hidden_rows
from queryable_app.wire.disk_format import (
    HISTORY,
    INDEX,
    META_CLOCK_KEY,
    META_HISTORY_KEY,
    META_IDENTITY_KEY,
    META_INDEX_COUNTS_KEY,
    META_LAST_BAD_KEY,
    META_SOURCES_KEY,
    META_STATE_KEY,
    Identity,
    ReplicaState,
)
from queryable_app.wire.index_entries import RowIndexes
from queryable_app.wire.version_keys import HistoryState


class Store(Database):
    """Read and write one store. Use `Store.open`. Call it only from the event loop's thread; calls are synchronous and short."""

    def __init__(
        self,
        path: Path,
        db: Rdict,
        content: StoredContent,
        indexes: RowIndexes | None = None,
        history: HistorySpec | None = None,
    ) -> None:
        super().__init__(path, content.identity.partition, db, indexes is not None, history is not None)
        self.identity = content.identity
        self.state = content.state
        self.last_bad: dict[str, Any] | None = content.last_bad
        self.sources = content.sources
        """How far the rows of a rekeyed view are in its source topic. None: no row of one is applied."""
        self.clock = content.clock or Clock()
        """The event time of the records up to the position, where the view has windows. Do not change it; `apply` replaces it."""
        self.keys = KeySample(whole=content.state == ReplicaState())
        """The estimate of the number of keys. A store that opens with rows has none until the sweeper has walked them."""
        self.get_unchecked: Callable[[bytes], bytes | None] = db.get
        """`get` for a caller that handles any failure: it raises what rocksdict raises."""
        self._index_family: IndexFamily | None = None
        if indexes is not None:
            assert self._index is not None
            counts: Any = self._entries.get(META_INDEX_COUNTS_KEY)
            handle = db.get_column_family_handle(INDEX)
            is_empty = next(walk(db, None, None, False), None) is None
            about_index = (handle, IndexCounts(indexes, counts), is_empty, (db, self._index))
            self._index_family = IndexFamily(indexes, *about_index)
        self.history: HistoryFamily | None = None
        """The versions of a view with history."""
        if history is not None:
            handle, noted = db.get_column_family_handle(HISTORY), self._entries.get(META_HISTORY_KEY)
            about = (content.identity.partition, handle, self._meta, noted, content.state)
            self.history = HistoryFamily(history, *about)

    @staticmethod
    def open(
        path: Path,
        identity: Identity,
        memory: SharedMemory,
        indexes: RowIndexes | None = None,
        history: HistorySpec | None = None,
    ) -> Store:
        """Open or create the store. Refuse another disk format, rows of another partition, topic or application, and other
        indexes."""
        if indexes is not None:
            identity = replace(identity, indexes=indexes.text)
        db = open_database(path, memory, indexes is not None, history is not None)
        try:
            return Store(path, db, stored_content(path, db, identity), indexes, history)
        except BaseException:
            db.close()
            raise

    def get(self, disk_key: bytes) -> bytes | None:
        """Return the row header and value, or None. Like every read, raise a Failure if a block is unreadable."""
        try:
            stored: bytes | None = self._db.get(disk_key)
        except Exception as error:
            raise self._unreadable(error) from error
        return stored

    def multi_get(self, disk_keys: list[bytes]) -> list[bytes | None]:
        return self._get_all(self._db, disk_keys)

    def multi_get_entries(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the entries behind the rows of a latest-value view under another key (wire/hidden_rows.py)."""
        return self._get_all(self._entries, keys)

    def entries(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        """Iterate over such entries of `[start, stop)`."""
        return self._walk(self._entries, start, stop, False)

    def has_change_log(self) -> bool:
        """Return whether the change log has entries."""
        return next(self.entries(change_log.FIRST, change_log.END), None) is not None

    def rows(
        self,
        start: bytes | None = None,
        stop: bytes | None = None,
        reverse: bool = False,
        caches: bool = True,
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """Iterate over the rows of `[start, stop)` in disk key order, as they were at the first step. Without `caches`, the
        block cache stays as reads have left it."""
        return self._walk(self._db, start, stop, reverse, caches)

    @property
    def index(self) -> IndexFamily:
        """Return the index of a view that has one."""
        assert self._index_family is not None
        return self._index_family

    def index_entries(
        self, start: bytes | None, stop: bytes | None, reverse: bool
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """Iterate over the index entries of `[start, stop)`, each with the expiry of its row; empty: it does not expire."""
        return self._walk(self._index, start, stop, reverse)

    def versions(
        self, start: bytes, stop: bytes, reverse: bool, caches: bool = True
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """Iterate over what the family of the versions has in `[start, stop)` (wire/version_keys.py). `caches` as for rows."""
        return self._walk(self._versions, start, stop, reverse, caches)

    def version_cursor(self) -> AbstractContextManager[Any]:
        """Lend an iterator over the versions as they are now."""
        return self._cursor(self._versions)

    def write_versions(self, changes: Iterable[tuple[bytes, bytes | None]], state: HistoryState) -> None:
        """Replace or remove what the family of the versions has. The position does not change."""
        assert self.history is not None
        batch = WriteBatch(raw_mode=True)
        for key, version in changes:
            if version is None:
                batch.delete(key, self.history.handle)
            else:
                batch.put(key, version, self.history.handle)
        if state is not self.history.state:
            batch.put(META_HISTORY_KEY, state.encode(), self._meta)
        self._write(batch)
        self.history.state = state

    def apply(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        state: ReplicaState,
        last_bad: dict[str, Any] | None = None,
        deletes: Iterable[bytes] = (),
        clock: Clock | None = None,
        sources: SourcePositions | None = None,
        entries: Iterable[tuple[bytes, bytes | None]] = (),
        deleted_ranges: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Write rows and the matching state in one batch: `deletes`, then `puts`, and what else of the state has changed.

        `entries` are those behind the rows of a latest-value view under another key; None deletes one. `deleted_ranges` are of
        keys, each without its end. They come first, and only a store without indexes takes them."""
        batch = WriteBatch(raw_mode=True)
        counts: IndexCounts | None = None
        if self._index_family is not None:
            puts, deletes = list(puts), list(deletes)
            counts = self._stage_index(batch, puts, deletes)
        past: HistoryState | None = None
        if self.history is not None:
            puts = list(puts)
            past = self.history.stage(batch, puts, self.state, state)
        for start, stop in deleted_ranges:
            batch.delete_range(start, stop)
            self.keys = KeySample(whole=False)  # until the next walk
        for key in deletes:
            batch.delete(key)
            self.keys.forget(key)
        put = batch.put
        self.keys.stage(put, puts)
        for key, entry in entries:
            put(key, entry, self._meta) if entry is not None else batch.delete(key, self._meta)
        put(META_STATE_KEY, state.encode(), self._meta)
        if clock is not None:
            put(META_CLOCK_KEY, clock.encode(), self._meta)
        if last_bad is not None:
            put(META_LAST_BAD_KEY, json.dumps(last_bad).encode(), self._meta)
        if sources is not None:
            put(META_SOURCES_KEY, sources.encode(), self._meta)
        self._write(batch)
        self.state = state
        if self._index_family is not None:
            self._index_family.written(counts, state.complete)
        if self.history is not None and past is not None:
            self.history.state = past
        if sources is not None:
            self.sources = sources
        if clock is not None:
            self.clock = clock
        if last_bad is not None:
            self.last_bad = last_bad

    def delete(self, disk_keys: Iterable[bytes]) -> None:
        """Delete dead rows. The position does not change."""
        batch = WriteBatch(raw_mode=True)
        counts: IndexCounts | None = None
        if self._index_family is not None:
            disk_keys = list(disk_keys)
            counts = self._stage_index(batch, (), disk_keys)
        for key in disk_keys:
            batch.delete(key)
            self.keys.forget(key)
        self._write(batch)
        if self._index_family is not None:
            self._index_family.written(counts, self.state.complete)

    def _stage_index(
        self, batch: WriteBatch, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]
    ) -> IndexCounts | None:
        """Add the index entries that a batch changes. Return the counts after it, if they differ."""
        counts = self.index.stage(batch, self, puts, deletes)
        if counts is not None:
            batch.put(META_INDEX_COUNTS_KEY, counts.encode(), self._meta)
        return counts

    def clear(self) -> None:
        """Delete all rows, and reset the counters, the position, the clock and the topic id."""
        batch = WriteBatch(raw_mode=True)
        last = next(self.rows(reverse=True), None)
        if last is not None:
            batch.delete_range(b"", last[0] + b"\0")
        batch.delete_range(hidden_rows.FIRST, change_log.END, self._meta)
        batch.delete(change_log.START_KEY, self._meta)
        if self._index_family is not None:
            self._index_family.stage_clear(batch)
            batch.delete(META_INDEX_COUNTS_KEY, self._meta)
        if self.history is not None:
            self.history.stage_clear(batch)
        identity, state = replace(self.identity, topic_id=""), ReplicaState()
        batch.put(META_STATE_KEY, state.encode(), self._meta)
        batch.put(META_IDENTITY_KEY, identity_json(identity), self._meta)
        batch.delete(META_LAST_BAD_KEY, self._meta)
        batch.delete(META_SOURCES_KEY, self._meta)
        batch.delete(META_CLOCK_KEY, self._meta)
        self._write(batch)
        if self._index_family is not None:
            self._index_family.cleared()
        self.sources, self.clock = None, Clock()
        self.identity, self.state, self.last_bad = identity, state, None
        if self.history is not None:
            self.history.state = HistoryState()
        self.keys = KeySample(whole=True)

    def set_topic_id(self, topic_id: str) -> None:
        """Bind the rows to this topic id, which a topic recreated under the same name does not have."""
        identity = replace(self.identity, topic_id=topic_id)
        batch = WriteBatch(raw_mode=True)
        batch.put(META_IDENTITY_KEY, identity_json(identity), self._meta)
        self._write(batch)
        self.identity = identity

    def _drop_families(self) -> None:
        self._index_family = None
        self.history = None
        super()._drop_families()
