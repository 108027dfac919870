"""Keep the rows and the state of one replica in one RocksDB.

Strategy: every write is one WriteBatch over both column families, so the position on disk always matches the rows. Nothing is
synced to disk: after a crash RocksDB recovers a prefix of its batches, and ingest reads the rest again from the position in that
prefix. Both families are flushed together, because otherwise the small one would keep old WAL files alive.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from threading import get_ident
from typing import Any, Final

from rocksdict import Checkpoint, Rdict, ReadOptions, WriteBatch

from queryable_app.aggregates.clock import Clock
from queryable_app.errors import Failure, Reason
from queryable_app.platform.log import event
from queryable_app.policy.source_positions import SourcePositions
from queryable_app.serve.store.key_sample import KeySample
from queryable_app.serve.store.shared_memory import SharedMemory, rocksdb_options
from queryable_app.serve.store.store_errors import (
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    is_damage,
    open_failure,
)
from queryable_app.wire import hidden_rows
from queryable_app.wire.disk_format import (
    FORMAT_VERSION,
    META,
    META_CLOCK_KEY,
    META_FORMAT_KEY,
    META_IDENTITY_KEY,
    META_LAST_BAD_KEY,
    META_SOURCES_KEY,
    META_STATE_KEY,
    ROWS,
    Identity,
    ReplicaState,
)

_MB: Final = 1 << 20
_META_MEMTABLE_BYTES: Final = 4 * _MB
_RETRY_MS: Final = 1000
_VERIFY_AHEAD_BYTES: Final = _MB
_VERIFY_ROWS: Final = 64
_VERIFY_STEP_SECONDS: Final = 0.0005  # for this long RocksDB holds the interpreter


class Store:
    """Read and write one store. Use `Store.open`. Call it only from the event loop's thread; calls are synchronous and short."""

    def __init__(
        self,
        path: Path,
        db: Rdict,
        identity: Identity,
        state: ReplicaState,
        last_bad: Any = None,
        sources: SourcePositions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.path = path
        self.identity = identity
        self.state = state
        self.last_bad: dict[str, Any] | None = last_bad
        self.sources = sources
        """How far the rows of a rekeyed view are in its source topic. None: no row of one is applied."""
        self.clock = clock or Clock()
        """The event time of the records up to the position, where the view has windows. Do not change it; `apply` replaces it."""
        self.damaged: str | None = None
        """Why some rows are unreadable for good; None if no damage is known."""
        self.keys = KeySample(whole=state == ReplicaState())
        """The estimate of the number of keys. A store that opens with rows has none until the sweeper has walked them."""
        self._db = db
        self._meta = db.get_column_family_handle(META)
        self._entries = db.get_column_family(META)
        self._closed = False
        self._iterators = 0
        self._unreadable_logged = False
        self._threads: set[int] = set()

    @staticmethod
    def open(path: Path, identity: Identity, memory: SharedMemory) -> Store:
        """Open or create the store. Refuse another disk format, and rows of another partition, topic or application."""
        path.mkdir(parents=True, exist_ok=True)
        rows = rocksdb_options(memory, memory.memtable_bytes)
        try:
            # Without `column_families` a re-opened store silently falls back to an 8 MB cache and no bloom filter.
            families = {ROWS: rows, META: rocksdb_options(memory, _META_MEMTABLE_BYTES)}
            db = Rdict(str(path), rows, column_families=families)
        except Exception as error:  # rocksdict raises nothing more specific
            raise open_failure(path, str(error)) from error
        try:
            capacity = db.property_int_value("rocksdb.block-cache-capacity")
            if capacity != memory.block_cache_bytes:
                raise StoreError(f"{path}: RocksDB ignored its options; it caches {capacity} bytes")
            return _checked(path, db, identity)
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

    def _get_all(self, source: Rdict, keys: list[bytes]) -> list[bytes | None]:
        try:
            stored: list[bytes | None] = source.get(keys)  # type: ignore[arg-type, assignment]
        except Exception as error:
            raise self._unreadable(error) from error
        return stored

    def entries(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        """Iterate over such entries of `[start, stop)`."""
        return self._walk(self._entries, start, stop, False)

    def rows(
        self, start: bytes | None = None, stop: bytes | None = None, reverse: bool = False
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """Iterate over the rows of `[start, stop)` in disk key order, as they were at the first step."""
        return self._walk(self._db, start, stop, reverse)

    def _walk(
        self, db: Rdict, start: bytes | None, stop: bytes | None, reverse: bool
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """Iterate. The loop compares the bounds itself: rocksdict encodes bounds in ReadOptions as if the store were not raw."""
        self._iterators += 1
        try:
            if reverse:
                last = stop
                for last, stored in _raw(db.items(backwards=True, from_key=stop)):
                    if start is not None and last < start:
                        return
                    if last != stop:
                        yield last, stored
            else:
                last = start
                for last, stored in _raw(db.items(from_key=start)):
                    if stop is not None and last >= stop:
                        return
                    yield last, stored
            try:
                _check_end(db, last, reverse)
            except Exception as error:
                raise self._unreadable(error) from error
        finally:
            self._iterators -= 1

    def _unreadable(self, error: Exception) -> Failure:
        """Log an unreadable block once, and return the Failure that makes the caller try another replica."""
        if not self._closed and not self._unreadable_logged:
            self._unreadable_logged = True
            event("unreadable", partition=self.identity.partition, path=self.path, reason=str(error))
        self._note_damage(error)
        return Failure(
            Reason.NOT_AVAILABLE,
            f"a part of the replica of partition {self.identity.partition} on this node cannot be read",
            "ask another node; the log of this one has the reason",
            partition=self.identity.partition,
            retry_after_ms=_RETRY_MS,
        )

    def _note_damage(self, error: Exception) -> None:
        if not self._closed and self.damaged is None and is_damage(str(error)):
            self.damaged = str(error)

    def verify(self) -> None:
        """Check every block of the rows, and of the entries behind them, against its checksum, or raise StoreDamaged. Blocks in
        the cache are not read.

        A million rows take 0.3 s of a core. The call holds the interpreter for half a millisecond at a time, so do not call it
        on the event loop.
        """
        for db in (self._db, self._entries):
            try:
                _read_all(db)
            except Exception as error:
                raise StoreDamaged(f"{self.path} is damaged ({error})") from error

    def apply(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        state: ReplicaState,
        last_bad: dict[str, Any] | None = None,
        deletes: Iterable[bytes] = (),
        clock: Clock | None = None,
        sources: SourcePositions | None = None,
        entries: Iterable[tuple[bytes, bytes | None]] = (),
    ) -> None:
        """Write rows and the matching state in one batch: `deletes`, then `puts`, and what else of the state has changed.

        `entries` are those behind the rows of a latest-value view under another key; None deletes one."""
        batch = WriteBatch(raw_mode=True)
        for key in deletes:
            batch.delete(key)
            self.keys.forget(key)
        put, note, mask = batch.put, self.keys.note, self.keys.mask
        for key, stored in puts:
            put(key, stored)
            if not hash(key) & mask:
                note(key, stored)
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
        if sources is not None:
            self.sources = sources
        if clock is not None:
            self.clock = clock
        if last_bad is not None:
            self.last_bad = last_bad

    def delete(self, disk_keys: Iterable[bytes]) -> None:
        """Delete dead rows. The position does not change."""
        batch = WriteBatch(raw_mode=True)
        for key in disk_keys:
            batch.delete(key)
            self.keys.forget(key)
        self._write(batch)

    def clear(self) -> None:
        """Delete all rows, and reset the counters, the position, the clock and the topic id."""
        batch = WriteBatch(raw_mode=True)
        last = next(self.rows(reverse=True), None)
        if last is not None:
            batch.delete_range(b"", last[0] + b"\0")
        batch.delete_range(hidden_rows.FIRST, hidden_rows.END, self._meta)
        identity, state = replace(self.identity, topic_id=""), ReplicaState()
        batch.put(META_STATE_KEY, state.encode(), self._meta)
        batch.put(META_IDENTITY_KEY, _identity_json(identity), self._meta)
        batch.delete(META_LAST_BAD_KEY, self._meta)
        batch.delete(META_SOURCES_KEY, self._meta)
        batch.delete(META_CLOCK_KEY, self._meta)
        self._write(batch)
        self.sources, self.clock = None, Clock()
        self.identity, self.state, self.last_bad = identity, state, None
        self.keys = KeySample(whole=True)

    def set_topic_id(self, topic_id: str) -> None:
        """Bind the rows to this topic id, which a topic recreated under the same name does not have."""
        identity = replace(self.identity, topic_id=topic_id)
        batch = WriteBatch(raw_mode=True)
        batch.put(META_IDENTITY_KEY, _identity_json(identity), self._meta)
        self._write(batch)
        self.identity = identity

    def compact(self, start: bytes, stop: bytes) -> None:
        """Reclaim the space of deleted rows. Slow; do not call it on the event loop."""
        with (
            self._in_thread(),
            suppress(Exception),
        ):  # cancelled, or a broken disk, which the next write reports
            self._db.compact_range(start, stop)

    def cancel_compaction(self) -> None:
        """Cancel compactions for good. Call it right before `close`."""
        self._db.cancel_all_background(False)

    @property
    def in_use(self) -> bool:
        """True while an iterator or a thread uses the store. Until then RocksDB keeps the directory locked."""
        return self._iterators > 0 or bool(self._threads)

    @contextmanager
    def _in_thread(self) -> Iterator[None]:
        self._threads.add(get_ident())
        try:
            yield
        finally:
            self._threads.discard(get_ident())

    def flush(self) -> None:
        """Flush the memtables. Slow; do not call it on the event loop."""
        with (
            self._in_thread(),
            suppress(Exception),
        ):  # closed meanwhile, or a broken disk, which the next write reports
            self._db.flush()

    def checkpoint(self, path: Path) -> None:
        """Write the present content to a new directory, as hard links and small files. Holds all threads: for milliseconds right
        after a `flush`, otherwise for as long as a flush takes."""
        try:
            Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as error:  # rocksdict raises nothing more specific
            raise StoreError(f"{self.path}: no checkpoint can be made ({error})") from error

    def size_bytes(self) -> int:
        """Return the bytes of the table files and of the rows that are only in the write-ahead log."""
        files = self._db.property_int_value("rocksdb.total-sst-files-size") or 0
        return files + self.unflushed_bytes()

    def unflushed_bytes(self) -> int:
        """Return the bytes in memtables, which the next opening of the store writes out."""
        return self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0

    def close(self) -> None:
        """Flush the memtables, so that the next start has no write-ahead log to read, and close. An open column family handle
        would keep the store locked."""
        if self._closed:
            return
        self._closed = True
        with suppress(Exception):  # then the next start reads the write-ahead log
            self._db.flush()
        del self._meta, self._entries
        with suppress(Exception):  # RocksDB raises that it is shutting down, and closes
            self._db.close()

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch)
        except Exception as error:  # rocksdict raises nothing more specific
            self._note_damage(error)  # a compaction may have found it
            if self.damaged is not None:
                raise StoreDamaged(f"{self.path} is damaged and cannot be written ({error})") from error
            # RocksDB refuses all later writes until the store is opened again. Reads continue.
            raise StoreUnavailable(f"{self.path} cannot be written ({error})") from error


def _check_end(db: Rdict, last: Any, reverse: bool) -> None:
    """Raise if an unreadable block follows `last`: rocksdict's `items` ends there as if the rows had ended."""
    steps = db.iter()
    try:
        if reverse:
            steps.seek_to_last() if last is None else steps.seek_for_prev(last)
        else:
            steps.seek_to_first() if last is None else steps.seek(last)
        if last is not None and steps.valid():
            steps.prev() if reverse else steps.next()
        steps.status()
    finally:
        del steps  # otherwise an error would keep the store open


def _read_all(db: Rdict) -> None:
    """Read every block, and raise if one is unreadable. Other threads run meanwhile."""
    options = ReadOptions()
    options.set_readahead_size(_VERIFY_AHEAD_BYTES)
    keys, last = db.keys(read_opt=options), None
    rest_at = time.perf_counter() + _VERIFY_STEP_SECONDS
    while some := deque(islice(keys, _VERIFY_ROWS), maxlen=1):
        last = some[0]
        if time.perf_counter() > rest_at:
            time.sleep(0)
            rest_at = time.perf_counter() + _VERIFY_STEP_SECONDS
    del keys  # otherwise an error would keep the store open
    _check_end(db, last, reverse=False)


def _checked(path: Path, db: Rdict, identity: Identity) -> Store:
    """Return the open store if its disk format and identity are right."""
    meta = db.get_column_family(META)
    version = meta.get(META_FORMAT_KEY)
    if version is None:
        if next(iter(db.keys()), None) is not None:
            raise StoreError(
                f"{path} has rows but no format version: it is not a store of this project; move it away"
            )
        meta[META_IDENTITY_KEY] = _identity_json(identity)
        meta[META_STATE_KEY] = ReplicaState().encode()
        meta[META_FORMAT_KEY] = str(
            FORMAT_VERSION
        ).encode()  # last: a store without a format version counts as new
        return Store(path, db, identity, ReplicaState(), None)
    if version != str(FORMAT_VERSION).encode():
        raise StoreError(
            f"{path} has on-disk format {version.decode(errors='replace')}, and this version writes {FORMAT_VERSION}: "
            f"run the version that wrote it, or delete the directory to hydrate the replica again from the topic"
        )
    try:
        raw_identity: Any = meta[META_IDENTITY_KEY]
        raw_state: Any = meta[META_STATE_KEY]
        owner = Identity(**json.loads(raw_identity))
        state = ReplicaState.decode(raw_state)
        raw_bad = meta.get(META_LAST_BAD_KEY)
        last_bad = json.loads(raw_bad) if raw_bad else None
        raw_sources: Any = meta.get(META_SOURCES_KEY)
        sources = SourcePositions.decode(raw_sources) if raw_sources else None
        raw_clock: Any = meta.get(META_CLOCK_KEY)
        clock = Clock.decode(raw_clock) if raw_clock else None
    except Exception as error:
        raise open_failure(path, f"Corruption: its own state is unreadable, {error!r}") from error
    if replace(owner, topic_id=identity.topic_id) != identity:
        raise StoreError(
            f"{path} holds partition {owner.partition} of topic {owner.topic!r} for {owner.application_id}, not "
            f"partition {identity.partition} of {identity.topic!r} for {identity.application_id}: use another data "
            f"directory, or delete this one"
        )
    return Store(path, db, owner, state, last_bad, sources, clock)


def _raw(items: Any) -> Iterator[tuple[bytes, bytes]]:
    """Narrow rocksdict's types: keys and values of a raw store are bytes."""
    return items  # type: ignore[no-any-return]


def _identity_json(identity: Identity) -> bytes:
    return json.dumps(asdict(identity)).encode()
