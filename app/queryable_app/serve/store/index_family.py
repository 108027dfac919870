"""Keep the index entries of one store: in the batch that changes rows, and for reads.

Strategy: the entries of a row follow from its stored bytes alone. So a write reads the rows that it replaces in one call, and
deletes the entries that they had and no longer have. A read takes a few entries and their rows in one step of the event loop, in
which no write can come between: the entries and the rows are of one moment.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from copy import copy
from itertools import islice, repeat
from typing import Any, Final, Protocol, cast

from rocksdict import Rdict, WriteBatch

from queryable_app.config.indexes import INDEXES_MAX
from queryable_app.serve.store.shared_memory import FILLED, FILLING
from queryable_app.wire.index_entries import NONE, RowIndexes, expiry_of
from queryable_app.wire.index_keys import value_end

_CHUNK_ROWS_MIN: Final = 4
_CHUNK_ROWS_MAX: Final = 128
_CHUNK_BYTES: Final = 256 * 1024
_FIRST_PUTS_BYTES: Final = 1 << 20
_FIRST_PUTS_MAX: Final = 2_000_000  # then a fifth of the bits is set
_BIT_MASKS: Final = tuple(1 << bit for bit in range(8))
_COLUMN_ROWS_MIN: Final = 8  # fewer rows take longer by column
_COUNTED_AT_ONCE: Final = 8  # entries in each part of a number: a read takes some hundred parts in a step
COUNT_BYTES: Final = 8

Pairs = Generator[tuple[bytes, bytes], None, None]


class IndexedStore(Protocol):
    """Read the rows and the entries of a store."""

    def multi_get(self, disk_keys: list[bytes]) -> list[bytes | None]: ...

    def index_entries(self, start: bytes | None, stop: bytes | None, reverse: bool) -> Pairs: ...


class IndexCounts:
    """Count the entries of each index, and the rows whose field is of another type."""

    def __init__(self, indexes: RowIndexes, stored: bytes | None = None) -> None:
        known: dict[str, Any] = json.loads(stored) if stored else {}
        self._names = indexes.names
        self.entries = [int(known.get(name, (0, 0))[0]) for name in self._names]
        self.mistyped = [int(known.get(name, (0, 0))[1]) for name in self._names]

    def copied(self) -> IndexCounts:
        other = copy(self)
        other.entries, other.mistyped = list(self.entries), list(self.mistyped)
        return other

    def by_name(self) -> dict[str, tuple[int, int]]:
        return dict(zip(self._names, zip(self.entries, self.mistyped, strict=True), strict=True))

    def encode(self) -> bytes:
        return json.dumps(self.by_name()).encode()


class FirstPuts:
    """Tell keys that a store does not have yet, while it is filled from empty: their rows replace none, so none is read.

    Each put sets a bit of a map by the hash of its key. A key whose bit is not set was never put. Another one may have been.
    """

    def __init__(self) -> None:
        self._bits = bytearray(_FIRST_PUTS_BYTES)
        self._puts = 0

    @property
    def is_full(self) -> bool:
        """Return whether so many bits are set that the map tells little."""
        return self._puts > _FIRST_PUTS_MAX

    def maybe_there(self, keys: Collection[bytes]) -> list[bytes]:
        """Return the keys that may have a row. From now on all of them may."""
        bits, mask, masks = self._bits, 8 * _FIRST_PUTS_BYTES - 1, _BIT_MASKS
        there: list[bytes] = []
        for key in keys:
            place = hash(key) & mask
            at = place >> 3
            byte, bit = bits[at], masks[place & 7]
            if byte & bit:
                there.append(key)
            else:
                bits[at] = byte | bit
        self._puts += len(keys)
        return there


def _split(
    new: dict[bytes, bytes | None], before: Mapping[bytes, bytes | None]
) -> tuple[dict[bytes, bytes], dict[bytes, bytes | None]]:
    """Return the rows that replace none, and the others of `new`: deletes, and the rows whose keys have a row `before`."""
    rest = {key: new[key] for key, stored in before.items() if stored is not None}
    if not rest and None not in new.values():
        return cast(dict[bytes, bytes], new), rest
    fresh = {key: row for key, row in new.items() if row is not None and key not in rest}
    if len(fresh) + len(rest) < len(new):  # deletes of absent keys
        rest |= {key: row for key, row in new.items() if key not in fresh}
    return fresh, rest


class IndexFamily:
    """Maintain the entries of one store. `handle` is its column family."""

    def __init__(
        self,
        indexes: RowIndexes,
        handle: Any,
        counts: IndexCounts,
        is_empty: bool = False,
        families: Sequence[Rdict] = (),
    ) -> None:
        """`is_empty`: the store has no row. `families` are those of the rows and of the entries."""
        self.indexes = indexes
        self.counts = counts
        self._families = families
        self._handle = handle
        self._first_puts = FirstPuts() if is_empty else None
        self._filling = False  # also of a store that is opened with a part of its rows
        if is_empty:
            self._set_filling(True)

    def stage(
        self,
        batch: WriteBatch,
        store: IndexedStore,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes],
    ) -> IndexCounts | None:
        """Add to a batch what its rows change in the index. `deletes` come before `puts`. Return the counts after it, if they
        differ."""
        new: dict[bytes, bytes | None] = dict.fromkeys(deletes)
        new.update(puts)
        before = self._replaced(store, new)
        put, delete = batch.put, batch.delete
        of_row, handle, counts = self.indexes.entries, self._handle, self.counts.copied()
        entries, mistyped = counts.entries, counts.mistyped
        added: dict[bytes, bytes] = {}
        removed: list[bytes] = []
        changed = False
        rest = new
        if len(new) >= _COLUMN_ROWS_MIN:
            fresh, replaced = _split(new, before)
            columns = self.indexes.entries_by_column(fresh, fresh.values()) if fresh else None
            if columns is not None:
                for number, column in enumerate(columns):
                    entries[number] += len(column.entries)
                    changed = changed or bool(column.entries)
                    if column.expiries is None:
                        deque(map(put, sorted(column.entries), repeat(b""), repeat(handle)), 0)
                    else:
                        added.update(zip(column.entries, column.expiries, strict=True))
                rest = replaced
        for key, stored in rest.items():
            values, wrong = NONE if stored is None else of_row(stored)
            old = before.get(key)
            values_before, wrong_before = NONE if old is None else of_row(old)
            if not (values or wrong or values_before or wrong_before):
                continue
            expiry = expiry_of(stored or b"")
            same_expiry = old is not None and expiry == expiry_of(old)
            for value in values_before:
                if value not in values:
                    removed.append(value + key)
                    entries[value[0]] -= 1
            for value in values:
                if value not in values_before:
                    entries[value[0]] += 1
                elif same_expiry:
                    continue
                added[value + key] = expiry
            for number in wrong_before:
                mistyped[number] -= 1
            for number in wrong:
                mistyped[number] += 1
            changed = True
        for entry in sorted(removed):  # in order, RocksDB writes the entries of a slice with a third less CPU
            delete(entry, handle)
        for entry in sorted(added):
            put(entry, added[entry], handle)
        return counts if changed else None

    def _replaced(self, store: IndexedStore, keys: Collection[bytes]) -> Mapping[bytes, bytes | None]:
        """Return the stored rows that have these keys."""
        if self._first_puts is not None:
            keys = self._first_puts.maybe_there(keys)
            if self._first_puts.is_full:
                self._first_puts = None
        wanted = sorted(keys)  # in order, RocksDB reads them with less CPU
        return dict(zip(wanted, store.multi_get(wanted), strict=True)) if wanted else {}

    def written(self, counts: IndexCounts | None, complete: bool) -> None:
        """Keep the counts of a batch that was written. The records that a `complete` replica gets replace others."""
        if counts is not None:
            self.counts = counts
        if complete:
            self._first_puts = None
            if self._filling:
                self._set_filling(False)

    def stage_clear(self, batch: WriteBatch) -> None:
        """Add to a batch that the index becomes empty."""
        batch.delete_range(b"", bytes((INDEXES_MAX,)), self._handle)

    def cleared(self) -> None:
        """Note that the store is empty, once such a batch is written."""
        self.counts = IndexCounts(self.indexes)
        self._first_puts = FirstPuts()
        self._set_filling(True)

    def _set_filling(self, filling: bool) -> None:
        """Let RocksDB compact seldom while the store is filled, and as usual from when it is complete."""
        self._filling = filling
        with suppress(Exception):  # a broken disk, which the next write reports
            for family in self._families:
                family.set_options(FILLING if filling else FILLED)

    def rows(self, store: IndexedStore, start: bytes | None, stop: bytes | None, reverse: bool) -> Pairs:
        """Iterate over the entries of `[start, stop)`, each with its stored row. A row that changes may appear twice."""
        size = _CHUNK_ROWS_MIN
        while True:
            with closing(store.index_entries(start, stop, reverse)) as found:
                entries = [entry for entry, _ in islice(found, size)]
            if not entries:
                return
            rows = store.multi_get([self.row_key(entry) for entry in entries])
            taken = 0
            for entry, stored in zip(entries, rows, strict=True):
                if stored is not None:
                    taken += len(stored)
                    yield entry, stored
            if len(entries) < size:
                return
            start, stop = (start, entries[-1]) if reverse else (entries[-1] + b"\0", stop)
            size = max(1, min(2 * size, _CHUNK_ROWS_MAX, size * _CHUNK_BYTES // max(1, taken)))

    def counts_of_values(
        self, store: IndexedStore, start: bytes | None, stop: bytes | None, reverse: bool
    ) -> Pairs:
        """Iterate over the values of the entries of `[start, stop)`, each with a part of the number of its live entries."""
        now = (time.time_ns() // 1_000_000).to_bytes(COUNT_BYTES)
        value, count, looked_at = b"", 0, 0
        types = [index.type for index in self.indexes.specs]
        with closing(store.index_entries(start, stop, reverse)) as found:
            for entry, expiry in found:
                if not value or not entry.startswith(value):
                    if value:
                        yield value, count.to_bytes(COUNT_BYTES)
                    value, count, looked_at = entry[: value_end(entry, types[entry[0]])], 0, 0
                elif looked_at == _COUNTED_AT_ONCE:
                    yield value, count.to_bytes(COUNT_BYTES)
                    count = looked_at = 0
                looked_at += 1
                if not expiry or expiry > now:
                    count += 1
        if value:
            yield value, count.to_bytes(COUNT_BYTES)

    def row_key(self, entry: bytes) -> bytes:
        """Return the on-disk key of an entry's row."""
        return entry[value_end(entry, self.indexes.specs[entry[0]].type) :]
