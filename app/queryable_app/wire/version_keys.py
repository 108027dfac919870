"""Define how a view with history keeps the versions of its keys on disk, and what it notes beside them.

Strategy: every record of a key is a version. Versions lie in a column family of their own, `history`, by key, and the newest
first; the row itself stays in `default`. A version is `clock | flags | row`. The clock is the greatest record timestamp of the
partition up to the version's offset, so it never falls from one offset to the next. It says from which time on the version
counts. Partition and offset make the key of a version unique among all partitions.

Marks lie in the same family: the clock at some positions, by which the sweeper finds how far the retention reaches.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from queryable_app.wire.disk_format import ROW_HEADER, TOMBSTONE

MARKS_FIRST: Final = b"\0"
FIRST: Final = b"\1"
"""No version comes before it, and no mark after it."""
END: Final = b"\2"

TRUNCATED: Final = 1
"""Flag of a version: older ones of its key have been removed, although a read could name their time."""
NOT_RETAINED: Final = 2
"""Flag of a row in an answer: what the key had then is removed."""
NO_CLOCK_MS: Final = -(1 << 63)
"""The clock before the first record."""
OFFSET_END: Final = (1 << 63) - 1

_GROUP_END: Final = b"\0\0"
_GROUP_AFTER: Final = b"\0\1"
_PLACE: Final = struct.Struct(">QI")  # offset, inverted; partition
_TAIL_SIZE: Final = len(_GROUP_END) + _PLACE.size
_OFFSET: Final = struct.Struct(">Q")
_TIME: Final = struct.Struct(">q")
_VERSION: Final = struct.Struct(">qB")
_INVERT: Final = (1 << 64) - 1
_STATE: Final = struct.Struct(">7q")


def group_of(disk_key: bytes) -> bytes:
    """Return what the keys of all versions of a key begin with. No group is the beginning of another one."""
    return FIRST + disk_key.replace(b"\0", b"\0\xff") + _GROUP_END


def after_group(group: bytes) -> bytes:
    """Return a key that all versions of a group come before, and all of later groups after."""
    return group[: -len(_GROUP_END)] + _GROUP_AFTER


def group_in(version_key: bytes) -> bytes:
    return version_key[: -_PLACE.size]


def key_in(version_key: bytes) -> bytes:
    """Return the on-disk key of the row."""
    return version_key[len(FIRST) : -_TAIL_SIZE].replace(b"\0\xff", b"\0")


def version_key(group: bytes, offset: int, partition: int) -> bytes:
    return group + _PLACE.pack(_INVERT - offset, partition)


def newest_before(group: bytes, position: int) -> bytes:
    """Return a key that the versions at this offset and later ones come before, and all others of the group after."""
    return group + _OFFSET.pack(_INVERT - position + 1) if position > 0 else after_group(group)


def offset_in(version_key: bytes) -> int:
    inverted: int = _PLACE.unpack_from(version_key, len(version_key) - _PLACE.size)[0]
    return _INVERT - inverted


def partition_in(version_key: bytes) -> int:
    partition: int = _PLACE.unpack_from(version_key, len(version_key) - _PLACE.size)[1]
    return partition


def encode_version(clock_ms: int, stored: bytes, truncated: bool = False) -> bytes:
    return _VERSION.pack(clock_ms, TRUNCATED if truncated else 0) + stored


def clock_of(version: bytes) -> int:
    clock_ms: int = _TIME.unpack_from(version)[0]
    return clock_ms


def is_truncated(version: bytes) -> bool:
    return bool(version[_TIME.size] & TRUNCATED)


def is_tombstone(version: bytes) -> bool:
    return bool(version[_VERSION.size] & TOMBSTONE)


def row_of(version: bytes) -> bytes:
    """Return the row as `default` has it."""
    return version[_VERSION.size :]


def not_retained_row(offset: int) -> bytes:
    """Return what stands in an answer for a row that is removed. It is newer than every row, so that no other hides it."""
    return ROW_HEADER.pack(NOT_RETAINED | TOMBSTONE, offset, OFFSET_END, 0)


def is_not_retained(stored: bytes) -> bool:
    return bool(stored) and bool(stored[0] & NOT_RETAINED)


def mark_key(position: int) -> bytes:
    return MARKS_FIRST + _OFFSET.pack(position)


def encode_mark(clock_ms: int) -> bytes:
    return _TIME.pack(clock_ms)


def decode_mark(key: bytes, mark: bytes) -> tuple[int, int]:
    """Return a position, and the clock when all records below it were applied."""
    position: int = _OFFSET.unpack_from(key, len(MARKS_FIRST))[0]
    return position, clock_of(mark)


class HistoryState(NamedTuple):
    """Say what a replica knows of the past. It changes only in the batch of what it describes."""

    clock_ms: int = NO_CLOCK_MS
    """The greatest timestamp of the records so far."""
    floor_position: int = 0
    """The versions that counted at this position, and all later ones, are there."""
    floor_ms: int = NO_CLOCK_MS
    """The same as a time."""
    gap_position: int = -1
    """If compaction has removed the records that did not arrive, the same is true from this position on only. -1: none is
    missing."""
    gap_ms: int = NO_CLOCK_MS
    marked_ms: int = NO_CLOCK_MS
    """The clock at the last mark."""
    harmless_gaps: int = 0
    """1: records did not arrive while the topic was not compacted, so the gaps were those of transactions."""

    def encode(self) -> bytes:
        return _STATE.pack(*self)

    @staticmethod
    def decode(raw: bytes) -> HistoryState:
        return HistoryState._make(_STATE.unpack(raw.ljust(_STATE.size, b"\0")))  # older states end earlier

    @property
    def floor(self) -> tuple[int, int]:
        """Return the first position and the first time that can be answered."""
        if self.gap_position < 0:
            return self.floor_position, self.floor_ms
        return max(self.floor_position, self.gap_position), max(self.floor_ms, self.gap_ms)
