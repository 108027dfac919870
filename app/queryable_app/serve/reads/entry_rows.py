"""Write the entries of a key as JSON: the key, the time of the entry, and its value.

Strategy: whether an entry has expired follows from the event time that its partition's replica stated before its rows were read,
not from the machine's clock. So an entry may be answered a moment too long, and never disappears too early.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from queryable_app.aggregates.entry_keys import disk_key_of, time_of
from queryable_app.aggregates.entry_retention import EntryRetention
from queryable_app.aggregates.rendering import Render
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads.replica_progress import ReplicaProgress
from queryable_app.serve.reads.scans import Line, ToLines, ToText, key_json
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE
from queryable_app.wire.projection import Projection
from queryable_app.wire.serde import KeyCodec
from queryable_app.wire.times import to_iso

_ITEM: Final = b'{"key":%b,"time":"%b","value":%b,"partition":%d,"offset":%d,"timestamp":%d}'

Marks = Mapping[int, int]
"""Partition → the time of the oldest entry that is retained."""


class EntryRows:
    """Write the entries of one view."""

    def __init__(self, codec: KeyCodec, retention: EntryRetention, render: Render | None) -> None:
        """`render` makes JSON of a stored value that is none."""
        self._codec = codec
        self._retention = retention
        self._render = render

    def lines(
        self, progress: Sequence[ReplicaProgress], scattered: bool, fields: Projection | None = None
    ) -> ToLines:
        """Return a function from rows of these replicas to JSON objects, without expired entries. Of each value it has the
        `fields`, or all of them."""
        marks = self._marks(progress)
        return lambda batch: list(self._lines(batch, marks, fields))

    def text(
        self, progress: Sequence[ReplicaProgress], scattered: bool, fields: Projection | None = None
    ) -> ToText:
        """Return a function from rows of these replicas to lines of JSON, without expired entries, and the number of lines."""
        marks = self._marks(progress)

        def text(batch: list[RawRow], limit: int) -> tuple[bytes, int]:
            found = islice(self._lines(batch, marks, fields), limit)
            # JSON has line breaks between tokens alone.
            lines = [line.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n" for _, line in found]
            return b"".join(lines), len(lines)

        return text

    def _marks(self, progress: Sequence[ReplicaProgress]) -> Marks:
        return {each.partition: self._retention.watermark(each.max_event_ms) for each in progress}

    def _lines(self, batch: Sequence[RawRow], marks: Marks, fields: Projection | None) -> Iterator[Line]:
        codec, expired, render = self._codec, self._retention.expired, self._render
        last_key, shown_key = None, b""
        for entry, partition, stored in batch:
            flags, offset, timestamp_ms, time = ROW_HEADER.unpack_from(stored)
            if flags & TOMBSTONE or expired(time, marks[partition]):
                continue
            disk_key = disk_key_of(entry)
            if disk_key != last_key:
                last_key, shown_key = disk_key, key_json(codec, codec.to_record(disk_key))
            value = stored[ROW_HEADER_SIZE:]
            if render is not None:
                value = render(value)
            if fields is not None:
                value = fields.of(value)
            shown_time = to_iso(time_of(time)).encode()
            yield entry, _ITEM % (shown_key, shown_time, value, partition, offset, timestamp_ms)
