"""Encode and decode the records of an internal topic, in which the rekey job writes each source record under its group's key.

Strategy: an envelope says where its record stands in the source topic, and where it stands in its run. A *run* is one start of
the job. It numbers all that it writes of a source partition to an internal partition, so a lost record shows. An envelope of 0
rows is a *marker*: it carries no row. The first envelope of a run is a marker with the offset from which the run covers
the source partition, and of the row that it needs of that record. Its content is Kafka's id of the source topic. A later marker
says that all rows of earlier source offsets are written.

In a view with windows every envelope also has the clock of its source partition (`SourceClock`), between the header and the
contribution: of a row the clock that its record has moved, of a marker the clock before the next record.

`ingest/writer/RekeyEnvelopes.java` writes this layout, big-endian.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

VERSION: Final = 1
MARKER_KEY: Final = bytes(8)
"""The record key of a marker. Its content has no meaning; its length is one that every key format takes."""

# version, source partition, source offset, row, rows, run, sequence in the run, source timestamp
_HEADER: Final = struct.Struct(">BIqHHQQq")
HEADER_SIZE: Final = _HEADER.size


class EnvelopeError(Exception):
    """Report a record that the rekey job did not write."""


class Envelope(NamedTuple):
    partition: int
    """The source partition."""
    offset: int
    """The source offset; of a marker, the offset of the next record."""
    row: int
    """The index of the row in its record."""
    rows: int
    """How many rows the source record gave; 0: a marker."""
    run: int
    sequence: int
    """Counts the envelopes of a run from a source partition to an internal partition, from 0."""
    timestamp_ms: int


def decode_envelope(value: bytes, start: int = 0) -> Envelope:
    """Decode the envelope at `start`. The contribution of its row follows at `start + HEADER_SIZE`."""
    try:
        version, *fields = _HEADER.unpack_from(value, start)
    except struct.error:
        raise EnvelopeError(f"{len(value) - start} bytes are no envelope") from None
    envelope = Envelope._make(fields)
    if version != VERSION:
        raise EnvelopeError(f"an envelope of version {version}; this node reads version {VERSION}")
    if envelope.offset < 0 or (envelope.rows and envelope.row >= envelope.rows):
        raise EnvelopeError(
            f"an envelope of row {envelope.row} of {envelope.rows} at offset {envelope.offset}"
        )
    return envelope


def encode_envelope(envelope: Envelope, contribution: bytes = b"") -> bytes:
    return _HEADER.pack(VERSION, *envelope) + contribution
