"""Write changes as JSON, one object a line: as lines of NDJSON, or as events of a stream (Server-Sent Events)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from time import time_ns
from typing import Final

from queryable_app.aggregates.rendering import Render
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads.change_feed import Compacted
from queryable_app.serve.reads.scans import key_json
from queryable_app.wire.disk_format import TOMBSTONE, decode_row
from queryable_app.wire.serde import KeyCodec

HEARTBEAT: Final = b": no changes\n\n"
_CHANGE: Final = b'{"key":%b,"value":%b,"partition":%d,"offset":%d,"timestamp":%d}'
_DELETED: Final = b'{"key":%b,"value":null,"deleted":true,"partition":%d,"offset":%d,"timestamp":%d}'

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
            value = row.value if render is None else render(row.value)
            if b"\n" in value or b"\r" in value:  # JSON has them between tokens alone
                value = value.replace(b"\n", b" ").replace(b"\r", b" ")
            texts.append(_CHANGE % (key, value, partition, row.offset, row.timestamp_ms))
        return texts

    return objects


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
