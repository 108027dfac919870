"""What lies on disk: column families, keys, row headers, and the version of it all.

Strategy: a store is one RocksDB per partition copy with two column families. `default` holds the rows, under
the record's key in an order-preserving form and nothing else, so that no key is reserved. `meta` holds the
copy's own state, written in the same WriteBatch as the rows it speaks of.

A row is a header followed by the value's bytes. A tombstone (a deleted key, or a row that the view's filter
dropped) is a header alone, with its flag set: it must outlive older records of the same key that mixed
producers wrote to another partition. The sweeper removes it a day later, as Kafka's own compaction does; but never while
keys are looked for in every partition, where that older record would come back to life.

The JVM writer (`ingest/writer/RowWriter.java`) builds rows in this very layout, so that serve never copies a
value.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

FORMAT_VERSION: Final = 1
ROWS: Final = "default"
META: Final = "meta"
META_FORMAT_KEY: Final = b"format"  # decimal text of FORMAT_VERSION
META_IDENTITY_KEY: Final = b"identity"  # JSON of Identity: whose rows these are
META_STATE_KEY: Final = b"state"  # CopyState, rewritten with every slice
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
    """Whose rows a store holds. Opening it for anything else is refused."""

    application_id: str
    topic: str
    partition: int
    topic_id: str = ""  # empty until Kafka was asked


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What a copy knows of itself. It changes only together with the rows it speaks of."""

    position: int = -1  # offset of the next record to be applied; -1: nothing applied yet
    complete: bool = False  # it has held everything up to the log's end at least once
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
    """One row as it is read back."""

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


class KeyOrder:
    """How a record's key bytes become an on-disk key that sorts as its values do, and back.

    Bytes that do not have the format's length are kept as they are: they cannot be asked for as a number, but
    a scan still shows them and nothing is lost.
    """

    PLAIN: Final = "plain"  # string, uuid, bytes, json: bytes sort as they are
    SIGNED: Final = "signed"  # int, long: two's complement, big-endian: flip the sign bit
    DOUBLE: Final = "double"  # IEEE 754: flip the sign bit of positives, every bit of negatives


def to_disk_key(record_key: bytes, order: str, width: int = 0) -> bytes:
    """`width` is the format's length in bytes; keys of another length are stored unchanged."""
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
