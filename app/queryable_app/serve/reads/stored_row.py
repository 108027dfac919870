"""Decode the row that a store has for a key, and tell which of several rows is the newest."""

from __future__ import annotations

from typing import NamedTuple

from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE


class StoredRow(NamedTuple):
    """A row as the store has it. Rows of one key compare by age: the greatest is the newest."""

    timestamp_ms: int
    offset: int
    partition: int
    expiry_ms: int
    tombstone: bool
    stored: bytes

    def is_live(self, now_ms: int) -> bool:
        """Return whether the row is neither a tombstone nor expired."""
        return not self.tombstone and not 0 < self.expiry_ms <= now_ms

    @property
    def value(self) -> bytes:
        return self.stored[ROW_HEADER_SIZE:]


def stored_row(partition: int, stored: bytes) -> StoredRow:
    """Decode the bytes that a store has for a key."""
    flags, offset, timestamp_ms, expiry_ms = ROW_HEADER.unpack_from(stored)
    return StoredRow(timestamp_ms, offset, partition, expiry_ms, bool(flags & TOMBSTONE), stored)
