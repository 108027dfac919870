"""Simulate stores in memory that outlive their process, with the interface of `serve.store.Store`.

Strategy: a store's directory is real, so that the product's own code makes, renames and removes directories. A file in it names
the rows, which are in memory here. A checkpoint is a file with the rows, so that nodes exchange bytes. A machine that loses
power loses its last batches, each as a whole, as RocksDB's log does.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

from queryable_app.aggregates.clock import Clock
from queryable_app.config.history import HistorySpec
from queryable_app.errors import Failure, Reason
from queryable_app.policy.source_positions import SourcePositions
from queryable_app.serve.store.history_family import HistoryFamily
from queryable_app.serve.store.index_family import IndexCounts, IndexFamily
from queryable_app.serve.store.key_sample import KeySample
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store_errors import StoreDamaged, StoreUnavailable
from queryable_app.wire import change_log
from queryable_app.wire.disk_format import (
    META_HISTORY_KEY,
    META_INDEX_COUNTS_KEY,
    Identity,
    ReplicaState,
)
from queryable_app.wire.index_entries import RowIndexes
from queryable_app.wire.version_keys import HistoryState
from tests.simulation.families import Batch, Cursor, Family

_NAME_FILE = "ROWS"
_CHECKPOINT_FILE = "CURRENT"
_UNSYNCED_BATCHES = 40
_INDEX, _HISTORY, _META = _FAMILIES = ("index", "history", "meta")

_Before = dict[bytes, bytes | None]
"""What was stored before a batch; None: nothing."""


@dataclass(slots=True)
class Rows:
    """Hold the rows on the disk of one replica."""

    identity: Identity
    path: Path
    state: ReplicaState = field(default_factory=ReplicaState)
    rows: dict[bytes, bytes] = field(default_factory=dict)
    entries: dict[bytes, bytes] = field(default_factory=dict)
    """What is behind the rows of a latest-value view under another key, and the log of changes."""
    families: dict[str, Family] = field(default_factory=lambda: {name: Family() for name in _FAMILIES})
    """The index, the versions, and what is noted about them."""
    clock: Clock = field(default_factory=Clock)
    sources: bytes = b""
    """The encoded source positions; empty: none."""
    undo: deque[tuple[ReplicaState, Clock, bytes, _Before, _Before, dict[str, _Before]]] = field(
        default_factory=lambda: deque(maxlen=_UNSYNCED_BATCHES)
    )
    damaged: bool = False
    """It cannot be opened."""
    corrupt_keys: bool = False
    """Some of the rows cannot be read; and a copy of its files has the same damage."""
    found_corrupt: bool = False
    """A read has met such a row since the store was opened."""

    def lose_batches(self, batches: int) -> int:
        """Undo batches, and return how many of them had emptied the replica."""
        emptied = 0
        for _ in range(min(batches, len(self.undo))):
            later = self.state
            self.state, self.clock, self.sources, rows, entries, families = self.undo.pop()
            emptied += self.state.position > later.position
            _change(self.rows, rows)
            _change(self.entries, entries)
            self.change_families(families)
        return emptied

    def change_families(self, changes: Mapping[str, _Before]) -> dict[str, _Before]:
        """Change entries of the families, and return what was there before."""
        return {name: self.families[name].change(changed) for name, changed in changes.items()}


def _change(stored: dict[bytes, bytes], changes: Mapping[bytes, bytes | None]) -> _Before:
    """Change what is stored, and return what was there before."""
    before = {key: stored.get(key) for key in changes}
    for key, value in changes.items():
        if value is None:
            stored.pop(key, None)
        else:
            stored[key] = value
    return before


class Disks:
    """Hold the rows of all machines, by path."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._rows: dict[str, Rows] = {}
        self.note_creation: Callable[[Rows], None] = lambda rows: None
        """Is called with each store that is made, with or without rows, and with each that is emptied."""
        self.note_loss: Callable[[], None] = lambda: None
        """Is called with each store that is emptied."""
        self.refuses: Callable[[Path], bool] = lambda path: False
        """Whether nothing can be written there at present."""
        self.corruption_found: Callable[[], None] = lambda: None
        """Called when a read finds a replica to be corrupt."""

    def open(
        self,
        path: Path,
        identity: Identity,
        memory: SharedMemory,
        indexes: RowIndexes | None = None,
        history: HistorySpec | None = None,
    ) -> SimulatedStore:
        """Replace `Store.open`."""
        if self.refuses(path):
            raise StoreUnavailable(f"{path} cannot be opened (No space left on device)")
        path.mkdir(parents=True, exist_ok=True)
        name_file, checkpoint = path / _NAME_FILE, path / _CHECKPOINT_FILE
        if name_file.exists():
            rows = self._rows[name_file.read_text()]
            rows.path = path
        else:
            rows = Rows(identity, path)
            if checkpoint.exists():
                copied = pickle.loads(checkpoint.read_bytes())
                rows.state, rows.rows, rows.entries, rows.corrupt_keys, clock, rows.sources, families = copied
                rows.families = {name: Family(entries) for name, entries in families.items()}
                rows.clock = Clock.decode(clock)
                checkpoint.unlink()
            name = str(next(self._numbers))
            self._rows[name] = rows
            name_file.write_text(name)
            self.note_creation(rows)
        if rows.damaged:
            raise StoreDamaged(f"{path} is damaged (Corruption)")
        if replace(rows.identity, topic_id=identity.topic_id) != identity:
            raise AssertionError(f"{path} holds {rows.identity}, and was opened as {identity}")
        rows.found_corrupt = False
        return SimulatedStore(path, rows, self, indexes, history)

    def probe(self, path: Path, room_bytes: int) -> None:
        """Replace `disk_probe.probe`."""
        if self.refuses(path):
            raise OSError(f"No space left on device: {path}")

    def below(self, directory: Path) -> list[Rows]:
        """Return the rows on this machine."""
        return [
            self._rows[name_file.read_text()]
            for name_file in sorted(directory.glob(f"*/p*/{_NAME_FILE}"))
            if not name_file.parent.name.endswith(".incoming")
        ]


