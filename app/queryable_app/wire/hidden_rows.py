"""Define the on-disk entries behind the rows of a latest-value view under another key.

Strategy: several record keys may have the same key in such a view. Its row is that of the newest record. The rows of the others
are *hidden*: they wait in the column family `meta`, in the order in which they would follow. Each value is stored once.

* place: record key → version and key of its row.
* shown: key → version of its row, and whether hidden rows may exist.
* hidden: key and version → row. The newest version comes first.

The first byte of an entry is lower than that of every other key in `meta`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

FIRST: Final = b"\x01"
END: Final = b"\x05"
"""The range of all entries."""
_PLACE, _KEYLESS, _SHOWN, _HIDDEN = b"\x01", b"\x02", b"\x03", b"\x04"

_PARTITION: Final = struct.Struct(">I")
_VERSION: Final = struct.Struct(">qIq")
_SHOWN_VALUE: Final = struct.Struct(">qIqB")
_NEWEST_FIRST: Final = struct.Struct(">QIQ")
_TIME_SIGN: Final = 1 << 63
_U64: Final = (1 << 64) - 1
_U32: Final = (1 << 32) - 1


class Version(NamedTuple):
    """Order the records of a key: the newest timestamp wins, then the source partition, then the offset."""

    timestamp_ms: int
    partition: int
    offset: int


class Place(NamedTuple):
    version: Version
    disk_key: bytes


class Shown(NamedTuple):
    version: Version
    others: bool
    """Whether the key may have hidden rows."""


def place_key(partition: int, record_key: bytes) -> bytes:
    """Return the entry of a record key. Equal keys in two source partitions are two: only within one is their order known."""
    return _PLACE + _PARTITION.pack(partition) + record_key


def keyless_place_key(disk_key: bytes) -> bytes:
    """Return the entry of all records without a key that have this key in the view: they never move, so the newest is enough."""
    return _KEYLESS + disk_key


def shown_key(disk_key: bytes) -> bytes:
    return _SHOWN + disk_key


def hidden_prefix(disk_key: bytes) -> bytes:
    return _HIDDEN + _PARTITION.pack(len(disk_key)) + disk_key


def prefix_end(prefix: bytes) -> bytes:
    """Return a key after all hidden rows with this prefix: what follows it in a key is shorter."""
    return prefix + b"\xff" * (_NEWEST_FIRST.size + 1)


def hidden_key(disk_key: bytes, version: Version) -> bytes:
    timestamp_ms, partition, offset = version
    newest_first = _NEWEST_FIRST.pack(
        _U64 - (timestamp_ms + _TIME_SIGN), _U32 - partition, _U64 - (offset + _TIME_SIGN)
    )
    return hidden_prefix(disk_key) + newest_first


def hidden_version(entry: bytes) -> Version:
    time, partition, offset = _NEWEST_FIRST.unpack(entry[-_NEWEST_FIRST.size :])
    return Version(_U64 - time - _TIME_SIGN, _U32 - partition, _U64 - offset - _TIME_SIGN)


def encode_place(place: Place) -> bytes:
    return _VERSION.pack(*place.version) + place.disk_key


def decode_place(stored: bytes) -> Place:
    return Place(Version._make(_VERSION.unpack_from(stored)), stored[_VERSION.size :])


def encode_shown(shown: Shown) -> bytes:
    return _SHOWN_VALUE.pack(*shown.version, shown.others)


def decode_shown(stored: bytes) -> Shown:
    timestamp_ms, partition, offset, others = _SHOWN_VALUE.unpack(stored)
    return Shown(Version(timestamp_ms, partition, offset), bool(others))
