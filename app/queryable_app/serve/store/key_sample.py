"""How many keys a store has, without reading it: a sample of its keys is kept while rows are written.

Strategy: a key is in the sample when the low bits of its hash are zero. An update finds itself there, a delete takes itself out,
and only keys that can be read count. When the sample grows beyond its bound, one more bit must be zero, and half of it goes.
The count is exact up to `SAMPLE_MAX` keys, and beyond that within a few percent (3 % standard deviation), however many updates,
deletes and expired rows there are. The sample is in memory alone, with Python's own hash, which is the cheapest. After a start
it is made again by walking the rows, and until then there is no count.
"""

from __future__ import annotations

from typing import Final

from queryable_app.wire.disk_format import ROW_HEADER, TOMBSTONE

SAMPLE_MAX: Final = 2048


class KeySample:
    def __init__(self, whole: bool) -> None:
        self.whole = whole
        """Every key of the store has had its chance: the store was empty, or it was walked."""
        self.mask = 0
        """`hash(key) & mask` is 0 for the keys that `note` must see."""
        self._expiry_ms: dict[int, int] = {}  # by the key's hash; 0: never
        self._expires = False  # one of them does

    def note(self, key: bytes, stored: bytes) -> None:
        """Take in a row as it was written, or as it was found."""
        hashed = hash(key)
        if hashed & self.mask:
            return
        if len(stored) < ROW_HEADER.size:
            return  # it is no row, which a read of it says
        flags, _, _, expiry_ms = ROW_HEADER.unpack_from(stored)
        if flags & TOMBSTONE:
            self._expiry_ms.pop(hashed, None)
            return
        self._expiry_ms[hashed] = expiry_ms
        self._expires = self._expires or expiry_ms > 0
        while len(self._expiry_ms) > SAMPLE_MAX:
            self.mask = mask = 2 * self.mask + 1
            self._expiry_ms = {h: expiry for h, expiry in self._expiry_ms.items() if not h & mask}

    def forget(self, key: bytes) -> None:
        """Take in that the row has been removed."""
        self._expiry_ms.pop(hash(key), None)

    def count(self, now_ms: int) -> int | None:
        """Return about how many keys can be read, or None while that is not known."""
        if not self.whole:
            return None
        sampled = self._expiry_ms
        readable = sum(not 0 < e <= now_ms for e in sampled.values()) if self._expires else len(sampled)
        return readable * (self.mask + 1)
