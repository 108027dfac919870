"""Encode and decode what nodes send to each other: requests and heartbeats as JSON, rows as they are on disk.

Strategy: rows follow a head in JSON. The frame is `u32 length | JSON`, then for each row `u32 key length | u32 stored length |
u32 partition | key | stored`, little-endian as on the row socket. Rows include tombstones: the node that merges the rows of
several nodes finds the newest.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from queryable_app.policy.freshness import DEADLINE_MS_MAX, LAG_MAX, Consistency, ReadOptions
from queryable_app.policy.routing import LastHeartbeat, ReportedReplica
from queryable_app.wire.as_of import as_of_from_json
from queryable_app.wire.checked import by_partition, field, offset, optional, whole

RawRow = tuple[bytes, int, bytes]
"""On-disk key, partition, stored bytes."""

_LENGTH: Final = struct.Struct("<I")
_ROW: Final = struct.Struct("<III")


class PeerFrameError(Exception):
    """A peer sent a malformed frame."""


def encode_rows(head: dict[str, Any], rows: Iterable[RawRow] = ()) -> bytes:
    text = json.dumps(head).encode()
    pieces = [_LENGTH.pack(len(text)), text]
    for key, partition, stored in rows:
        pieces += (_ROW.pack(len(key), len(stored), partition), key, stored)
    return b"".join(pieces)


def decode_rows(raw: bytes) -> tuple[dict[str, Any], list[RawRow]]:
    """Raises PeerFrameError."""
    try:
        at = _LENGTH.size + _LENGTH.unpack_from(raw)[0]
        if at > len(raw):
            raise PeerFrameError("the head is truncated")
        head = json.loads(raw[_LENGTH.size : at])
        rows: list[RawRow] = []
        while at < len(raw):
            key_length, stored_length, partition = _ROW.unpack_from(raw, at)
            start = at + _ROW.size
            middle = start + key_length
            at = middle + stored_length
            if at > len(raw):
                raise PeerFrameError("a row is truncated")
            rows.append((raw[start:middle], partition, raw[middle:at]))
    except (struct.error, ValueError, RecursionError) as error:
        raise PeerFrameError(f"malformed rows: {error}") from None
    if not isinstance(head, dict):
        raise PeerFrameError("the head is not an object")
    return head, rows


def read_options_to_json(options: ReadOptions, remaining_ms: int) -> dict[str, Any]:
    return {
        "consistency": options.consistency.value,
        "maxLagMs": options.max_lag_ms,
        "maxLagRecords": options.max_lag_records,
        "minPositions": {str(partition): offset for partition, offset in options.min_positions.items()},
        "deadlineMs": remaining_ms,
        **({} if options.as_of is None else {"asOf": options.as_of.to_json()}),
        **(
            {"minSources": {str(p): o for p, o in options.min_sources.items()}} if options.min_sources else {}
        ),
    }


def read_options_from_json(raw: Any) -> ReadOptions:
    """Raises Malformed."""
    return ReadOptions(
        field(raw, "consistency", Consistency),
        field(raw, "maxLagMs", optional(whole(0, LAG_MAX))),
        field(raw, "maxLagRecords", optional(whole(0, LAG_MAX))),
        field(raw, "minPositions", by_partition(offset)),
        field(raw, "deadlineMs", whole(0, DEADLINE_MS_MAX)),
        "local",
        field(raw, "asOf", as_of_from_json) if "asOf" in raw else None,
        field(raw, "minSources", by_partition(offset)) if "minSources" in raw else {},
    )


def encode_heartbeat(
    epoch: int,
    mismatches: tuple[int, int, int],
    replicas: Mapping[int, ReportedReplica],
    draining: bool = False,
) -> bytes:
    heartbeat = {"epoch": epoch, "mismatches": mismatches, "copies": replicas, "draining": draining}
    return json.dumps(heartbeat, separators=(",", ":")).encode()


def decode_heartbeat(body: bytes, now: float) -> LastHeartbeat:
    """Raises PeerFrameError."""
    try:
        heartbeat = json.loads(body)
        murmur2, crc32, fnv1a = (int(count) for count in heartbeat["mismatches"])
        replicas = {
            int(partition): ReportedReplica(int(position), int(lag), bool(complete))
            for partition, (position, lag, complete) in heartbeat["copies"].items()
        }
        return LastHeartbeat(
            now, int(heartbeat["epoch"]), (murmur2, crc32, fnv1a), replicas, heartbeat.get("draining") is True
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise PeerFrameError(f"malformed heartbeat: {error!r}") from None
