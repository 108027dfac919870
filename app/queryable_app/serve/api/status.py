"""Describe a node and its replicas as JSON values."""

from __future__ import annotations

from time import monotonic, time_ns
from typing import Any, Final

from queryable_app.aggregates.clock import NO_TIME_MS
from queryable_app.aggregates.entry_retention import EntryRetention
from queryable_app.aggregates.windows import Windows
from queryable_app.platform.clock import monotonic_ms
from queryable_app.policy.freshness import lag_ms, lag_records, next_offset
from queryable_app.policy.retries import Retry
from queryable_app.policy.stalls import StallWatch
from queryable_app.serve.feed.ingest_status import IngestStatus
from queryable_app.serve.node import Node
from queryable_app.serve.store.rekeyed_replica import RekeyedReplica
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.checkpoint_files import FetchProgress
from queryable_app.wire.partitioners import counts_by_algorithm
from queryable_app.wire.times import to_iso

_JOB_SILENT_MS: Final = 10_000


def status_json(node: Node) -> dict[str, Any]:
    settings, replicas, ingest = node.settings, node.replicas, node.ingest_status
    now_ms, moment = time_ns() // 1_000_000, monotonic_ms()
    return {
        "name": settings.name,
        "pod": settings.pod_name,
        "applicationId": settings.application_id,
        "topic": node.spec.source_topic or node.spec.topic,
        "epoch": replicas.placement.epoch,
        "placedPartitions": replicas.partitions,
        "topicPartitions": replicas.topic_partitions,
        "ready": replicas.ready,
        "draining": node.draining,
        "read": read_settings_json(node),
        "startedAt": int(node.started_at * 1000),
        "now": now_ms,
        "partitioner": {
            "declared": node.spec.partitioner,
            "inUse": replicas.partitioning.algorithm,
            "mismatches": counts_by_algorithm(replicas.mismatches),
        },
        **rekey_job_status(node, moment),
        **_tls_status(node),
        "kafka": {"away": node.end_offsets.unavailable},
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
        "peers": [_peer_status(node, ordinal) for ordinal in node.peers.others()],
        "disk": {
            "usedPercent": round(node.disk_guard.used_percent, 1),
            "highWaterPercent": node.disk_guard.high_water_percent,
            "paused": node.disk_guard.paused,
        },
        "partitions": [
            _replica_status(node, replica, moment) for _, replica in sorted(replicas.by_partition.items())
        ],
        "leaving": sorted(replicas.removing),
    }


def _tls_status(node: Node) -> dict[str, Any]:
    """Return what the status says about the certificates. A node without TLS says nothing."""
    if (tls := node.tls) is None:
        return {}
    return {
        "tls": {
            "clientAuth": tls.client_auth,
            "expiresAt": round(min(each.expires_at for each in tls.mounted) * 1000),
            "refused": tls.refused or None,
        }
    }


def read_settings_json(node: Node) -> dict[str, Any]:
    """Return the read settings that are in effect."""
    read = node.read_settings
    return {
        "consistency": read.consistency,
        "maxLagMs": read.max_lag_ms,
        "ingest": read.ingest,
        "maxConcurrent": read.concurrent_max,
        "writes": {
            "maxBytesPerSecond": read.writes.bytes_per_second_max,
            "maxRecordBytes": read.writes.record_bytes_max,
            "idempotencyWindow": f"{read.writes.window_ms}ms",
        },
    }


def _peer_status(node: Node, ordinal: int) -> dict[str, Any]:
    peers, last = node.peers, node.peers.last_heartbeats.get(ordinal)
    return {
        "address": peers.address(ordinal),
        "samePod": ordinal in node.settings.pod_ordinals,
        "suspect": ordinal in peers.suspected,
        "draining": last is not None and last.draining,
        "heardMs": None if last is None else int((monotonic() - last.at) * 1000),
        "epoch": None if last is None else last.epoch,
    }


