"""Encode a key, the time of an entry, and where its record is as one on-disk key. Keys sort by key, then time, then offset.

Strategy: the on-disk key of the record key is escaped as in the key of a window. Its record's offset makes an entry unique, so a
record that is applied again replaces its own entry. The partition distinguishes the entries of a key that mixed producers
write to several partitions.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from queryable_app.aggregates.window_keys import first_key, key_after

_TIME: Final = struct.Struct(">Q")
_TAIL: Final = struct.Struct(">QQI")
_SIGN: Final = 1 << 63
_TIMELESS: Final = -(_TAIL.size + len(first_key(b"")))


class EntryRange(NamedTuple):
    """The on-disk keys `[start, stop)` of some entries of a key."""

    start: bytes
    stop: bytes


def entry_key(disk_key: bytes, shifted_time: int, offset: int, partition: int) -> bytes:
    """Return the on-disk key of an entry. `disk_key` is that of the record key, and the time is `shifted`."""
    return first_key(disk_key) + _TAIL.pack(shifted_time, offset, partition)


def shifted(time_ms: int) -> int:
    """Return a time as keys and row headers have it: without a sign, so that its bytes sort."""
    return time_ms + _SIGN


def time_of(shifted_time: int) -> int:
    """Return the time of a row header or a key."""
    return shifted_time - _SIGN


def entries_of(disk_key: bytes) -> EntryRange:
    """Return the range of all entries of a key. Its end is before the entries of a later key, so a row may stand there."""
    return EntryRange(first_key(disk_key), key_after(disk_key))


def entries_between(disk_key: bytes, first_ms: int | None, after_ms: int | None) -> EntryRange:
    """Return the range of the entries of a key with times in `[first_ms, after_ms)`; None: without that bound."""
    first = first_key(disk_key)
    return EntryRange(
        first if first_ms is None else first + _TIME.pack(shifted(first_ms)),
        key_after(disk_key) if after_ms is None else first + _TIME.pack(shifted(after_ms)),
    )


def disk_key_of(key: bytes) -> bytes:
    """Return the on-disk key of the record key of an entry."""
    return key[:_TIMELESS].replace(b"\0\xff", b"\0")
