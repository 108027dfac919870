"""Write changes as JSON, one object a line: as lines of NDJSON, or as events of a stream (Server-Sent Events).

A change of a window says which one, and not whether it is final: that follows from the watermark, which other records move.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from time import time_ns
from typing import Final

from queryable_app.aggregates.rendering import Render
from queryable_app.aggregates.window_keys import split_window_key
from queryable_app.aggregates.windows import Windows
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads.change_feed import Compacted
from queryable_app.serve.reads.scans import key_json
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE, decode_row
from queryable_app.wire.serde import KeyCodec
from queryable_app.wire.times import to_iso

HEARTBEAT: Final = b": no changes\n\n"
_CHANGE: Final = b'{"key":%b,"value":%b,"partition":%d,"offset":%d,"timestamp":%d}'
_DELETED: Final = b'{"key":%b,"value":null,"deleted":true,"partition":%d,"offset":%d,"timestamp":%d}'
_WINDOW: Final = (
    b'{"key":%b,"window":{"start":"%b","end":"%b"},"value":%b,"partition":%d,"offset":%d,"timestamp":%d}'
)
_DELETED_WINDOW: Final = (
    b'{"key":%b,"window":{"start":"%b"},"value":null,"deleted":true,'
    b'"partition":%d,"offset":%d,"timestamp":%d}'
)

ToObjects = Callable[[Iterable[RawRow]], list[bytes]]


def is_deleted(row: RawRow) -> bool:
    """Return whether a change is a deletion: of the key, or of a row that the view's filter drops."""
    return bool(row[2][0] & TOMBSTONE)


def to_objects(codec: KeyCodec, render: Render | None) -> ToObjects:
    """Return a function from rows to JSON objects, each without a line break."""

    def objects(rows: Iterable[RawRow]) -> list[bytes]:
        now_ms = time_ns() // 1_000_000
        texts = []
        for disk_key, partition, stored in rows:
            row = decode_row(stored)
            key = key_json(codec, codec.to_record(disk_key))
            if row.value is None or not row.live(now_ms):
                texts.append(_DELETED % (key, partition, row.offset, row.timestamp_ms))
                continue
            value = _on_one_line(row.value if render is None else render(row.value))
            texts.append(_CHANGE % (key, value, partition, row.offset, row.timestamp_ms))
        return texts

    return objects


def windows_to_objects(codec: KeyCodec, render: Render, windows: Windows) -> ToObjects:
    """Return the same for the rows of a view with windows. `render` makes JSON of what a window has stored."""

    def objects(rows: Iterable[RawRow]) -> list[bytes]:
        texts = []
        for disk_key, partition, stored in rows:
            flags, offset, timestamp_ms, expiry = ROW_HEADER.unpack_from(stored)
            group, start_ms = split_window_key(disk_key)
            key, start = key_json(codec, codec.to_record(group)), to_iso(start_ms).encode()
            where = partition, offset, timestamp_ms
            if flags & TOMBSTONE:
                texts.append(_DELETED_WINDOW % (key, start, *where))
            else:
                end, value = (
                    to_iso(windows.end(expiry)).encode(),
                    _on_one_line(render(stored[ROW_HEADER_SIZE:])),
                )
                texts.append(_WINDOW % (key, start, end, value, *where))
        return texts

    return objects


def _on_one_line(value: bytes) -> bytes:
    if b"\n" in value or b"\r" in value:  # JSON has them between tokens alone
        return value.replace(b"\n", b" ").replace(b"\r", b" ")
    return value


def compacted_object(compacted: Compacted) -> bytes:
    about = {"partition": compacted.partition, "from": compacted.start, "until": compacted.stop}
    return json.dumps({"compacted": about}, separators=(",", ":")).encode()


def change_events(objects: Sequence[bytes]) -> bytes:
    """Return changes as events."""
    return b"".join([b"data: %b\n\n" % each for each in objects])


def compacted_event(compacted: Compacted) -> bytes:
    return b"event: compacted\ndata: %b\n\n" % compacted_object(compacted)


def id_event(identifier: str) -> bytes:
    """Return what makes a client remember an id. It is no event of its own, since it has no data."""
    return b"id: %b\n\n" % identifier.encode()
