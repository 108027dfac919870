"""Estimate how many keys a store has, from a sample that writes keep up to date.

Strategy: a key is in the sample if the low bits of its hash are zero. An update replaces its entry, a delete removes it, and only
readable keys count. When the sample exceeds its bound, one more bit must be zero, which removes half of it. The count is exact up
to `SAMPLE_MAX` keys, and has a standard deviation of 3 % beyond, whatever the number of updates, deletes and expired rows. The
sample is only in memory, with Python's own hash, which is the cheapest. After a start there is no count until a walk over the
rows has rebuilt the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from queryable_app.wire.disk_format import ROW_HEADER, TOMBSTONE

SAMPLE_MAX: Final = 2048


class KeySample:
    """Sample the keys of one store."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        """True once the sample has seen every key: the store was empty, or a walk is complete."""
        self._mask = 0
        self._expiry_ms: dict[int, int] = {}  # by the key's hash; 0: never
        self._expires = False  # one of them does

    def stage(self, put: Callable[[bytes, bytes], None], rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Pass rows to the `put` of a batch that writes them, and add them to the sample."""
        mask = self._mask
        for key, stored in rows:
            put(key, stored)
            if not hash(key) & mask:  # `note` looks again, since the mask may be longer by then
                self.note(key, stored)

    def note(self, key: bytes, stored: bytes) -> None:
        """Add a row that was written, or found by a walk."""
        hashed = hash(key)
        if hashed & self._mask:
            return
        if len(stored) < ROW_HEADER.size:
            return  # malformed, which a read of it reports
        flags, _, _, expiry_ms = ROW_HEADER.unpack_from(stored)
        if flags & TOMBSTONE:
            self._expiry_ms.pop(hashed, None)
            return
        self._expiry_ms[hashed] = expiry_ms
        self._expires = self._expires or expiry_ms > 0
        while len(self._expiry_ms) > SAMPLE_MAX:
            self._mask = mask = 2 * self._mask + 1
            self._expiry_ms = {h: expiry for h, expiry in self._expiry_ms.items() if not h & mask}

    def forget(self, key: bytes) -> None:
        """Remove a deleted row."""
        self._expiry_ms.pop(hash(key), None)

    def count(self, now_ms: int) -> int | None:
        """Estimate how many keys are readable, or return None while a walk is still needed."""
        if not self.whole:
            return None
        sampled = self._expiry_ms
        readable = sum(not 0 < e <= now_ms for e in sampled.values()) if self._expires else len(sampled)
        return readable * (self._mask + 1)
