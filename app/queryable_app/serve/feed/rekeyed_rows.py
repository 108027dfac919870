"""Take the rows of an internal topic out of their envelopes, each source row once.

Strategy: the source positions of the store decide which envelopes count (policy/source_positions.py). They are written with the
rows that they cover, so a slice is applied wholly or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from queryable_app.policy.source_positions import SourcePositions
from queryable_app.serve.feed.slices import Changes, View
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE
from queryable_app.wire.envelopes import HEADER_SIZE, decode_envelope


class RekeyedRows:
    """Pass the rows that count on to `view`. Raises EnvelopeError for a record that the rekey job did not write."""

    def __init__(self, view: View, source_partitions: int) -> None:
        self._view = view
        self._source_partitions = source_partitions

    def changes(self, store: Store, rows: Sequence[tuple[bytes, bytes]]) -> Changes:
        sources = (store.sources or SourcePositions.none(self._source_partitions)).copy()
        take, pack, start = sources.take, ROW_HEADER.pack, ROW_HEADER_SIZE + HEADER_SIZE
        new = []
        for key, stored in rows:
            envelope = decode_envelope(stored, ROW_HEADER_SIZE)
            if take(envelope):
                offset: int = ROW_HEADER.unpack_from(stored)[1]
                new.append((key, pack(0, offset, envelope.timestamp_ms, 0) + stored[start:]))
        changes = self._view.changes(store, new)
        return changes._replace(sources=sources, skipped=len(rows) - len(new))
