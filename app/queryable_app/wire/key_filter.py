"""Encode and decode a filter of all keys: a sequence of Bloom filters, each of the keys of a range.

Strategy: keys come in their order on disk. Each few thousand of them become a Bloom filter of their own, so a filter is written
and sent without knowing how many keys there are, in the memory of one segment. A reader finds the segment of a key by its first
key. docs/queries.md describes the form for programs in other languages.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, log, log2
from typing import Any, Final

MAGIC: Final = b"QTKF\x01"  # with the version
SEGMENT_KEYS: Final = 2048
RATE: Final = 0.01
RATE_MIN: Final = 1e-6
RATE_MAX: Final = 0.5

_LENGTH: Final = struct.Struct("<I")
_SEGMENT: Final = struct.Struct("<III")  # keys, hashes of each, bytes of the first key
_HASHES: Final = struct.Struct("<QQ")
_MASK: Final = 2**64 - 1


def encode_head(rate: float, about: Mapping[str, Any]) -> bytes:
    """Return the beginning of a filter: its rate, and what it is about, as JSON."""
    text = json.dumps({"rate": rate, **about}, separators=(",", ":")).encode()
    return MAGIC + _LENGTH.pack(len(text)) + text


def encode_segment(disk_keys: Sequence[bytes], rate: float) -> bytes:
    """Return the filter of some keys, which are in order. That of no keys is the end of a filter."""
    if not disk_keys:
        return _SEGMENT.pack(0, 0, 0)
    hashes, size = _hashes_of_rate(rate), _bits_bytes(len(disk_keys), rate)
    bits, count = bytearray(size), size * 8
    for key in disk_keys:
        for at in _positions(key, hashes, count):
            bits[at >> 3] |= 1 << (at & 7)
    return _SEGMENT.pack(len(disk_keys), hashes, len(disk_keys[0])) + disk_keys[0] + bits


def _positions(disk_key: bytes, hashes: int, bits: int) -> list[int]:
    """Return the bits of a key."""
    first, second = _HASHES.unpack(blake2b(disk_key, digest_size=16).digest())
    step = second | 1  # odd, so it is no multiple of the number of bits
    return [(first + n * step & _MASK) % bits for n in range(hashes)]


def _hashes_of_rate(rate: float) -> int:
    return max(1, round(-log2(rate)))


def _bits_bytes(keys: int, rate: float) -> int:
    return ceil(keys * -log2(rate) / log(2) / 8)


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Tell which keys surely do not exist as of the positions of the filter."""

    rate: float
    positions: Mapping[int, int]
    """Partition → next offset: every key that was there is in the filter."""
    keys: int
    _starts: tuple[bytes, ...]
    _segments: tuple[tuple[int, memoryview], ...]
    prefixes: tuple[bytes, ...] = (b"",)
    """What the filter knows of: the keys with one of these prefixes."""

    def may_contain(self, disk_key: bytes) -> bool:
        """Return False for a key that is surely absent, and rarely True for an absent one that has a prefix of the filter."""
        if not disk_key.startswith(self.prefixes):
            return True
        found = bisect_right(self._starts, disk_key) - 1
        if found < 0:
            return False
        hashes, bits = self._segments[found]
        return all(bits[at >> 3] >> (at & 7) & 1 for at in _positions(disk_key, hashes, len(bits) * 8))


def decode_filter(raw: bytes) -> KeyFilter:
    """Raises ValueError for what is no whole filter."""
    try:
        head, at = _decode_head(raw)
        rate = float(head["rate"])
        positions = {int(partition): int(position) for partition, position in head["positions"].items()}
        prefixes = tuple([b64decode(prefix, validate=True) for prefix in head.get("prefixes", ("",))])
        segments = list(_decode_segments(raw, at, rate))
    except (
        json.JSONDecodeError,
        struct.error,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ValueError(f"no filter of keys: {error!r}") from None
    return KeyFilter(
        rate,
        positions,
        sum(keys for keys, _, _, _ in segments),
        tuple(start for _, _, start, _ in segments),
        tuple((hashes, bits) for _, hashes, _, bits in segments),
        prefixes,
    )


def _decode_head(raw: bytes) -> tuple[dict[str, Any], int]:
    if not raw.startswith(MAGIC):
        raise ValueError("no filter of keys, or one of another version")
    start = len(MAGIC) + _LENGTH.size
    end = start + _LENGTH.unpack_from(raw, len(MAGIC))[0]
    head = json.loads(raw[start:end])
    if not RATE_MIN <= head["rate"] <= RATE_MAX:
        raise ValueError("the rate of a filter of keys is out of its bounds")
    return head, end


def _decode_segments(raw: bytes, at: int, rate: float) -> Iterator[tuple[int, int, bytes, memoryview]]:
    view = memoryview(raw)
    while True:
        keys, hashes, key_bytes = _SEGMENT.unpack_from(raw, at)
        at += _SEGMENT.size
        if not keys:
            break
        middle = at + key_bytes
        end = middle + _bits_bytes(keys, rate)
        if end > len(raw) or not 0 < hashes <= 64:
            raise ValueError("a filter of keys is truncated")
        yield keys, hashes, raw[at:middle], view[middle:end]
        at = end
    if at != len(raw):
        raise ValueError("there is more behind a filter of keys")
