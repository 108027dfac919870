"""Own the RocksDB of one store: its column families, what their reads and writes raise, and their upkeep.

Strategy: a block that cannot be read is an error of one read, which another replica answers, and damage is noted once. An open
column family handle or iterator keeps the directory locked, so each is counted or dropped.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Any, Final

from rocksdict import Checkpoint, Rdict, WriteBatch

from queryable_app.errors import Failure, Reason
from queryable_app.platform.log import event
from queryable_app.serve.store.store_errors import (
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    is_damage,
)
from queryable_app.serve.store.walking import read_all, walk
from queryable_app.wire.disk_format import HISTORY, INDEX, META

_RETRY_MS: Final = 1000
_FLUSHED_BYTES_MIN: Final = 1 << 20  # less is not worth a file
_COMPACTED_BYTES_MAX: Final = 64 << 20  # RocksDB compacts more by itself, from four new files on


class Database:
    """Read, write and maintain the column families of one store. Calls are synchronous; those that are slow say so."""

    def __init__(self, path: Path, partition: int, db: Rdict, has_index: bool, has_versions: bool) -> None:
        self.path = path
        self.damaged: str | None = None
        """Why some rows are unreadable for good; None if no damage is known."""
        self._partition = partition
        self._db = db
        self._meta = db.get_column_family_handle(META)
        self._entries = db.get_column_family(META)
        self._index: Rdict | None = db.get_column_family(INDEX) if has_index else None
        self._versions: Rdict | None = db.get_column_family(HISTORY) if has_versions else None
        self._closed = False
        self._iterators = 0
        self._unreadable_logged = False
        self._threads: set[int] = set()

    def _get_all(self, family: Rdict, keys: list[bytes]) -> list[bytes | None]:
        """Return what a family has for each key. Like every read, raise a Failure if a block is unreadable."""
        try:
            stored: list[bytes | None] = family.get(keys)  # type: ignore[arg-type, assignment]
        except Exception as error:
            raise self._unreadable(error) from error
        return stored

    def _walk(
        self,
        family: Rdict | None,
        start: bytes | None,
        stop: bytes | None,
        reverse: bool,
        caches: bool = True,
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """Iterate over `[start, stop)` of a family, as it was at the first step, and keep the store in use meanwhile."""
        assert family is not None
        with self._reading():
            yield from walk(family, start, stop, reverse, caches)

    @contextmanager
    def _cursor(self, family: Rdict | None) -> Iterator[Any]:
        """Lend RocksDB's own iterator over a family as it is now, and keep the store in use meanwhile."""
        assert family is not None
        with self._reading():
            yield family.iter()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Count an iterator, and raise a Failure if a block is unreadable."""
        self._iterators += 1
        try:
            yield
        except Failure:
            raise
        except Exception as error:
            raise self._unreadable(error) from error
        finally:
            self._iterators -= 1

    def _unreadable(self, error: Exception) -> Failure:
        """Log an unreadable block once, and return the Failure that makes the caller try another replica."""
        if not self._closed and not self._unreadable_logged:
            self._unreadable_logged = True
            event("unreadable", partition=self._partition, path=self.path, reason=str(error))
        self._note_damage(error)
        return Failure(
            Reason.NOT_AVAILABLE,
            f"a part of the replica of partition {self._partition} on this node cannot be read",
            "ask another node; the log of this one has the reason",
            partition=self._partition,
            retry_after_ms=_RETRY_MS,
        )

    def _note_damage(self, error: Exception) -> None:
        if not self._closed and self.damaged is None and is_damage(str(error)):
            self.damaged = str(error)

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch)
        except Exception as error:  # rocksdict raises nothing more specific
            self._note_damage(error)  # a compaction may have found it
            if self.damaged is not None:
                raise StoreDamaged(f"{self.path} is damaged and cannot be written ({error})") from error
            # RocksDB refuses all later writes until the store is opened again. Reads continue.
            raise StoreUnavailable(f"{self.path} cannot be written ({error})") from error

    def verify(self) -> None:
        """Check every block of all families against its checksum, or raise StoreDamaged. Blocks in the cache are not read.

        A million rows take 0.3 s of a core. The call holds the interpreter for half a millisecond at a time, so do not call it
        on the event loop.
        """
        for family in self._families():
            try:
                read_all(family)
            except Exception as error:
                raise StoreDamaged(f"{self.path} is damaged ({error})") from error

    def compact(self, start: bytes, stop: bytes) -> None:
        """Reclaim the space of deleted rows. Slow; do not call it on the event loop."""
        with (
            self._in_thread(),
            suppress(Exception),
        ):  # cancelled, or a broken disk, which the next write reports
            self._db.compact_range(start, stop)
            for family in (self._index, self._versions):
                if family is not None:
                    family.compact_range(None, None)

    def settle(self) -> None:
        """Arrange the rows for point reads after many were written: in files in place of memtables, and in few files.

        Slow; do not call it on the event loop."""
        with self._in_thread(), suppress(Exception):  # as in `compact`
            if self.unflushed_bytes() >= _FLUSHED_BYTES_MIN:
                self._flush_families()
            files = int(self._db.property_value("rocksdb.num-files-at-level0") or 0)
            if files > 1 and self._total("rocksdb.total-sst-files-size") <= _COMPACTED_BYTES_MAX:
                self._db.compact_range(None, None)

    def cancel_compaction(self) -> None:
        """Cancel compactions for good. Call it right before `close`."""
        self._db.cancel_all_background(False)

    def flush(self) -> None:
        """Flush the memtables. Slow; do not call it on the event loop."""
        with (
            self._in_thread(),
            suppress(Exception),
        ):  # closed meanwhile, or a broken disk, which the next write reports
            self._flush_families()

    def _flush_families(self) -> None:
        """Flush each family. RocksDB flushes them together by itself, but not when it is asked for one."""
        for family in self._families():
            family.flush()

    def _families(self) -> list[Rdict]:
        families = (self._db, self._entries, self._index, self._versions)
        return [family for family in families if family is not None]

    def checkpoint(self, path: Path) -> None:
        """Write the present content to a new directory, as hard links and small files. Holds all threads: for milliseconds right
        after a `flush`, otherwise for as long as a flush takes."""
        try:
            Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as error:  # rocksdict raises nothing more specific
            raise StoreError(f"{self.path}: no checkpoint can be made ({error})") from error

    def size_bytes(self) -> int:
        """Return the bytes of the table files and of the rows that are only in the write-ahead log."""
        return self._total("rocksdb.total-sst-files-size") + self.unflushed_bytes()

    def unflushed_bytes(self) -> int:
        """Return the bytes in memtables, which the next opening of the store writes out."""
        return self._total("rocksdb.cur-size-all-mem-tables")

    def _total(self, name: str) -> int:
        """Return the sum of a property over the families that may be large."""
        families = (self._db, self._index, self._versions)
        return sum([family.property_int_value(name) or 0 for family in families if family is not None])

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

    def close(self) -> None:
        """Flush the memtables, so that the next start has no write-ahead log to read, and close."""
        if self._closed:
            return
        self._closed = True
        with suppress(Exception):  # then the next start reads the write-ahead log
            self._flush_families()
        self._drop_families()
        with suppress(Exception):  # RocksDB raises that it is shutting down, and closes
            self._db.close()

    def _drop_families(self) -> None:
        """Drop the families and their handles, which would keep the store locked."""
        del self._meta, self._entries
        self._index = self._versions = None
