"""What Prometheus is told. Nothing is counted here: every scrape reads plain numbers that others keep."""

from __future__ import annotations

from collections.abc import Iterator
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

from queryable_app.platform.clock import monotonic_ms
from queryable_app.policy.freshness import lag_ms, lag_records
from queryable_app.serve.base.background import FAILURES
from queryable_app.serve.node import Node
from queryable_app.wire.partitioners import counts_by_algorithm

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


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
        yield from self._replicas()
        ingest = self._node.ingest_status
        yield CounterMetricFamily(
            "qt_ingest_starts", "How often ingest has started its query.", value=ingest.starts
        )
        streaming = float(ingest.state == "streaming")
        yield _gauge("qt_ingest_streaming", "1 while records stream in.", streaming)
        yield _gauge(
            "qt_kafka_away",
            "1 while Kafka does not answer.",
            float(self._node.end_offsets.unavailable is not None),
        )
        yield _gauge(
            "qt_placement_epoch", "Of the placement that the node follows.", self._node.placement.epoch
        )
        replicas = self._node.replicas
        yield _gauge("qt_placement_partitions", "That the view reads, over all nodes.", replicas.partitions)
        yield _gauge(
            "qt_topic_partitions",
            "That the topic has; -1: not known. More than are placed: some are not read.",
            -1 if replicas.topic_partitions is None else replicas.topic_partitions,
        )
        guard = self._node.disk_guard
        yield _gauge("qt_disk_used_ratio", "Of the file system with the stores.", guard.used_percent / 100)
        yield _gauge("qt_disk_high_water_ratio", "Above it ingest pauses.", guard.high_water_percent / 100)
        pauses = GaugeMetricFamily(
            "qt_ingest_paused", "1 while the disk is too full to read on.", labels=["copies"]
        )
        for which in ("hydrating", "all"):
            pauses.add_metric([which], float(guard.paused == which))
        yield pauses
        yield from self._fetches()
        letters = CounterMetricFamily(
            "qt_dead_letters", "Written whole or truncated, or skipped as too large.", labels=["outcome"]
        )
        for outcome in ("whole", "truncated", "skipped"):
            letters.add_metric([outcome], self._node.dead_letters.written[outcome])
        yield letters
        stalled = GaugeMetricFamily(
            "qt_replica_stalled", "1 while records are there and none arrives.", labels=["partition"]
        )
        for partition in replicas.by_partition:
            stalled.add_metric([str(partition)], float(partition in self._node.watchdog.stalled))
        yield stalled
        yield CounterMetricFamily(
            "qt_stall_restarts",
            "Starts of the query for stalled replicas.",
            value=self._node.watchdog.restarts,
        )
        waits = len(self._node.dead_letters.waiting)
        yield _gauge("qt_dead_letters_waiting", "Partitions that wait for the dead letter topic.", waits)
        failures = CounterMetricFamily(
            "qt_background_failures", "Unexpected failures; the part was started again.", labels=["part"]
        )
        for part, count in tuple(FAILURES.items()):
            failures.add_metric([part], count)
        yield failures
        mismatches = CounterMetricFamily(
            "qt_partitioner_mismatches", "Records that contradict a partitioner.", labels=["algorithm"]
        )
        for algorithm, count in counts_by_algorithm(replicas.mismatches).items():
            mismatches.add_metric([algorithm], count)
        yield mismatches

    def _requests(self) -> Iterator[Metric]:
        counters = self._node.counters
        reads = CounterMetricFamily(
            "qt_point_reads", "Point reads answered from this node.", labels=["result"]
        )
        reads.add_metric(["found"], counters.keys_found)
        reads.add_metric(["absent"], counters.keys_absent)
        yield reads
        fast = CounterMetricFamily("qt_fast_answers", "Point reads answered in the protocol itself.")
        fast.add_metric([], counters.fast_answers)
        yield fast
        asking = self._node.peers.hedges
        forwards = CounterMetricFamily("qt_forwards", "Questions that other nodes were asked to answer.")
        forwards.add_metric([], asking.requests)
        yield forwards
        hedges = CounterMetricFamily("qt_hedges", "Of them, how often another node was asked as well.")
        hedges.add_metric([], asking.hedges)
        yield hedges
        answers = CounterMetricFamily(
            "qt_answers", "Answers, without those of the fast lane.", labels=["route", "status"]
        )
        for (route, status), count in tuple(counters.answers.items()):
            answers.add_metric([route, str(status)], count)
        yield answers
        failures = CounterMetricFamily("qt_failures", "Requests that failed.", labels=["reason"])
        for reason, count in tuple(counters.failures.items()):
            failures.add_metric([reason], count)
        yield failures
        yield _gauge("qt_requests_in_flight", "Requests being answered.", counters.in_flight)
        yield _gauge("qt_connections", "Open connections.", counters.connections)
        yield _gauge("qt_connections_max", "Of clients.", self._node.connections_max)
        yield CounterMetricFamily(
            "qt_connections_closed_for_others",
            "Connections that waited for their client and made room for a new one.",
            value=counters.connections_closed_for_others,
        )

    def _fetches(self) -> Iterator[Metric]:
        """Copies that come from another node; a copy that does not has no sample."""
        done = GaugeMetricFamily("qt_copy_fetched_bytes", "Come from another node.", labels=["partition"])
        total = GaugeMetricFamily("qt_copy_fetch_bytes", "To come from there.", labels=["partition"])
        for partition, fetch in sorted(self._node.hydration.progress.items()):
            done.add_metric([str(partition)], fetch.bytes_done)
            total.add_metric([str(partition)], fetch.bytes_total)
        yield from (done, total)

    def _replicas(self) -> Iterator[Metric]:
        now_ms = monotonic_ms()
        replicas = self._node.replicas.by_partition.values()
        for name, about, of in (
            ("qt_position", "Offset of the next record.", lambda c: c.position),
            ("qt_log_end", "The log's end when Kafka was last asked.", lambda c: c.end_offset),
            ("qt_lag_records", "Records between the copy and the log's end; -1: not known.", lag_records),
            (
                "qt_lag_seconds",
                "Age of what the copy holds; -1: not known.",
                lambda c: _seconds(lag_ms(c, now_ms)),
            ),
            ("qt_copy_complete", "1 when the copy has reached the log's end once.", lambda c: c.complete),
            (
                "qt_copy_hydrating",
                "1 while others do not count on the copy.",
                lambda c: c.role == "hydrating",
            ),
            ("qt_copy_failed", "1 when the copy has stopped.", lambda c: c.failed is not None),
            (
                "qt_replica_retrying",
                "1 while a store that could not be written or opened is tried again.",
                lambda c: c.retrying is not None,
            ),
            ("qt_copy_records_per_second", "By which the position moves.", lambda c: c.records_per_second),
            (
                "qt_store_bytes",
                "On disk and in memtables.",
                lambda c: c.store.size_bytes() if c.opened else 0,
            ),
        ):
            gauge = GaugeMetricFamily(name, about, labels=["partition"])
            for replica in replicas:
                gauge.add_metric([str(replica.partition)], float(of(replica)))
            yield gauge
        keys = GaugeMetricFamily(
            "qt_store_keys", "About how many keys it has; none while it is counted.", labels=["partition"]
        )
        for replica in replicas:
            if replica.opened and (count := replica.store.keys.count(now_ms)) is not None:
                keys.add_metric([str(replica.partition)], count)
        yield keys
        records = CounterMetricFamily(
            "qt_records", "Records since the copy was begun, by what they were.", labels=["partition", "kind"]
        )
        for replica in replicas:
            state = replica.state
            for kind in ("rows", "deletes", "null_keys", "bad", "dropped"):
                records.add_metric([str(replica.partition), kind], getattr(state, kind))
        yield records


def _seconds(ms: int) -> float:
    return ms / 1000 if ms >= 0 else -1.0


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, value=value)
