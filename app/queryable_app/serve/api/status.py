"""What a node says of its copies, as JSON values."""

from __future__ import annotations

from time import monotonic, time_ns
from typing import Any

from queryable_app.platform.clock import moment_ms
from queryable_app.policy.freshness import lag_ms, lag_records, next_offset
from queryable_app.policy.retries import Retry
from queryable_app.policy.stalls import Watch
from queryable_app.serve.feed.control_socket import IngestStatus
from queryable_app.serve.node import Node
from queryable_app.serve.peers.peers import Peers
from queryable_app.serve.store.replicas import Copy
from queryable_app.wire.checkpoint_files import Fetch
from queryable_app.wire.partitioners import ALGORITHMS


def status_of(node: Node) -> dict[str, Any]:
    settings, copies, ingest = node.settings, node.copies, node.ingest_status
    now_ms, moment = time_ns() // 1_000_000, moment_ms()
    return {
        "name": settings.name,
        "applicationId": settings.application_id,
        "topic": node.spec.topic,
        "epoch": copies.placement.epoch,
        "placedPartitions": copies.partitions,
        "topicPartitions": copies.topic_partitions,
        "ready": copies.ready,
        "draining": node.draining,
        "read": read_of(node),
        "startedAt": int(node.started_at * 1000),
        "now": now_ms,
        "partitioner": {
            "declared": node.spec.partitioner,
            "inUse": copies.algorithm,
            "mismatches": _by_algorithm(copies.mismatches),
        },
        "kafka": {"away": node.log_end.away},
        "ingest": {
            "state": ingest.state,
            "mode": ingest.mode,
            "detail": ingest.detail,
            "pid": ingest.pid,
            "starts": ingest.starts,
            "sinceMs": moment - ingest.since_ms,
            "failure": None if ingest.failure is None else ingest.failure.to_json(),
        },
        "deadLetters": {
            "topic": node.dead_letters.name,
            "written": dict(node.dead_letters.written),
            "waiting": {str(p): _retrying(retry) for p, retry in node.dead_letters.waiting.items()},
        },
        "peers": [_peer_status(node.peers, ordinal) for ordinal in node.peers.others()],
        "disk": {
            "usedPercent": round(node.disk_guard.used_percent, 1),
            "highWaterPercent": node.disk_guard.high_water_percent,
            "paused": node.disk_guard.paused,
        },
        "partitions": [_copy_status(node, copy, moment) for _, copy in sorted(copies.by_partition.items())],
        "leaving": sorted(copies.leaving),
    }


def read_of(node: Node) -> dict[str, Any]:
    """What the node follows of `spec.read`."""
    read = node.read
    return {
        "consistency": read.consistency,
        "maxLagMs": read.max_lag_ms,
        "ingest": read.ingest,
        "maxConcurrent": read.concurrent_max,
    }


def _peer_status(peers: Peers, ordinal: int) -> dict[str, Any]:
    heard = peers.heard.get(ordinal)
    return {
        "address": peers.address(ordinal),
        "suspect": ordinal in peers.suspects,
        "draining": heard is not None and heard.draining,
        "heardMs": None if heard is None else int((monotonic() - heard.at) * 1000),
        "epoch": None if heard is None else heard.epoch,
    }


def _copy_status(node: Node, copy: Copy, now_ms: int) -> dict[str, Any]:
    state, fetch = copy.state, node.hydration.progress.get(copy.partition)
    return {
        "partition": copy.partition,
        "role": copy.role,
        "phase": copy.phase(now_ms),
        "position": copy.position,
        "end": copy.end,
        "lagRecords": lag_records(copy),
        "lagMs": lag_ms(copy, now_ms),
        "complete": copy.complete,
        "progress": progress(copy) if fetch is None else fetch_progress(fetch),
        "recordsPerSecond": round(copy.rate, 1),
        "remainingSeconds": _rounded(copy.remaining_seconds if fetch is None else _seconds_left(fetch)),
        "hydration": None if copy.complete else _hydration(copy, fetch),
        "failed": copy.failed,
        "retrying": _retrying(copy.retrying),
        "stalled": _stalled(node.watchdog.stalled.get(copy.partition)),
        "damaged": copy.damaged,
        "absent": copy.absent,
        "paused": node.disk_guard.why_paused if node.copies.is_paused(copy) else None,
        "rows": state.rows,
        "deletes": state.deletes,
        "nullKeys": state.null_keys,
        "bad": state.bad,
        "dropped": state.dropped,
        "lastBad": copy.store.last_bad if copy.opened else None,
        "lastTimestamp": state.last_timestamp_ms,
        "mismatches": _by_algorithm(state.mismatches),
        "estimatedKeys": copy.store.keys.count(now_ms) if copy.opened else None,
        "sizeBytes": copy.store.size_bytes() if copy.opened else 0,
    }


