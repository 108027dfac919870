"""Encode and decode the frames of the row socket, over which the JVM writer sends slices to serve.

Strategy: a frame is `u32 length | payload`, and a payload is `u8 type | body`, all little-endian (docs/protocols.md has the
layout). `puts` decodes the plain slice into a list for a WriteBatch. `rows` decodes any slice completely, for replays and for
rows that are not written. Each returns a whole slice or raises: a partial slice is never applied.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

PROTOCOL: Final = 1
HELLO, SLICE, END = 0, 1, 2
ACK: Final = b"\x01"

LENGTH: Final = struct.Struct("<I")
# The writer sends a slice at 256 KiB, but one row may be as large as a record in Kafka.
PAYLOAD_BYTES_MAX: Final = 256 * 1024 * 1024

# A row's kind. Every record of a slice has a row, so that any part of a slice can be counted.
ROW, BAD, DROPPED, NULL_KEY = 0, 1, 2, 3
_KINDS: Final = range(4)

_HELLO: Final = struct.Struct("<BIQiq")
_SLICE: Final = struct.Struct("<BiqqqIIIIIII")
_END: Final = struct.Struct("<Biq")
_ROW: Final = struct.Struct("<IIBq")
_ROW_SIZE: Final = _ROW.size
_ROW_LENGTHS: Final = struct.Struct("<II")
_REASON_LENGTH: Final = struct.Struct("<I")


class FrameError(Exception):
    """Report a malformed frame; the connection must be closed."""


class Hello(NamedTuple):
    generation: int
    task: int
    epoch: int


class SliceHeader(NamedTuple):
    partition: int
    first_offset: int
    last_offset: int
    last_timestamp_ms: int
    rows: int
    null_keys: int
    bad: int
    dropped: int
    mismatches_murmur2: int
    mismatches_crc32: int
    mismatches_fnv1a: int


class End(NamedTuple):
    task: int
    epoch: int


class SliceRow(NamedTuple):
    disk_key: bytes
    stored: bytes
    kind: int
    offset: int


class BadRecord(NamedTuple):
    reason: str
    value: bytes


def payload_length(prefix: bytes) -> int:
    (length,) = LENGTH.unpack(prefix)
    if not 0 < length <= PAYLOAD_BYTES_MAX:
        raise FrameError(f"a frame of {length} bytes; allowed are 1 to {PAYLOAD_BYTES_MAX}")
    return int(length)


def decode_hello(payload: bytes) -> Hello:
    _, protocol, generation, task, epoch = _unpack(_HELLO, payload, HELLO)
    if protocol != PROTOCOL:
        raise FrameError(
            f"the writer speaks protocol {protocol}, this node {PROTOCOL}: they are not from one release"
        )
    return Hello(generation, task, epoch)


def decode_end(payload: bytes) -> End:
    _, task, epoch = _unpack(_END, payload, END)
    return End(task, epoch)


def decode_slice_header(payload: bytes) -> SliceHeader:
    if len(payload) < _SLICE.size or payload[0] != SLICE:
        raise _no_frame(payload, SLICE)
    header = SliceHeader._make(_SLICE.unpack_from(payload)[1:])
    if not 0 <= header.first_offset <= header.last_offset or header.partition < 0:
        raise FrameError(
            f"a slice of partition {header.partition}, {header.first_offset} to {header.last_offset}"
        )
    return header


def joined(headers: Sequence[SliceHeader]) -> SliceHeader:
    """Return the header of one slice with the rows of several that follow one another in a partition."""
    first, last = headers[0], headers[-1]
    counts = [sum(each) for each in zip(*[header[4:] for header in headers], strict=True)]
    return SliceHeader(first.partition, first.first_offset, last.last_offset, last.last_timestamp_ms, *counts)


def puts(payload: bytes, header: SliceHeader) -> list[tuple[bytes, bytes]]:
    """Return disk keys and stored bytes of a slice that is no replay and writes every row: the hot path."""
    pairs: list[tuple[bytes, bytes]] = []
    append, end = pairs.append, _SLICE.size
    # Its type lets compiled code add plain integers.
    unpack: Callable[[bytes, int], tuple[int, int]] = _ROW_LENGTHS.unpack_from
    try:
        for _ in range(header.rows):
            key_length, stored_length = unpack(payload, end)
            key_at = end + _ROW_SIZE
            stored_at = key_at + key_length
            end = stored_at + stored_length
            append((payload[key_at:stored_at], payload[stored_at:end]))
    except struct.error:
        raise FrameError("a slice ends within a row") from None
    _require_whole(payload, end)
    return pairs


def rows(payload: bytes, header: SliceHeader) -> list[SliceRow]:
    """Return every row of a slice, also those that are not written."""
    found, end = [], _SLICE.size
    try:
        for _ in range(header.rows):
            key_length, stored_length, kind, offset = _ROW.unpack_from(payload, end)
            if kind not in _KINDS:
                raise FrameError(f"a row of kind {kind}")
            key_at = end + _ROW_SIZE
            stored_at = key_at + key_length
            end = stored_at + stored_length
            found.append(SliceRow(payload[key_at:stored_at], payload[stored_at:end], kind, offset))
    except struct.error:
        raise FrameError("a slice ends within a row") from None
    _require_whole(payload, end)
    return found


def decode_bad(stored: bytes) -> BadRecord:
    """Decode the content of a row of kind BAD."""
    try:
        (length,) = _REASON_LENGTH.unpack_from(stored)
    except struct.error:
        raise FrameError("a bad record without its reason") from None
    reason_end = _REASON_LENGTH.size + length
    if reason_end > len(stored):
        raise FrameError("a bad record ends within its reason")
    return BadRecord(stored[_REASON_LENGTH.size : reason_end].decode(errors="replace"), stored[reason_end:])


def encode_hello(generation: int, task: int, epoch: int, protocol: int = PROTOCOL) -> bytes:
    return _frame(_HELLO.pack(HELLO, protocol, generation, task, epoch))


def encode_slice(header: SliceHeader, slice_rows: Iterable[SliceRow]) -> bytes:
    """Encode a slice. A test may pass a header with a wrong number of rows."""
    parts = [_SLICE.pack(SLICE, *header)]
    for row in slice_rows:
        parts += (
            _ROW.pack(len(row.disk_key), len(row.stored), row.kind, row.offset),
            row.disk_key,
            row.stored,
        )
    return _frame(b"".join(parts))


def encode_end(task: int, epoch: int) -> bytes:
    return _frame(_END.pack(END, task, epoch))


def encode_bad(bad: BadRecord) -> bytes:
    reason = bad.reason.encode()
    return _REASON_LENGTH.pack(len(reason)) + reason + bad.value


def _frame(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


def _unpack(layout: struct.Struct, payload: bytes, kind: int) -> tuple[int, ...]:
    if payload[:1] != bytes((kind,)) or len(payload) != layout.size:
        raise _no_frame(payload, kind)
    return layout.unpack(payload)


def _no_frame(payload: bytes, kind: int) -> FrameError:
    return FrameError(f"{len(payload)} bytes are no frame of type {kind}")


def _require_whole(payload: bytes, end: int) -> None:
    if end != len(payload):
        raise FrameError(f"a slice of {len(payload)} bytes whose rows end at {end}")
