"""Write rows of a view with windows as JSON: the group's key, the window, and what it holds.

Strategy: whether a window is final or has expired follows from the watermark of its partition, not from the machine's clock. The
replica that answers stated its event time before its rows were read. So a window may be said not to be final a moment too long,
and what is said to be final never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

from queryable_app.aggregates.rendering import Render, state_renderer
from queryable_app.aggregates.session_states import state_of_session
from queryable_app.aggregates.window_keys import split_window_key
from queryable_app.aggregates.windows import Windows
from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads.replica_progress import ReplicaProgress
from queryable_app.serve.reads.scans import Line, ToLines, ToText, key_json
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE
from queryable_app.wire.projection import Projection
from queryable_app.wire.serde import KeyCodec
from queryable_app.wire.times import to_iso

_ITEM: Final = (
    b'{"key":%b,"window":{"start":"%b","end":"%b","final":%b},"value":%b,'
    b'"partition":%d,"offset":%d,"timestamp":%d}'
)
_BOOLEANS: Final = (b"false", b"true")
_TIMES_MAX: Final = 8192

Marks = Mapping[int, int]
"""Partition → watermark."""


class WindowRows:
    """Write the rows of one view."""

    def __init__(self, codec: KeyCodec, spec: AggregateSpec, windows: Windows) -> None:
        self.windows = windows
        self._codec = codec
        self.spec = spec
        self._render = window_renderer(spec, windows)

    def lines(
        self, progress: Sequence[ReplicaProgress], scattered: bool, fields: Projection | None = None
    ) -> ToLines:
        """Return a function from rows of these replicas to JSON objects, without expired windows.

        `scattered` says that a row may have records of several partitions; it is final if it is in each of them. Of each value
        it has the `fields`, or all of them.
        """
        marks = self._watermarks(progress, scattered)
        return lambda batch: list(self._lines(batch, marks, fields))

    def text(
        self, progress: Sequence[ReplicaProgress], scattered: bool, fields: Projection | None = None
    ) -> ToText:
        """Return a function from rows of these replicas to lines of JSON, without expired windows, and the number of lines."""
        marks = self._watermarks(progress, scattered)

        def text(batch: list[RawRow], limit: int) -> tuple[bytes, int]:
            found = [line + b"\n" for _, line in islice(self._lines(batch, marks, fields), limit)]
            return b"".join(found), len(found)

        return text

    def _watermarks(self, progress: Sequence[ReplicaProgress], scattered: bool) -> Marks:
        marks = {replica.partition: self.windows.watermark(replica.max_event_ms) for replica in progress}
        return dict.fromkeys(marks, min(marks.values())) if scattered and marks else marks

    def _lines(self, batch: Sequence[RawRow], marks: Marks, fields: Projection | None) -> Iterator[Line]:
        windows, codec = self.windows, self._codec
        shown_group, shown_key = None, b""
        for disk_key, partition, stored in batch:
            flags, offset, timestamp_ms, expiry = ROW_HEADER.unpack_from(stored)
            mark = marks[partition]
            if flags & TOMBSTONE or windows.expired(expiry, mark):
                continue
            group, start_ms = split_window_key(disk_key)
            if group != shown_group:
                shown_group, shown_key = group, key_json(codec, codec.to_record(group))
            window = windows.window(start_ms, expiry, mark)
            value = self._render(stored[ROW_HEADER_SIZE:])
            yield (
                disk_key,
                _ITEM
                % (
                    shown_key,
                    _iso(start_ms),
                    _iso(window.end_ms),
                    _BOOLEANS[window.final],
                    value if fields is None else fields.of(value),
                    partition,
                    offset,
                    timestamp_ms,
                ),
            )


def window_renderer(spec: AggregateSpec, windows: Windows) -> Render:
    """Return what makes JSON of what a window has stored, without its row header."""
    render = state_renderer(spec)
    return (lambda stored: render(state_of_session(spec, stored))) if windows.gap_ms else render


@lru_cache(_TIMES_MAX)
def _iso(time_ms: int) -> bytes:
    return to_iso(time_ms).encode()
