"""Define the change log on disk: what a replica keeps of the changes of its rows, in the order of their offsets.

Strategy: a change is the row as it was stored, a tombstone too, under the offset of the record that caused it. A record may cause
several, such as one for each window that it counts in; they are numbered, and read together. The log lies in
the column family `meta`, in the WriteBatch of the rows. It is complete from its *start* on: every change with that offset or a
greater one is there. Old changes leave it at the front, and the start moves.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

FIRST: Final = b"\x06"
END: Final = b"\x07"
"""The range of all entries."""
START_KEY: Final = b"changes-from"
"""The entry with the log's start. Absent: 0."""

_OFFSET: Final = struct.Struct(">Q")
_NUMBER: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">QI")  # time, length of the key


class Mark(NamedTuple):
    """Say where a reader of a partition continues. Any replica of the partition understands it."""

    position: int
    """The offset of the next change."""
    until: int = -1
    """While the reader catches up from rows: where it then continues. Else -1."""
    after: bytes | None = None
    """While it catches up from rows: the on-disk key of the last one. None: it begins."""

    @property
    def catching_up(self) -> bool:
        return self.until >= 0


def entry_key(offset: int, number: int = 0) -> bytes:
    """Return the key of an entry. `number` tells the changes of one offset apart."""
    key = FIRST + _OFFSET.pack(offset)
    return key + _NUMBER.pack(number) if number else key


def offset_of(key: bytes) -> int:
    offset: int = _OFFSET.unpack_from(key, 1)[0]
    return offset


def encode_entry(time_ms: int, disk_key: bytes, stored: bytes) -> bytes:
    """Return the entry of a change that happened at this time."""
    return _HEAD.pack(max(0, time_ms), len(disk_key)) + disk_key + stored


def decode_entry(entry: bytes) -> tuple[bytes, bytes]:
    """Return the on-disk key and the stored row."""
    middle = _HEAD.size + _HEAD.unpack_from(entry)[1]
    return entry[_HEAD.size : middle], entry[middle:]


def time_of(entry: bytes) -> int:
    time_ms: int = _HEAD.unpack_from(entry)[0]
    return time_ms


def encode_start(offset: int) -> bytes:
    return _OFFSET.pack(offset)


def decode_start(entry: bytes | None) -> int:
    return 0 if entry is None else _OFFSET.unpack(entry)[0]
