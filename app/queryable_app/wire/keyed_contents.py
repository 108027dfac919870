"""Encode and decode what the envelopes of a latest-value view under another key carry.

Strategy: behind the envelope's header stands `alone_from` (policy/source_positions.py), in markers too. Then a row has the key of
its record and its value. A record whose earlier row may be in another partition also sends *left* there: the newest record
of this key has no row here. A record without a key is no newer record of any, so it replaces nothing.

`ingest/writer/KeyedContent.java` writes this layout, big-endian.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from queryable_app.wire.envelopes import EnvelopeError

LEFT: Final = 0
ROW: Final = 1
KEYLESS: Final = 2

_ALONE_FROM: Final = struct.Struct(">q")
ALONE_FROM_SIZE: Final = _ALONE_FROM.size
_HEADER: Final = struct.Struct(">qBI")  # alone_from, kind, length of the record key
_HEADER_SIZE: Final = _HEADER.size


class KeyedContent(NamedTuple):
    kind: int
    """LEFT, ROW or KEYLESS."""
    record_key: bytes
    value: bytes


def decode_alone_from(stored: bytes, start: int) -> int:
    """Return the source offset since which the envelope relies on its run alone."""
    try:
        (alone_from,) = _ALONE_FROM.unpack_from(stored, start)
    except struct.error:
        raise EnvelopeError("an envelope of another kind of view") from None
    return int(alone_from)


def decode_keyed(stored: bytes, start: int) -> KeyedContent:
    """Decode the content of an envelope with a row."""
    try:
        _, kind, length = _HEADER.unpack_from(stored, start)
    except struct.error:
        raise EnvelopeError(f"{len(stored) - start} bytes are no row of a latest-value view") from None
    end = start + _HEADER_SIZE + length
    if kind > KEYLESS or end > len(stored):
        raise EnvelopeError(f"a row of kind {kind} whose record key ends at {end} of {len(stored)} bytes")
    return KeyedContent(kind, stored[start + _HEADER_SIZE : end], stored[end:])


def encode_keyed(alone_from: int, content: KeyedContent | None = None) -> bytes:
    """Encode the content of a row, or of a marker if it is None."""
    if content is None:
        return _ALONE_FROM.pack(alone_from)
    kind, record_key, value = content
    return _HEADER.pack(alone_from, kind, len(record_key)) + record_key + value
