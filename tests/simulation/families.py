"""Simulate the column families beside the rows: a batch that changes them, and RocksDB's iterator over one of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

Changes = dict[bytes, bytes | None]
"""What a batch puts; None: it deletes."""


class Family:
    """Hold the entries of one family on the disk of a replica."""

    def __init__(self, entries: Mapping[bytes, bytes] | None = None) -> None:
        self.entries = dict(entries or {})
        self._snapshot: tuple[list[bytes], dict[bytes, bytes]] | None = None

    def change(self, changes: Changes) -> Changes:
        """Change what is stored, and return what was there before."""
        before = {key: self.entries.get(key) for key in changes}
        for key, value in changes.items():
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value
        if changes:
            self._snapshot = None
        return before

    def snapshot(self) -> tuple[list[bytes], dict[bytes, bytes]]:
        """Return the keys in order, and the entries, as they stay."""
        if self._snapshot is None:
            self._snapshot = sorted(self.entries), self.entries.copy()
        return self._snapshot

    def walk(
        self, start: bytes | None, stop: bytes | None, reverse: bool
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """Iterate over the entries of `[start, stop)` as they are at the first step."""
        keys, entries = self.snapshot()
        first = 0 if start is None else bisect_left(keys, start)
        last = len(keys) if stop is None else bisect_left(keys, stop)
        for key in reversed(keys[first:last]) if reverse else keys[first:last]:
            yield key, entries[key]


class Batch:
    """Implement what the families of a store use of RocksDB's WriteBatch. A handle is the name of a family."""

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families
        self.changes: dict[str, Changes] = {name: {} for name in families}

    def put(self, key: bytes, value: bytes, handle: str) -> None:
        self.changes[handle][key] = value

    def delete(self, key: bytes, handle: str) -> None:
        self.changes[handle][key] = None

    def delete_range(self, start: bytes, stop: bytes, handle: str) -> None:
        there: Iterable[bytes] = [*self._families[handle].entries, *self.changes[handle]]
        self.changes[handle] |= {key: None for key in there if start <= key < stop}


class Cursor:
    """Implement what is used of RocksDB's iterator. `check` is called at each seek, and may raise."""

    def __init__(self, family: Family, check: Callable[[], Any]) -> None:
        self._keys, self._entries = family.snapshot()
        self._check = check
        self._at = -1

    def seek(self, key: bytes) -> None:
        self._check()
        self._at = bisect_left(self._keys, key)

    def seek_for_prev(self, key: bytes) -> None:
        self._check()
        self._at = bisect_right(self._keys, key) - 1

    def next(self) -> None:
        self._at += 1

    def prev(self) -> None:
        self._at -= 1

    def valid(self) -> bool:
        return 0 <= self._at < len(self._keys)

    def key(self) -> bytes:
        return self._keys[self._at]

    def value(self) -> bytes:
        return self._entries[self._keys[self._at]]

    def status(self) -> None:
        """Do nothing: no read of a simulated family fails."""