def _replica_status(node: Node, replica: Replica, now_ms: int) -> dict[str, Any]:
    state, fetch = replica.state, node.hydration.progress.get(replica.partition)
    return {
        "partition": replica.partition,
        "role": replica.role,
        "phase": replica.phase(now_ms),
        "position": replica.position,
        "end": replica.end_offset,
        **_source_status(replica),
        "lagRecords": lag_records(replica),
        "lagMs": lag_ms(replica, now_ms),
        "complete": replica.complete,
        "progress": progress(replica) if fetch is None else fetch_progress(fetch),
        "recordsPerSecond": round(replica.records_per_second, 1),
        "remainingSeconds": _rounded(replica.remaining_seconds if fetch is None else _seconds_left(fetch)),
        "hydration": None if replica.complete else _hydration(replica, fetch),
        "failed": replica.failed,
        "retrying": _retrying(replica.retrying),
        "stalled": _stalled(node.watchdog.stalled.get(replica.partition)),
        "damaged": replica.damaged,
        "absent": replica.absent,
        "paused": node.disk_guard.pause_reason if node.replicas.is_paused(replica) else None,
        "rows": state.rows,
        "deletes": state.deletes,
        "nullKeys": state.null_keys,
        "bad": state.bad,
        "dropped": state.dropped,
        "lastBad": replica.store.last_bad if replica.opened else None,
        "lastTimestamp": state.last_timestamp_ms,
        "mismatches": counts_by_algorithm(state.mismatches),
        "estimatedKeys": replica.store.keys.count(now_ms) if replica.opened else None,
        "sizeBytes": replica.store.size_bytes() if replica.opened else 0,
        **_event_time(node.windows or node.entries, replica),
        **({} if node.replicas.indexes is None else {"indexes": _index_counts(replica)}),
    }


def _index_counts(replica: Replica) -> dict[str, dict[str, int]]:
    """Return how many rows each index has, and how many it lacks because their field is of another type."""
    counts = replica.store.index.counts.by_name() if replica.opened else {}
    return {name: {"entries": entries, "mistyped": mistyped} for name, (entries, mistyped) in counts.items()}


def _event_time(windows: Windows | EntryRetention | None, replica: Replica) -> dict[str, Any]:
    """Return the time before which every window is final, or that of the oldest entry that is retained, and how many records
    came too late. A view with neither has none."""
    if windows is None:
        return {}
    watermark = windows.watermark(replica.max_event_ms)
    return {
        "watermark": to_iso(watermark) if watermark > NO_TIME_MS else None,
        "lateRecords": replica.late_records,
        **(_source_times(windows, replica) if isinstance(windows, Windows) else {}),
    }


def _source_times(windows: Windows, replica: Replica) -> dict[str, Any]:
    """Return the watermark of each source partition of a rekeyed view, and which of them holds the windows back."""
    if not isinstance(replica, RekeyedReplica):
        return {}
    times = replica.sources.event_times_ms
    return {
        "sourceWatermarks": [
            to_iso(windows.watermark(each)) if each != NO_TIME_MS else None for each in times
        ],
        "watermarkSource": times.index(min(times)),
    }


def _source_status(replica: Replica) -> dict[str, Any]:
    """Return how far a replica of a rekeyed view is in each source partition. Its `end` is the sum of their end offsets."""
    if not isinstance(replica, RekeyedReplica):
        return {}
    return {
        "sources": replica.source_offsets,
        "sourceEnds": replica.source_ends,
        "refusedRuns": len(replica.sources.refused_runs),
    }


def rekey_job_status(node: Node, moment_ms: int) -> dict[str, Any]:
    """Return what the rekey job last reported. It reports every second while it runs."""
    if not node.spec.source_topic:
        return {}
    job = node.rekey_job
    reported = moment_ms - job.reported_at_ms if job.reported_at_ms >= 0 else None
    state = "absent" if reported is None or reported > _JOB_SILENT_MS else job.state
    return {
        "rekey": {
            "state": state,
            "detail": job.detail,
            "internalTopic": node.spec.topic,
            "reportedMs": reported,
        }
    }


