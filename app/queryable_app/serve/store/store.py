"""One RocksDB per copy of a partition: rows, and what the copy knows of itself, always written together.

Strategy: every write is one WriteBatch over both column families, so that a position never speaks of rows that are not
there. Nothing is synced to disk: after a crash RocksDB recovers a prefix of its batches, and the log refills the rest
from the position in that prefix. Both families are flushed together, or the small one would keep old WAL files alive.

All stores of a node share one block cache and one budget for memtables.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from threading import get_ident
from typing import Any, Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
)

from queryable_app.errors import Failure, Reason
from queryable_app.platform.log import event
from queryable_app.policy.descriptor_plan import STORE_FILES_MIN
from queryable_app.serve.store.key_sample import KeySample
from queryable_app.wire.disk_format import (
    FORMAT_VERSION,
    META,
    META_FORMAT_KEY,
    META_IDENTITY_KEY,
    META_LAST_BAD_KEY,
    META_STATE_KEY,
    ROWS,
    Identity,
    ReplicaState,
)

_MB: Final = 1 << 20
_MEMTABLE_BYTES_MIN: Final = 2 * _MB
_META_MEMTABLE_BYTES: Final = 4 * _MB
_ARENA_BLOCK_BYTES: Final = 64 * 1024  # the default of 1 MB would be paid by every idle store, twice
_RETRY_MS: Final = 1000
_WAL_BYTES_MAX: Final = 64 * _MB  # what is read again after a crash, before the store answers
_VERIFY_AHEAD_BYTES: Final = _MB
_VERIFY_ROWS: Final = 64
_VERIFY_STEP_SECONDS: Final = 0.0005  # so long RocksDB holds the interpreter


class StoreError(Exception):
    """The store cannot be used. The message says why, and what to do."""


class StoreUnavailable(StoreError):
    """The store cannot be opened or written at present. A later attempt may succeed: a full disk, a lock, no descriptors."""


class StoreDamaged(StoreError):
    """What is on disk is not whole. No restart mends it: the copy has to be made anew."""


class SharedMemory:
    """What the stores of one node share: a block cache, a budget for memtables, and how many files each may keep open."""

    def __init__(
        self,
        block_cache_mb: int = 128,
        write_buffer_mb: int = 64,
        stores: int = 1,
        files_max: int = STORE_FILES_MIN,
    ) -> None:
        self.files_max = files_max
        """Table files that each store keeps open. Beyond them a read opens the file again."""
        self.block_cache_bytes = block_cache_mb * _MB
        self.cache = Cache(self.block_cache_bytes)
        self.write_buffers = WriteBufferManager(write_buffer_mb * _MB, False)
        self._write_buffer_bytes = write_buffer_mb * _MB
        self.memtable_bytes = 0
        self.share(stores)

    def share(self, stores: int) -> None:
        """A share for each, since the manager only ever flushes the store that is being written to: full memtables of
        quiet stores would make the busy one flush at every write. Stores that are open keep what they have."""
        self.memtable_bytes = max(_MEMTABLE_BYTES_MIN, self._write_buffer_bytes // max(1, stores))


class Store:
    """Use `Store.open`. Calls are synchronous, short, and made from the event loop's thread alone."""

    def __init__(self, path: Path, db: Rdict, identity: Identity, state: ReplicaState, last_bad: Any) -> None:
        self.path = path
        self.identity = identity
        self.state = state
        self.last_bad: dict[str, Any] | None = last_bad
        self.damaged: str | None = None
        """Why some of it can never be read again; None as far as is known."""
        self.keys = KeySample(whole=state == ReplicaState())
        """About how many keys there are. Of a store that has rows already it says so when the sweeper has walked them."""
        self._db = db
        self._meta = db.get_column_family_handle(META)
        self._closed = False
        self._iterators = 0
        self._said_unreadable = False
        self._threads: set[int] = set()

    @staticmethod
    def open(path: Path, identity: Identity, memory: SharedMemory) -> Store:
        """Create the store or open it; refuse one of another version or with another one's rows."""
        path.mkdir(parents=True, exist_ok=True)
        rows = _options(memory, memory.memtable_bytes)
        try:
            # Without `column_families` a re-opened store silently falls back to an 8 MB cache and no bloom filter.
            families = {ROWS: rows, META: _options(memory, _META_MEMTABLE_BYTES)}
            db = Rdict(str(path), rows, column_families=families)
        except Exception as error:  # rocksdict raises nothing more particular
            raise _not_opened(path, str(error)) from error
        try:
            capacity = db.property_int_value("rocksdb.block-cache-capacity")
            if capacity != memory.block_cache_bytes:
                raise StoreError(
                    f"{path}: RocksDB did not take the options it was given; it caches {capacity} bytes"
                )
            return _checked(path, db, identity)
        except BaseException:
            db.close()
            raise

    def get(self, disk_key: bytes) -> bytes | None:
        """Stored bytes: row header and value. Like every read it raises a Failure when a block cannot be read."""
        try:
            stored: bytes | None = self._db.get(disk_key)
        except Exception as error:
            raise self._unreadable(error) from error
        return stored

    def multi_get(self, disk_keys: list[bytes]) -> list[bytes | None]:
        try:
            stored: list[bytes | None] = self._db.get(disk_keys)  # type: ignore[arg-type, assignment]
        except Exception as error:
            raise self._unreadable(error) from error
        return stored

    def rows(
        self, start: bytes | None = None, stop: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """`[start, stop)` in the order of disk keys. The view is that of the first step, whatever is written meanwhile.

        The bounds are compared here: rocksdict encodes the ones in ReadOptions as if the store were not raw.
        """
        self._iterators += 1
        try:
            if reverse:
                last = stop
                for last, stored in _raw(self._db.items(backwards=True, from_key=stop)):
                    if start is not None and last < start:
                        return
                    if last != stop:
                        yield last, stored
            else:
                last = start
                for last, stored in _raw(self._db.items(from_key=start)):
                    if stop is not None and last >= stop:
                        return
                    yield last, stored
            try:
                self._check_end(last, reverse)
            except Exception as error:
                raise self._unreadable(error) from error
        finally:
            self._iterators -= 1

    def _check_end(self, last: Any, reverse: bool) -> None:
        """There is nothing behind `last`, or it cannot be read, and this says so: rocksdict's `items` end in the same way."""
        steps = self._db.iter()
        try:
            if reverse:
                steps.seek_to_last() if last is None else steps.seek_for_prev(last)
            else:
                steps.seek_to_first() if last is None else steps.seek(last)
            if last is not None and steps.valid():
                steps.prev() if reverse else steps.next()
            steps.status()
        finally:
            del steps  # or an error would keep the store open

    def _unreadable(self, error: Exception) -> Failure:
        """Of this copy; another one may answer."""
        if not self._closed and not self._said_unreadable:
            self._said_unreadable = True
            event("unreadable", partition=self.identity.partition, path=self.path, reason=str(error))
        self._note_damage(error)
        return Failure(
            Reason.NOT_AVAILABLE,
            f"a part of the copy of partition {self.identity.partition} on this node cannot be read",
            "ask another node; the log of this one has the reason",
            partition=self.identity.partition,
            retry_after_ms=_RETRY_MS,
        )

    def _note_damage(self, error: Exception) -> None:
        if not self._closed and self.damaged is None and _is_damage(str(error)):
            self.damaged = str(error)

    def verify(self) -> None:
        """Hold every block of the rows against its checksum. Raises StoreDamaged. 0.3 s of a core for a million rows,
        with the interpreter for half a millisecond at a time: not for the event loop. What is in the cache is not read."""
        options = ReadOptions()
        options.set_readahead_size(_VERIFY_AHEAD_BYTES)
        keys, last = self._db.keys(read_opt=options), None
        rest_at = time.perf_counter() + _VERIFY_STEP_SECONDS
        while some := deque(islice(keys, _VERIFY_ROWS), maxlen=1):
            last = some[0]
            if time.perf_counter() > rest_at:
                time.sleep(0)  # whoever waits is next
                rest_at = time.perf_counter() + _VERIFY_STEP_SECONDS
        del keys  # or an error would keep the store open
        try:
            self._check_end(last, reverse=False)
        except Exception as error:
            raise StoreDamaged(f"{self.path} is damaged ({error})") from error

    def apply(
        self, puts: Iterable[tuple[bytes, bytes]], state: ReplicaState, last_bad: dict[str, Any] | None = None
    ) -> None:
        """Rows and the state that speaks of them, in one batch."""
        batch = WriteBatch(raw_mode=True)
        put, note, mask = batch.put, self.keys.note, self.keys.mask
        for key, stored in puts:
            put(key, stored)
            if not hash(key) & mask:
                note(key, stored)
        put(META_STATE_KEY, state.encode(), self._meta)
        if last_bad is not None:
            put(META_LAST_BAD_KEY, json.dumps(last_bad).encode(), self._meta)
        self._write(batch)
        self.state = state
        if last_bad is not None:
            self.last_bad = last_bad

    def delete(self, disk_keys: Iterable[bytes]) -> None:
        """Remove rows that nobody can read any more. The position does not change."""
        batch = WriteBatch(raw_mode=True)
        for key in disk_keys:
            batch.delete(key)
            self.keys.forget(key)
        self._write(batch)

    def clear(self) -> None:
        """Forget everything: rows, counters and position. What is left is an empty copy of nobody's topic."""
        batch = WriteBatch(raw_mode=True)
        last = next(self.rows(reverse=True), None)
        if last is not None:
            batch.delete_range(b"", last[0] + b"\0")
        identity, state = replace(self.identity, topic_id=""), ReplicaState()
        batch.put(META_STATE_KEY, state.encode(), self._meta)
        batch.put(META_IDENTITY_KEY, _identity_json(identity), self._meta)
        batch.delete(META_LAST_BAD_KEY, self._meta)
        self._write(batch)
        self.identity, self.state, self.last_bad = identity, state, None
        self.keys = KeySample(whole=True)

    def set_topic_id(self, topic_id: str) -> None:
        """From now on these are rows of this very topic, not of one made again under the same name."""
        identity = replace(self.identity, topic_id=topic_id)
        batch = WriteBatch(raw_mode=True)
        batch.put(META_IDENTITY_KEY, _identity_json(identity), self._meta)
        self._write(batch)
        self.identity = identity

    def compact(self, start: bytes, stop: bytes) -> None:
        """Give the space of deleted rows back. Takes long, and lets other threads run: not for the event loop."""
        with self._in_thread(), suppress(Exception):  # cancelled, or a broken disk: the next write says so
            self._db.compact_range(start, stop)

    def cancel_compaction(self) -> None:
        """The last thing before `close`: RocksDB starts no other one."""
        self._db.cancel_all_background(False)

    @property
    def in_use(self) -> bool:
        """Rows are being read step by step, or a thread is at work. Until that ends RocksDB keeps the directory locked."""
        return self._iterators > 0 or bool(self._threads)

    @contextmanager
    def _in_thread(self) -> Iterator[None]:
        self._threads.add(get_ident())
        try:
            yield
        finally:
            self._threads.discard(get_ident())

    def flush(self) -> None:
        """Write memtables out. Lets other threads run: not for the event loop."""
        with (
            self._in_thread(),
            suppress(Exception),
        ):  # closed meanwhile, or a broken disk: what comes next says so
            self._db.flush()

    def checkpoint(self, path: Path) -> None:
        """The store as it is now, at a path that is not there yet: hard links, and small files written anew. Holds all
        threads, for milliseconds after a `flush` and for as long as that would take otherwise."""
        try:
            Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as error:  # rocksdict raises nothing more particular
            raise StoreError(f"{self.path}: no checkpoint can be made ({error})") from error

    def size_bytes(self) -> int:
        """On disk, the write-ahead log counted by what it protects."""
        files = self._db.property_int_value("rocksdb.total-sst-files-size") or 0
        return files + self.unflushed_bytes()

    def unflushed_bytes(self) -> int:
        """In memtables: what opening the store again writes out."""
        return self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0

    def close(self) -> None:
        """Write memtables out first: the next start then has no log to read. The handle of a column family would keep
        the store open and locked."""
        if self._closed:
            return
        self._closed = True
        with suppress(Exception):  # then the log is read after all
            self._db.flush()
        del self._meta
        with suppress(Exception):  # RocksDB says that it is shutting down, and is closed
            self._db.close()

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch)
        except Exception as error:  # rocksdict raises nothing more particular
            self._note_damage(error)  # that a compaction came to
            if self.damaged is not None:
                raise StoreDamaged(f"{self.path} is damaged and cannot be written ({error})") from error
            # RocksDB refuses every later write as well, until the store is opened anew; reads go on.
            raise StoreUnavailable(f"{self.path} cannot be written ({error})") from error


