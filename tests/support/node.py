"""Provide a node over real stores in a directory of its own, and the frames of ingest's writer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import initial_placement
from queryable_app.serve.node import Node
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.disk_format import Row, encode_row
from queryable_app.wire.row_frames import (
    BAD,
    DROPPED,
    NULL_KEY,
    ROW,
    BadRecord,
    SliceHeader,
    SliceRow,
    encode_bad,
    encode_slice,
)

APPLICATION_ID = "tests.users.r1"
UNREACHABLE_KAFKA = "127.0.0.1:1"  # no Kafka answers there


def node_settings(
    directory: Path,
    partitions: int = 1,
    topic: str = "users",
    bootstrap: str = UNREACHABLE_KAFKA,
    settings: Mapping[str, Any] | None = None,
    **spec: Any,
) -> NodeSettings:
    """Return settings of a node that hosts every partition; keywords set fields of the resource's spec."""
    placement = directory / "first-placement.json"
    placement.write_text(
        initial_placement(APPLICATION_ID, partitions, ["http://127.0.0.1:8080"], 1).to_json()
    )
    spec_path = directory / "spec.json"
    spec_path.write_text(json.dumps({"kafka": {"bootstrapServers": bootstrap}, "topic": topic, **spec}))
    return NodeSettings(
        name="users-r1-0",
        ordinal=0,
        application_id=APPLICATION_ID,
        spec_path=str(spec_path),
        bootstrap_servers=bootstrap,
        advertised_url="http://127.0.0.1:8080",
        data_dir=str(directory / "data"),
        run_dir=str(directory / "run"),
        placement_path=str(placement),
        **dict(settings or {}),
    )


def open_node(directory: Path, partitions: int = 1, **options: Any) -> Node:
    return Node.open(node_settings(directory, partitions, **options))


def sweep(node: Node, replica: Replica) -> list[bytes]:
    """Sweep a replica's store from its first to its last row, and return the keys of the dead rows, which are deleted."""
    dead: list[bytes] = []
    next_key: bytes | None = b""
    while next_key is not None:  # a step ends by time
        found, next_key = node.sweeper.delete_dead_rows(replica, next_key)
        dead += found
    return dead


def put(offset: int, key: bytes, value: bytes | None, timestamp_ms: int = 1, expiry_ms: int = 0) -> SliceRow:
    """Return a row as the writer sends it, or a tombstone if the value is None."""
    return SliceRow(key, encode_row(Row(offset, timestamp_ms, expiry_ms, value)), ROW, offset)


def bad(offset: int, key: bytes, reason: str, value: bytes = b"\xff") -> SliceRow:
    return SliceRow(key, encode_bad(BadRecord(reason, value)), BAD, offset)


def dropped(offset: int, key: bytes) -> SliceRow:
    return put(offset, key, None)._replace(kind=DROPPED)


def null_key(offset: int) -> SliceRow:
    return SliceRow(b"", b"", NULL_KEY, offset)


def slice_frame(
    *rows: SliceRow, partition: int = 0, first: int | None = None, last: int | None = None, **header: int
) -> bytes:
    """Return a whole SLICE frame; fields missing in `header` follow from the rows."""
    first = rows[0].offset if first is None else first
    last = rows[-1].offset if last is None else last
    counters = {
        "null_keys": sum(row.kind == NULL_KEY for row in rows),
        "bad": sum(row.kind == BAD for row in rows),
        "dropped": sum(row.kind == DROPPED for row in rows),
        "mismatches_murmur2": 0,
        "mismatches_crc32": 0,
        "mismatches_fnv1a": 0,
        **header,
    }
    return encode_slice(SliceHeader(partition, first, last, 7, len(rows), **counters), rows)


def slice_payload(*rows: SliceRow, **header: Any) -> bytes:
    """Return the frame without its length, as serve's applier gets it."""
    return slice_frame(*rows, **header)[4:]
