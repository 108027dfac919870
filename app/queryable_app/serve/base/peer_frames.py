"""What nodes say to one another: questions and heartbeats as JSON; answers as a head in JSON, then rows as they lie on disk.

Strategy: an answer is `u32 length | JSON`, then for each row `u32 key length | u32 stored length | u32 partition | key | stored`,
little-endian as the row socket. Rows are raw, tombstones too: which of them is the newest is for the node that merges.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from queryable_app.policy.freshness import DEADLINE_MS_MAX, LAG_MAX, Consistency, ReadOptions
from queryable_app.policy.routing import LastHeartbeat, ReportedReplica
from queryable_app.wire.checked import by_partition, field, offset, optional, whole

RawRow = tuple[bytes, int, bytes]
"""On-disk key, partition, stored bytes."""

_LENGTH: Final = struct.Struct("<I")
_ROW: Final = struct.Struct("<III")


class PeerFrameError(Exception):
    """A peer's answer is not what it should be."""


def encode_rows(head: dict[str, Any], rows: Iterable[RawRow] = ()) -> bytes:
    text = json.dumps(head).encode()
    pieces = [_LENGTH.pack(len(text)), text]
    for key, partition, stored in rows:
        pieces += (_ROW.pack(len(key), len(stored), partition), key, stored)
    return b"".join(pieces)


def decode_rows(raw: bytes) -> tuple[dict[str, Any], list[RawRow]]:
    try:
        at = _LENGTH.size + _LENGTH.unpack_from(raw)[0]
        if at > len(raw):
            raise PeerFrameError("the head is cut off")
        head = json.loads(raw[_LENGTH.size : at])
        rows: list[RawRow] = []
        while at < len(raw):
            key_length, stored_length, partition = _ROW.unpack_from(raw, at)
            start = at + _ROW.size
            middle = start + key_length
            at = middle + stored_length
            if at > len(raw):
                raise PeerFrameError("a row is cut off")
            rows.append((raw[start:middle], partition, raw[middle:at]))
    except (struct.error, ValueError, RecursionError) as error:
        raise PeerFrameError(f"not a peer's answer: {error}") from None
    if not isinstance(head, dict):
        raise PeerFrameError("the head is no object")
    return head, rows


def asked_to_json(asked: ReadOptions, remaining_ms: int) -> dict[str, Any]:
    return {
        "consistency": asked.consistency.value,
        "maxLagMs": asked.max_lag_ms,
        "maxLagRecords": asked.max_lag_records,
        "minPositions": {str(partition): offset for partition, offset in asked.min_positions.items()},
        "deadlineMs": remaining_ms,
    }


def asked_from_json(raw: Any) -> ReadOptions:
    """Raises Malformed."""
    return ReadOptions(
        field(raw, "consistency", Consistency),
        field(raw, "maxLagMs", optional(whole(0, LAG_MAX))),
        field(raw, "maxLagRecords", optional(whole(0, LAG_MAX))),
        field(raw, "minPositions", by_partition(offset)),
        field(raw, "deadlineMs", whole(0, DEADLINE_MS_MAX)),
        "local",
    )


def encode_heartbeat(
    epoch: int,
    mismatches: tuple[int, int, int],
    replicas: Mapping[int, ReportedReplica],
    draining: bool = False,
) -> bytes:
    said = {"epoch": epoch, "mismatches": mismatches, "copies": replicas, "draining": draining}
    return json.dumps(said, separators=(",", ":")).encode()


def decode_heartbeat(words: bytes, now: float) -> LastHeartbeat:
    try:
        said = json.loads(words)
        murmur2, crc32, fnv1a = (int(count) for count in said["mismatches"])
        replicas = {
            int(partition): ReportedReplica(int(position), int(lag), bool(complete))
            for partition, (position, lag, complete) in said["copies"].items()
        }
        return LastHeartbeat(
            now, int(said["epoch"]), (murmur2, crc32, fnv1a), replicas, said.get("draining") is True
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise PeerFrameError(f"no heartbeat of a node: {error!r}") from None