def _stalled(watch: StallWatch | None) -> dict[str, Any] | None:
    """Return how often the query was restarted for a replica that stalls although Kafka has records for it."""
    return (
        None if watch is None else {"restarts": watch.restarts, "waitedMs": int(watch.waited_seconds * 1000)}
    )


def _retrying(retry: Retry | None) -> dict[str, Any] | None:
    """Return why a store accepts no writes, for how long, and when the node next tries to open it."""
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
    """Return the readiness of the serving replicas, and the number of hydrating ones.

    A worker is ready when all workers of its pod are: a probe of the pod's front port reaches any of them.
    """
    replicas, ingest, peers = node.replicas.serving, node.ingest_status, node.peers
    waits_for = [peers.address(ordinal) for ordinal in peers.siblings() if not peers.is_ready(ordinal)]
    return {
        "ready": node.replicas.ready and not node.draining and not waits_for,
        **({"waitsFor": waits_for} if waits_for else {}),
        "draining": node.draining,
        "hydrating": len(node.replicas.by_partition) - len(replicas),
        "complete": sum(replica.complete for replica in replicas),
        "copies": len(replicas),
        "progress": round(sum(progress(replica) for replica in replicas) / max(1, len(replicas)), 4),
        "failed": {
            str(replica.partition): replica.failed for replica in replicas if replica.failed is not None
        },
        "retrying": {
            str(replica.partition): replica.retrying.reason
            for replica in replicas
            if replica.retrying is not None
        },
        "stalled": [replica.partition for replica in replicas if replica.partition in node.watchdog.stalled],
        "ingestFailed": _ingest_failed(ingest),
    }


def _ingest_failed(ingest: IngestStatus) -> str | None:
    if ingest.failure is not None:
        return ingest.failure.message
    return ingest.detail if ingest.state == "failed" else None


def placement_json(node: Node) -> dict[str, Any]:
    placement = node.placement
    return {
        "epoch": placement.epoch,
        "applicationId": placement.application_id,
        "partitioner": node.replicas.partitioning.algorithm,
        "keyFormat": node.spec.key_format,
        **_key_schema(node),
        "partitions": [
            {
                "partition": partition,
                "addresses": [placement.addresses[ordinal] for ordinal in placement.serving[partition]],
                "hydrating": [placement.addresses[ordinal] for ordinal in placement.hydrating[partition]],
            }
            for partition in range(placement.partitions)
        ],
    }


def _key_schema(node: Node) -> dict[str, Any]:
    """Return what clients need to compute the record key of an Avro or Protobuf key."""
    schema = node.spec.key_schema
    if schema is None:
        return {}
    field = schema.field
    written = (
        {}
        if field is None
        else {"field": {"type": field.type, "number": field.number, "alwaysWritten": field.always_written}}
    )
    return {"keySchema": {"type": schema.type, "schemaId": schema.schema_id, **written}}


def progress(replica: Replica) -> float:
    """Return the part of the log that is applied, from 0 to 1, and 0 while the end offset is unknown."""
    if replica.complete and replica.end_offset <= 0:
        return 1.0
    if replica.end_offset < 0:
        return 0.0
    if replica.source_ends and replica.end_offset:
        return round(1 - lag_records(replica) / replica.end_offset, 4)
    return 1.0 if replica.end_offset == 0 else round(min(1.0, next_offset(replica) / replica.end_offset), 4)


def fetch_progress(fetch: FetchProgress) -> float:
    return round(fetch.bytes_done / max(1, fetch.bytes_total), 4)


def _seconds_left(fetch: FetchProgress) -> float | None:
    rate = fetch.bytes_per_second
    return (fetch.bytes_total - fetch.bytes_done) / rate if rate > 0 else None


def _hydration(replica: Replica, fetch: FetchProgress | None) -> dict[str, Any]:
    """Return where the replica hydrates from. Without figures it has not begun."""
    if fetch is None:
        return {"from": "topic" if replica.opened else "peer"}
    return {
        "from": "peer",
        "peer": fetch.peer,
        "bytesDone": fetch.bytes_done,
        "bytesTotal": fetch.bytes_total,
        "bytesPerSecond": round(fetch.bytes_per_second),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
