"""Take the rows of an internal topic out of their envelopes, each source row once.

Strategy: the source positions of the store decide which envelopes count (policy/source_positions.py). They are written with the
rows that they cover, so a slice is applied wholly or not at all.

In a view with windows a row is taken or late by the clock of its source partition. The clock of the replica is the least of
them: no record of any source partition then changes a window that is final, and none is added to one that has expired.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from queryable_app.aggregates.clock import NO_SOURCE_CLOCK, SOURCE_CLOCK_SIZE, Clock, SourceClock
from queryable_app.policy.source_positions import SourcePositions
from queryable_app.serve.feed.slices import Changes, View
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE
from queryable_app.wire.envelopes import HEADER_SIZE, EnvelopeError, decode_envelope


class RekeyedRows:
    """Pass the rows that count on to `view`. Raises EnvelopeError for a record that the rekey job did not write."""

    def __init__(self, view: View, source_partitions: int, windowed: bool = False) -> None:
        self._view = view
        self._source_partitions = source_partitions
        self._windowed = windowed

    def changes(
        self, store: Store, rows: Sequence[tuple[bytes, bytes]], _source_times: Sequence[int] | None = None
    ) -> Changes:
        sources = (store.sources or SourcePositions.none(self._source_partitions)).copy()
        take, pack, start = sources.take, ROW_HEADER.pack, ROW_HEADER_SIZE + HEADER_SIZE
        clock, windowed, positions = NO_SOURCE_CLOCK, self._windowed, sources.by_partition
        content = start + SOURCE_CLOCK_SIZE if windowed else start
        new: list[tuple[bytes, bytes]] = []
        times: list[int] = []
        for key, stored in rows:
            envelope = decode_envelope(stored, ROW_HEADER_SIZE)
            if windowed:
                clock = _clock(stored, start)
            if not envelope.sequence:
                sources.begin(envelope, stored[content:], clock)
            elif take(envelope, clock):
                offset: int = ROW_HEADER.unpack_from(stored)[1]
                new.append((key, pack(0, offset, envelope.timestamp_ms, 0) + stored[content:]))
                times.append(positions[envelope.partition].clock.max_event_ms)
        changes = self._view.changes(store, new, times if windowed else None)
        if windowed:
            late = (changes.clock or store.clock).late
            changes = changes._replace(clock=Clock(min(sources.event_times_ms), late=late))
        return changes._replace(sources=sources, skipped=len(rows) - len(new))


def _clock(stored: bytes, start: int) -> SourceClock:
    try:
        return SourceClock.decode(stored, start)
    except struct.error:
        raise EnvelopeError(f"an envelope of {len(stored)} bytes without a clock") from None
