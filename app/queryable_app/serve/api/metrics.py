"""Export metrics to Prometheus. A scrape only reads numbers that other parts of the node keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from queryable_app.aggregates.clock import NO_TIME_MS
from queryable_app.aggregates.entry_retention import EntryRetention
from queryable_app.aggregates.windows import Windows
from queryable_app.platform.clock import monotonic_ms
from queryable_app.policy.freshness import lag_ms, lag_records
from queryable_app.serve.api.status import rekey_job_status
from queryable_app.serve.base.background import FAILURES
from queryable_app.serve.base.node_tls import NodeTls
from queryable_app.serve.node import Node
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.partitioners import counts_by_algorithm

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_REPLICA_GAUGES: Final[tuple[tuple[str, str, Callable[[Replica, int], float]], ...]] = (
    (
        "qt_position",
        "Offset of the next record; in a rekeyed view the sum over the partitions of the source topic.",
        lambda replica, _: sum(replica.source_offsets) if replica.source_offsets else replica.position,
    ),
    ("qt_log_end", "End offset, as Kafka last reported it.", lambda replica, _: replica.end_offset),
    (
        "qt_lag_records",
        "Records between the position and the end offset; -1: unknown.",
        lambda replica, _: lag_records(replica),
    ),
    (
        "qt_lag_seconds",
        "Time that the replica lags behind the log; -1: unknown.",
        lambda replica, now_ms: _seconds(lag_ms(replica, now_ms)),
    ),
    (
        "qt_copy_complete",
        "1 once the replica has reached the end offset.",
        lambda replica, _: replica.complete,
    ),
    (
        "qt_copy_hydrating",
        "1 while the replica hydrates and serves no reads.",
        lambda replica, _: replica.role == "hydrating",
    ),
    ("qt_copy_failed", "1 when the replica has failed.", lambda replica, _: replica.failed is not None),
    (
        "qt_replica_retrying",
        "1 while the node retries to write to or open the store.",
        lambda replica, _: replica.retrying is not None,
    ),
    ("qt_copy_records_per_second", "Rate of the position.", lambda replica, _: replica.records_per_second),
    (
        "qt_store_bytes",
        "Bytes on disk and in memtables.",
        lambda replica, _: replica.store.size_bytes() if replica.opened else 0,
    ),
)
"""Name, help text and value of each gauge with one sample for each replica."""


def registry(node: Node) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(_NodeCollector(node))
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    GCCollector(registry=made)
    return made


def exposition(made: CollectorRegistry) -> bytes:
    return generate_latest(made)


class _NodeCollector(Collector):
    def __init__(self, node: Node) -> None:
        self._node = node

    def describe(self) -> list[Metric]:
        return []  # registering must not scrape

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._connections()
        yield from self._replicas()
        yield from self._indexes()
        yield from self._placement()
        yield from self._ingest()
        yield from self._disk()
        yield from self._fetches()
        yield from self._dead_letters()
        if self._node.spec.changes:
            yield from self._changes()
        if self._node.tls is not None:
            yield from self._tls(self._node.tls)
        yield _counters(
            "qt_background_failures",
            "Unexpected failures of background tasks, which were restarted.",
            "part",
            tuple(FAILURES.items()),
        )

    def _requests(self) -> Iterator[Metric]:
        counters, hedges = self._node.counters, self._node.peers.hedges
        results = (("found", counters.keys_found), ("absent", counters.keys_absent))
        yield _counters("qt_point_reads", "Point reads that this node answered itself.", "result", results)
        yield _counter("qt_fast_answers", "Point reads answered without a task.", counters.fast_answers)
        yield _counter("qt_forwards", "Requests sent to other nodes.", hedges.requests)
        yield _counter("qt_hedges", "Hedges: requests sent to a second node meanwhile.", hedges.hedges)
        answers = CounterMetricFamily(
            "qt_answers", "Answers, except those of the fast lane.", labels=["route", "status"]
        )
        for (route, status), count in tuple(counters.answers.items()):
            answers.add_metric([route, str(status)], count)
        yield answers
        yield _counters("qt_failures", "Requests that failed.", "reason", tuple(counters.failures.items()))
        refused = tuple(self._node.audit.refused_by_reason.items())
        yield _counters("qt_refused", "Requests that authentication or a rule refused.", "reason", refused)
        yield _gauge("qt_requests_in_flight", "Requests in flight.", counters.in_flight)

    def _connections(self) -> Iterator[Metric]:
        counters = self._node.counters
        yield _gauge("qt_connections", "Open connections.", counters.connections)
        yield _gauge("qt_connections_max", "Limit of client connections.", self._node.connections_max)
        yield _counter(
            "qt_connections_closed_for_others",
            "Connections that waited for their client and were closed for a new one.",
            counters.connections_closed_for_others,
        )

    def _indexes(self) -> Iterator[Metric]:
        """Yield what each index has of each replica; a view without indexes has no sample."""
        entries = GaugeMetricFamily("qt_index_entries", "Rows in an index.", labels=("partition", "index"))
        mistyped = GaugeMetricFamily(
            "qt_index_mistyped_rows",
            "Rows that an index lacks because their field is of another type.",
            labels=("partition", "index"),
        )
        if self._node.replicas.indexes is not None:
            for partition, replica in sorted(self._node.replicas.by_partition.items()):
                counts = replica.store.index.counts.by_name() if replica.opened else {}
                for name, (in_index, lacking) in counts.items():
                    entries.add_metric((str(partition), name), in_index)
                    mistyped.add_metric((str(partition), name), lacking)
        yield entries
        yield mistyped

    def _changes(self) -> Iterator[Metric]:
        counters = self._node.counters
        yield _gauge("qt_change_clients", "Clients that follow the change feed.", counters.change_clients)
        yield _counter("qt_changes_sent", "Changes sent to these clients.", counters.changes_sent)
        yield _counter(
            "qt_changes_compacted",
            "Times that a client got the rows of a partition in place of changes that are gone.",
            counters.changes_compacted,
        )

    def _placement(self) -> Iterator[Metric]:
        replicas = self._node.replicas
        yield _gauge("qt_placement_epoch", "Epoch of the placement in effect.", self._node.placement.epoch)
        yield _gauge("qt_placement_partitions", "Partitions of the view, on all nodes.", replicas.partitions)
        yield _gauge(
            "qt_topic_partitions",
            "Partitions of the topic; -1: unknown. The view does not read those beyond the placement's.",
            -1 if replicas.topic_partitions is None else replicas.topic_partitions,
        )
        yield _counters(
            "qt_partitioner_mismatches",
            "Records in another partition than the partitioner's.",
            "algorithm",
            counts_by_algorithm(replicas.mismatches).items(),
        )

    def _ingest(self) -> Iterator[Metric]:
        node = self._node
        yield _counter("qt_ingest_starts", "Starts of ingest's query.", node.ingest_status.starts)
        streaming = node.ingest_status.state == "streaming"
        yield _gauge("qt_ingest_streaming", "1 while ingest streams records.", streaming)
        if (job := rekey_job_status(node, monotonic_ms()).get("rekey")) is not None:
            about = "1 while the rekey job reports to this node that it streams records."
            yield _gauge("qt_rekey_streaming", about, job["state"] == "streaming")
        unavailable = node.end_offsets.unavailable is not None
        yield _gauge("qt_kafka_away", "1 while Kafka is unavailable.", unavailable)
        yield _gauges(
            "qt_replica_stalled",
            "1 while Kafka has records for the replica and none arrives.",
            "partition",
            ((partition, partition in node.watchdog.stalled) for partition in node.replicas.by_partition),
        )
        yield _counter(
            "qt_stall_restarts", "Restarts of the query for stalled replicas.", node.watchdog.restarts
        )

    def _disk(self) -> Iterator[Metric]:
        guard = self._node.disk_guard
        yield _gauge("qt_disk_used_ratio", "Used part of the stores' file system.", guard.used_percent / 100)
        yield _gauge(
            "qt_disk_high_water_ratio", "Used part above which ingest pauses.", guard.high_water_percent / 100
        )
        yield _gauges(
            "qt_ingest_paused",
            "1 while ingest pauses because the disk is too full.",
            "copies",
            ((which, guard.paused == which) for which in ("hydrating", "all")),
        )

    def _fetches(self) -> Iterator[Metric]:
        """Yield the progress of replicas that hydrate from a peer; others have no sample."""
        progress = sorted(self._node.hydration.progress.items())
        yield _gauges(
            "qt_copy_fetched_bytes",
            "Bytes fetched from a peer.",
            "partition",
            ((partition, fetch.bytes_done) for partition, fetch in progress),
        )
        yield _gauges(
            "qt_copy_fetch_bytes",
            "Bytes to fetch from a peer.",
            "partition",
            ((partition, fetch.bytes_total) for partition, fetch in progress),
        )

    def _tls(self, tls: NodeTls) -> Iterator[Metric]:
        mounted = {"clients": tls.own} | ({} if tls.between is None else {"nodes": tls.between})
        yield _gauges(
            "qt_tls_certificate_expiry_timestamp_seconds",
            "When the certificate in use expires, in seconds since 1970.",
            "certificate",
            ((name, each.expires_at) for name, each in mounted.items()),
        )
        yield _gauges(
            "qt_tls_certificate_refused",
            "1 while the mounted certificate cannot be used, and the one before it is in use.",
            "certificate",
            ((name, bool(each.refused)) for name, each in mounted.items()),
        )
        counters = self._node.counters
        outcomes = (("done", counters.handshakes), ("failed", counters.handshakes_failed))
        yield _counters("qt_tls_handshakes", "TLS handshakes with clients and nodes.", "outcome", outcomes)

    def _dead_letters(self) -> Iterator[Metric]:
        letters = self._node.dead_letters
        yield _counters(
            "qt_dead_letters",
            "Dead letters written whole or truncated, or skipped as too large.",
            "outcome",
            ((outcome, letters.written[outcome]) for outcome in ("whole", "truncated", "skipped")),
        )
        yield _gauge(
            "qt_dead_letters_waiting",
            "Partitions that wait for the dead letter topic.",
            len(letters.waiting),
        )

    def _replicas(self) -> Iterator[Metric]:
        now_ms = monotonic_ms()
        replicas = self._node.replicas.by_partition.values()
        for name, about, value_of in _REPLICA_GAUGES:
            yield _gauges(
                name,
                about,
                "partition",
                ((replica.partition, value_of(replica, now_ms)) for replica in replicas),
            )
        counted = (
            (replica.partition, replica.store.keys.count(now_ms)) for replica in replicas if replica.opened
        )
        yield _gauges(
            "qt_store_keys",
            "Estimated number of keys; no sample until they are counted.",
            "partition",
            ((partition, keys) for partition, keys in counted if keys is not None),
        )
        records = CounterMetricFamily(
            "qt_records", "Records applied to the replica, by kind.", labels=["partition", "kind"]
        )
        for replica in replicas:
            for kind in ("rows", "deletes", "null_keys", "bad", "dropped"):
                records.add_metric([str(replica.partition), kind], getattr(replica.state, kind))
        yield records
        if self._node.windows is not None:
            late = "Records that came after all of their windows were final, and are in none."
            about = (
                "Event time before which every window is final; no sample until ten records have been read."
            )
            yield from self._event_time(self._node.windows, late, about)
        if self._node.entries is not None:
            late = "Records that were older than the retention when they came, and have no entry."
            about = (
                "Event time of the oldest entry that is retained; no sample until ten records have been read."
            )
            yield from self._event_time(self._node.entries, late, about)

    def _event_time(self, windows: Windows | EntryRetention, late: str, about: str) -> Iterator[Metric]:
        replicas = self._node.replicas.by_partition.values()
        yield _counters(
            "qt_late_records",
            late,
            "partition",
            ((str(replica.partition), replica.late_records) for replica in replicas),
        )
        yield _gauges(
            "qt_watermark_seconds",
            about,
            "partition",
            (
                (replica.partition, watermark / 1000)
                for replica in replicas
                if (watermark := windows.watermark(replica.max_event_ms)) > NO_TIME_MS
            ),
        )


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, value=float(value))


def _gauges(name: str, about: str, label: str, samples: Iterable[tuple[object, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about, labels=[label])
    for of, value in samples:
        family.add_metric([str(of)], float(value))
    return family


def _counter(name: str, about: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, about, value=value)


def _counters(name: str, about: str, label: str, samples: Iterable[tuple[str, float]]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, about, labels=[label])
    for of, value in samples:
        family.add_metric([of], value)
    return family


def _seconds(ms: int) -> float:
    return ms / 1000 if ms >= 0 else -1.0
