"""Define the format of the disk: column families, keys, rows, and the version.

Strategy: each replica has a RocksDB with two column families. `default` has the rows, under the record's key in an
order-preserving form; no key is reserved. `meta` has the replica's state, in the same WriteBatch as the rows that it describes.
A view with indexes has a third one, `index`, with the entries of each row (wire/index_keys.py), also in that batch; one with
history has `history`, with all versions of the rows (wire/version_keys.py).

A row is a header and the value's bytes. A tombstone (a deleted key, or a row that the view's filter dropped) is a header with its
flag set. It must outlive older records of its key that other producers wrote to another partition. The sweeper removes it after
a day, like Kafka's compaction, but never while a read covers every partition: the older record would reappear.

The JVM writer (`ingest/writer/RowWriter.java`) builds rows in this layout, so serve copies no value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

FORMAT_VERSION: Final = 1
ROWS: Final = "default"
META: Final = "meta"
INDEX: Final = "index"
HISTORY: Final = "history"
META_FORMAT_KEY: Final = b"format"  # decimal text of FORMAT_VERSION
META_IDENTITY_KEY: Final = b"identity"  # JSON of Identity
META_STATE_KEY: Final = b"state"  # ReplicaState, rewritten with every slice
META_SOURCES_KEY: Final = b"sources"  # SourcePositions of a rekeyed view, rewritten with every slice
META_CLOCK_KEY: Final = b"clock"  # the Clock of a view with windows, rewritten with every slice
META_INDEX_COUNTS_KEY: Final = b"index-counts"  # JSON: the entries and the mistyped rows of each index
META_HISTORY_KEY: Final = b"history"  # HistoryState, rewritten with every slice
META_LAST_BAD_KEY: Final = b"last-bad"  # JSON of the newest record that could not be decoded

TOMBSTONE: Final = 1
TOMBSTONE_RETENTION_MS: Final = 24 * 3600 * 1000

# flags, offset, record timestamp (ms), expiry (ms since the epoch; 0: never). Big-endian, as all of the disk.
ROW_HEADER: Final = struct.Struct(">BqqQ")
ROW_HEADER_SIZE: Final = ROW_HEADER.size

# position, complete, rows, deletes, null keys, bad, dropped, last record's timestamp, mismatches: murmur2,
# crc32, fnv1a
_STATE: Final = struct.Struct(">qBQQQQQqQQQ")

_SIGN_INT: Final = 0x80
_FLIPPED: Final = bytes(0xFF - b for b in range(256))


@dataclass(frozen=True, slots=True)
class Identity:
    """Identify the rows of a store. A store with another identity is not opened."""

    application_id: str
    topic: str
    partition: int
    topic_id: str = ""  # empty until Kafka has answered
    indexes: str = ""  # the names, fields and types of the indexes; empty: there are none


class ReplicaState(NamedTuple):
    """Describe a replica. It changes only together with the rows that it describes.

    One is made for every slice: a tuple takes 0.4 µs, and a frozen dataclass 0.9."""

    position: int = -1  # offset of the next record; -1: no record is applied
    complete: bool = False  # it has reached the end offset at least once
    rows: int = 0
    deletes: int = 0
    null_keys: int = 0
    bad: int = 0
    dropped: int = 0
    last_timestamp_ms: int = -1
    mismatches: tuple[int, int, int] = (0, 0, 0)  # of the algorithms murmur2, crc32, fnv1a

    def encode(self) -> bytes:
        return _STATE.pack(
            self.position,
            self.complete,
            self.rows,
            self.deletes,
            self.null_keys,
            self.bad,
            self.dropped,
            self.last_timestamp_ms,
            *self.mismatches,
        )

    @staticmethod
    def decode(raw: bytes) -> ReplicaState:
        position, complete, rows, deletes, null_keys, bad, dropped, last, m2, crc, fnv = _STATE.unpack(raw)
        return ReplicaState(
            position, bool(complete), rows, deletes, null_keys, bad, dropped, last, (m2, crc, fnv)
        )


@dataclass(frozen=True, slots=True)
class Row:
    """Describe a row of a store."""

    offset: int
    timestamp_ms: int
    expiry_ms: int
    value: bytes | None  # None: a tombstone

    def live(self, now_ms: int) -> bool:
        return self.value is not None and not (0 < self.expiry_ms <= now_ms)


def encode_row(row: Row) -> bytes:
    flags = TOMBSTONE if row.value is None else 0
    return ROW_HEADER.pack(flags, row.offset, row.timestamp_ms, row.expiry_ms) + (row.value or b"")


def decode_row(stored: bytes) -> Row:
    flags, offset, timestamp_ms, expiry_ms = ROW_HEADER.unpack_from(stored)
    return Row(offset, timestamp_ms, expiry_ms, None if flags & TOMBSTONE else stored[ROW_HEADER_SIZE:])


def count_tombstones(rows: Iterable[tuple[bytes, bytes]]) -> int:
    """Count the rows whose stored bytes are a tombstone."""
    count = 0
    for _, stored in rows:
        count += stored[0] & TOMBSTONE
    return count


class KeyOrder:
    """Name the conversions between a record's key and an on-disk key that sorts by value.

    A key without the format's length stays as it is: no number reads it, but a scan still returns it.
    """

    PLAIN: Final = "plain"  # string, uuid, bytes, json: bytes sort as they are
    SIGNED: Final = "signed"  # int, long: two's complement, big-endian: flip the sign bit
    DOUBLE: Final = "double"  # IEEE 754: flip the sign bit of positives, every bit of negatives


def to_disk_key(record_key: bytes, order: str, width: int = 0) -> bytes:
    """Return the on-disk key. `width` is the format's length in bytes; a key of another length is unchanged."""
    if order == KeyOrder.PLAIN or len(record_key) != width:
        return record_key
    first = record_key[0]
    if order == KeyOrder.DOUBLE and first & _SIGN_INT:
        return record_key.translate(_FLIPPED)
    return bytes((first ^ _SIGN_INT,)) + record_key[1:]


def to_record_key(disk_key: bytes, order: str, width: int = 0) -> bytes:
    if order == KeyOrder.PLAIN or len(disk_key) != width:
        return disk_key
    first = disk_key[0]
    if order == KeyOrder.DOUBLE and not first & _SIGN_INT:
        return disk_key.translate(_FLIPPED)
    return bytes((first ^ _SIGN_INT,)) + disk_key[1:]
