"""Encode a group and the start of a window as one on-disk key. Keys sort by group, then by start.

Strategy: a zero byte of the group becomes `00 FF`, and `00 00` ends the group. So the end of a group sorts before every
continuation, and no key of one group is a prefix of another group's.
"""

from __future__ import annotations

import struct
from typing import Final

START_MIN_MS: Final = -(1 << 63)
START_MAX_MS: Final = (1 << 63) - 1

_START: Final = struct.Struct(">Q")
_SIGN: Final = 1 << 63
_END: Final = b"\0\0"
_AFTER: Final = b"\0\1"
_TAIL_SIZE: Final = len(_END) + _START.size


def window_key(group: bytes, start_ms: int) -> bytes:
    """Return the on-disk key of a window. `group` is the on-disk key of the record key."""
    return group.replace(b"\0", b"\0\xff") + _END + _START.pack(start_ms + _SIGN)


def group_prefix(prefix: bytes) -> bytes:
    """Return the prefix of the on-disk keys of all windows whose groups have this prefix, and of no others."""
    return prefix.replace(b"\0", b"\0\xff")


def first_key(group: bytes) -> bytes:
    """Return a key that no window of the group comes before."""
    return group.replace(b"\0", b"\0\xff") + _END


def key_after(group: bytes) -> bytes:
    """Return a key that every window of the group comes before, and every window of a later group after."""
    return group.replace(b"\0", b"\0\xff") + _AFTER


def split_window_key(key: bytes) -> tuple[bytes, int]:
    """Return the group and the start of a window."""
    return key[:-_TAIL_SIZE].replace(b"\0\xff", b"\0"), window_start(key)


def window_start(key: bytes) -> int:
    """Return the start of a window."""
    start: int = _START.unpack_from(key, len(key) - _START.size)[0]
    return start - _SIGN