class SimulatedStore:
    def __init__(
        self,
        path: Path,
        rows: Rows,
        disks: Disks,
        indexes: RowIndexes | None = None,
        history: HistorySpec | None = None,
    ) -> None:
        self.path = path
        self.last_bad: dict[str, Any] | None = None
        self.damaged: str | None = None
        self.keys = KeySample(whole=True)
        self.sources = SourcePositions.decode(rows.sources) if rows.sources else None
        self.on_disk = rows
        self._iterators = 0
        self._closed = False
        self._disks = disks
        self._refused = False
        self._index: IndexFamily | None = None
        if indexes is not None:
            counts = IndexCounts(indexes, self._noted(META_INDEX_COUNTS_KEY))
            self._index = IndexFamily(indexes, _INDEX, counts, not rows.rows)
        self.history: HistoryFamily | None = None
        if history is not None:
            about = (rows.identity.partition, _HISTORY, _META, self._noted(META_HISTORY_KEY), rows.state)
            self.history = HistoryFamily(history, *about)

    def _noted(self, key: bytes) -> bytes | None:
        return self.on_disk.families[_META].entries.get(key)

    @property
    def index(self) -> IndexFamily:
        assert self._index is not None
        return self._index

    @property
    def state(self) -> ReplicaState:
        return self.on_disk.state

    @property
    def clock(self) -> Clock:
        return self.on_disk.clock

    @property
    def identity(self) -> Identity:
        return self.on_disk.identity

    @property
    def in_use(self) -> bool:
        return self._iterators > 0

    def get(self, disk_key: bytes) -> bytes | None:
        self._must_be_readable(disk_key)
        return self.on_disk.rows.get(disk_key)

    def multi_get(self, disk_keys: list[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in disk_keys]

    def rows(
        self,
        start: bytes | None = None,
        stop: bytes | None = None,
        reverse: bool = False,
        caches: bool = True,
    ) -> Generator[tuple[bytes, bytes], None, None]:
        self._must_be_open()
        self._iterators += 1
        try:
            for key, stored in sorted(self.on_disk.rows.items(), reverse=reverse):
                if (start is None or key >= start) and (stop is None or key < stop):
                    self._must_be_readable(key)
                    yield key, stored
        finally:
            self._iterators -= 1

    def multi_get_entries(self, keys: list[bytes]) -> list[bytes | None]:
        self._must_be_open()
        return [self.on_disk.entries.get(key) for key in keys]

    def entries(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        self._must_be_open()
        yield from sorted((k, v) for k, v in self.on_disk.entries.items() if start <= k < stop)

    def index_entries(
        self, start: bytes | None, stop: bytes | None, reverse: bool
    ) -> Generator[tuple[bytes, bytes], None, None]:
        return self._walk(_INDEX, start, stop, reverse)

    def versions(
        self, start: bytes, stop: bytes, reverse: bool, caches: bool = True
    ) -> Generator[tuple[bytes, bytes], None, None]:
        return self._walk(_HISTORY, start, stop, reverse)

    def _walk(
        self, family: str, start: bytes | None, stop: bytes | None, reverse: bool
    ) -> Generator[tuple[bytes, bytes], None, None]:
        self._must_be_open()
        self._iterators += 1
        try:
            yield from self.on_disk.families[family].walk(start, stop, reverse)
        finally:
            self._iterators -= 1

    @contextmanager
    def version_cursor(self) -> Iterator[Cursor]:
        self._must_be_open()
        self._iterators += 1
        try:
            yield Cursor(self.on_disk.families[_HISTORY], self._must_be_open)
        finally:
            self._iterators -= 1

    def write_versions(self, changes: Iterable[tuple[bytes, bytes | None]], state: HistoryState) -> None:
        assert self.history is not None
        batch = Batch(self.on_disk.families)
        batch.changes[_HISTORY] |= dict(changes)
        batch.put(META_HISTORY_KEY, state.encode(), _META)
        self._write({}, {}, batch)
        self.history.state = state

    def has_change_log(self) -> bool:
        return next(self.entries(change_log.FIRST, change_log.END), None) is not None

    def verify(self) -> None:
        self._must_be_open()
        if self.on_disk.corrupt_keys:
            raise StoreDamaged(f"{self.path} is damaged (Corruption)")

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
        disk = self.on_disk
        if state.position < disk.state.position:
            raise AssertionError(f"{self.path}: the position goes back to {state.position}")
        puts, deletes = list(puts), list(deletes)
        batch: Any = Batch(disk.families)
        counts = self._stage_index(batch, puts, deletes)
        past = None if self.history is None else self.history.stage(batch, puts, disk.state, state)
        in_ranges = [k for first, last in deleted_ranges for k in disk.rows if first <= k < last]
        self._write({**dict.fromkeys([*in_ranges, *deletes]), **dict(puts)}, dict(entries), batch)
        self._note_index(counts, state)
        if self.history is not None and past is not None:
            self.history.state = past
        disk.state, disk.clock = state, disk.clock if clock is None else clock
        if sources is not None:
            disk.sources, self.sources = sources.encode(), sources

    def delete(self, disk_keys: Iterable[bytes]) -> None:
        keys, batch = list(disk_keys), Batch(self.on_disk.families)
        counts = self._stage_index(batch, (), keys)
        self._write(dict.fromkeys(keys), {}, batch)
        self._note_index(counts, self.state)

    def _stage_index(
        self, batch: Any, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]
    ) -> IndexCounts | None:
        counts = None if self._index is None else self._index.stage(batch, self, puts, deletes)
        if counts is not None:
            batch.put(META_INDEX_COUNTS_KEY, counts.encode(), _META)
        return counts

    def _note_index(self, counts: IndexCounts | None, state: ReplicaState) -> None:
        if self._index is not None:
            self._index.written(counts, state.complete)

    def _write(
        self,
        rows: Mapping[bytes, bytes | None],
        entries: Mapping[bytes, bytes | None],
        batch: Batch | None = None,
    ) -> None:
        """Write one batch, as far as it changes rows, entries and families. None deletes."""
        self._must_be_open()
        if self._refused or self._disks.refuses(self.path):
            self._refused = True  # as RocksDB: every later write too, until it is opened again
            raise StoreUnavailable(f"{self.path} cannot be written (No space left on device)")
        disk = self.on_disk
        before = disk.state, disk.clock, disk.sources
        families = disk.change_families({} if batch is None else batch.changes)
        disk.undo.append((*before, _change(disk.rows, rows), _change(disk.entries, entries), families))

    def clear(self) -> None:
        """Replace `Store.clear`."""
        disk, batch = self.on_disk, Batch(self.on_disk.families)
        for family in _FAMILIES:
            batch.delete_range(b"", b"\xff", family)
        self._write(dict.fromkeys(disk.rows), dict.fromkeys(disk.entries), batch)
        if self._index is not None:
            self._index.cleared()
        if self.history is not None:
            self.history.state = HistoryState()
        disk.state, disk.clock, disk.sources = ReplicaState(), Clock(), b""
        self.sources = None
        self.set_topic_id("")
        self._disks.note_creation(disk)
        self._disks.note_loss()

    def set_topic_id(self, topic_id: str) -> None:
        self._must_be_open()
        self.on_disk.identity = replace(self.on_disk.identity, topic_id=topic_id)

    def checkpoint(self, path: Path) -> None:
        self._must_be_open()
        path.mkdir(parents=True)
        disk = self.on_disk
        families = {name: family.entries for name, family in disk.families.items()}
        content = (disk.state, disk.rows, disk.entries, disk.corrupt_keys, disk.clock.encode(), disk.sources)
        (path / _CHECKPOINT_FILE).write_bytes(pickle.dumps((*content, families)))

    def cancel_compaction(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def settle(self) -> None:
        """Rows are always where they are found at once."""

    def unflushed_bytes(self) -> int:
        return 0

    def size_bytes(self) -> int:
        return 0

    def close(self) -> None:
        """Close with a flush, which survives a loss of power."""
        self._closed = True
        self.on_disk.undo.clear()

    def _must_be_readable(self, key: bytes) -> None:
        self._must_be_open()
        if self.on_disk.corrupt_keys and crc32(key) % 3 == 0:
            if self.damaged is None:
                self.damaged = "Corruption"
                self.on_disk.found_corrupt = True
                self._disks.corruption_found()
            raise Failure(Reason.NOT_AVAILABLE, f"{self.path} cannot be read", "ask another node")

    def _must_be_open(self) -> None:
        if self._closed:
            raise AssertionError(f"{self.path} is used after it was closed")