def _options(memory: SharedMemory, memtable_bytes: int) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_manager(memory.write_buffers)
    options.set_write_buffer_size(memtable_bytes)
    options.set_arena_block_size(_ARENA_BLOCK_BYTES)
    options.set_atomic_flush(True)
    options.set_max_total_wal_size(_WAL_BYTES_MAX)
    options.set_max_open_files(memory.files_max)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(_MB)
    options.set_stats_dump_period_sec(0)
    return options


def _checked(path: Path, db: Rdict, identity: Identity) -> Store:
    """The opened store, once its version and owner are known to be right."""
    meta = db.get_column_family(META)
    version = meta.get(META_FORMAT_KEY)
    if version is None:
        if next(iter(db.keys()), None) is not None:
            raise StoreError(
                f"{path} has rows but no format version: it is not a store of this project; move it away"
            )
        meta[META_IDENTITY_KEY] = _identity_json(identity)
        meta[META_STATE_KEY] = ReplicaState().encode()
        meta[META_FORMAT_KEY] = str(FORMAT_VERSION).encode()  # last: without it the store counts as new
        return Store(path, db, identity, ReplicaState(), None)
    if version != str(FORMAT_VERSION).encode():
        raise StoreError(
            f"{path} has on-disk format {version.decode(errors='replace')}, and this version writes {FORMAT_VERSION}: "
            f"run the version that wrote it, or delete the directory to build the copy again from the topic"
        )
    try:
        raw_identity: Any = meta[META_IDENTITY_KEY]
        raw_state: Any = meta[META_STATE_KEY]
        owner = Identity(**json.loads(raw_identity))
        state = ReplicaState.decode(raw_state)
        raw_bad = meta.get(META_LAST_BAD_KEY)
        last_bad = json.loads(raw_bad) if raw_bad else None
    except Exception as error:
        raise _not_opened(path, f"Corruption: its own state is unreadable, {error!r}") from error
    if replace(owner, topic_id=identity.topic_id) != identity:
        raise StoreError(
            f"{path} holds partition {owner.partition} of topic {owner.topic!r} for {owner.application_id}, not "
            f"partition {identity.partition} of {identity.topic!r} for {identity.application_id}: use another data "
            f"directory, or delete this one"
        )
    return Store(path, db, owner, state, last_bad)


def _raw(items: Any) -> Iterator[tuple[bytes, bytes]]:
    """In a raw store keys and values are bytes; the package's types do not know."""
    return items  # type: ignore[no-any-return]


def _identity_json(identity: Identity) -> bytes:
    return json.dumps(asdict(identity)).encode()


def _is_damage(error: str) -> bool:
    return "Corruption" in error or "No such file" in error


def _not_opened(path: Path, error: str) -> StoreError:
    if "lock hold" in error or "While lock file" in error:
        return StoreUnavailable(f"{path} is in use by another process; stop it first ({error})")
    if _is_damage(error):
        return StoreDamaged(
            f"{path} is damaged ({error}); delete the directory, and the copy is built again from the topic"
        )
    return StoreUnavailable(f"{path} cannot be opened ({error}); mend the disk or its permissions")