def _stalled(watch: Watch | None) -> dict[str, Any] | None:
    """Return how often the query was started again for a replica that stands still although records are there."""
    return (
        None if watch is None else {"restarts": watch.restarts, "waitedMs": int(watch.waited_seconds * 1000)}
    )


def _retrying(retry: Retry | None) -> dict[str, Any] | None:
    """Why a store takes nothing at present, for how long, and when it is opened again."""
    if retry is None:
        return None
    now = monotonic()
    return {
        "reason": retry.reason,
        "sinceMs": int((now - retry.since) * 1000),
        "attempts": retry.attempts,
        "nextAttemptMs": max(0, int((retry.next_at - now) * 1000)),
    }


def readiness(node: Node) -> dict[str, Any]:
    """Of the copies that serve. What is being built beside them is counted by itself."""
    copies, ingest = node.copies.serving, node.ingest_status
    return {
        "ready": node.copies.ready and not node.draining,
        "draining": node.draining,
        "hydrating": len(node.copies.by_partition) - len(copies),
        "complete": sum(copy.complete for copy in copies),
        "copies": len(copies),
        "progress": round(sum(progress(copy) for copy in copies) / max(1, len(copies)), 4),
        "failed": {str(copy.partition): copy.failed for copy in copies if copy.failed is not None},
        "retrying": {
            str(copy.partition): copy.retrying.reason for copy in copies if copy.retrying is not None
        },
        "stalled": [copy.partition for copy in copies if copy.partition in node.watchdog.stalled],
        "ingestFailed": _ingest_failed(ingest),
    }


def _ingest_failed(ingest: IngestStatus) -> str | None:
    if ingest.failure is not None:
        return ingest.failure.message
    return ingest.detail if ingest.state == "failed" else None


def placement_of(node: Node) -> dict[str, Any]:
    placement = node.placement
    return {
        "epoch": placement.epoch,
        "applicationId": placement.application_id,
        "partitioner": node.copies.algorithm,
        "keyFormat": node.spec.key_format,
        "partitions": [
            {
                "partition": partition,
                "addresses": [placement.addresses[ordinal] for ordinal in placement.serving[partition]],
                "hydrating": [placement.addresses[ordinal] for ordinal in placement.hydrating[partition]],
            }
            for partition in range(placement.partitions)
        ],
    }


def progress(copy: Copy) -> float:
    """Of the log's offsets, how many are behind the copy: 0 to 1. 0 while the end is not known."""
    if copy.complete and copy.end <= 0:
        return 1.0
    if copy.end < 0:
        return 0.0
    return 1.0 if copy.end == 0 else round(min(1.0, next_offset(copy) / copy.end), 4)


def fetch_progress(fetch: Fetch) -> float:
    return round(fetch.bytes_done / max(1, fetch.bytes_total), 4)


def _seconds_left(fetch: Fetch) -> float | None:
    rate = fetch.bytes_per_second
    return (fetch.bytes_total - fetch.bytes_done) / rate if rate > 0 else None


def _hydration(copy: Copy, fetch: Fetch | None) -> dict[str, Any]:
    """From where the copy is being built. Without figures it waits for its turn, or another node is asked first."""
    if fetch is None:
        return {"from": "topic" if copy.opened else "peer"}
    return {
        "from": "peer",
        "peer": fetch.peer,
        "bytesDone": fetch.bytes_done,
        "bytesTotal": fetch.bytes_total,
        "bytesPerSecond": round(fetch.bytes_per_second),
    }


def _by_algorithm(mismatches: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip(ALGORITHMS, mismatches, strict=True))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
