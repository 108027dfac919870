"""Measure counts by another column than the record key: records/s through the rekey job, and the age of what a reader sees.

One machine runs the broker, the job, ingest and serve. The topic is full when the view starts; the rate is that of the source
position while it goes from a tenth to nine tenths of the topic. For freshness, twenty times a second a record of a new
group is produced, and its key polled over HTTP until it is there.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from bench.harness import Meter, Result, document, quantiles
from tests.integration import topics
from tests.integration.system import System, running
from tests.support.kafka import embedded_kafka

PARTITIONS = 4


def view(topic: str, bootstrap: str) -> dict[str, Any]:
    return document(
        topic,
        bootstrap,
        value={"format": "json", "schema": "page STRING"},
        transform={"sql": "SELECT value.page AS page FROM records"},
        view={
            "kind": "aggregate",
            "aggregate": {"groupBy": ["page"], "columns": [{"name": "n", "op": "count"}]},
        },
    )


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    records = 300_000 if quick else 1_500_000
    with embedded_kafka(directory / "broker") as kafka:
        for groups in (10_000,) if quick else (10_000, 1_000_000):
            topic = f"rekeyed-{groups}"
            topics.create(kafka.bootstrap, topic, PARTITIONS)
            values = ((b"%d" % n, b'{"page":"/%d"}' % (n * 2654435761 % groups)) for n in range(records))
            topics.produce(kafka.bootstrap, topic, values)
            with running(view(topic, kafka.bootstrap), directory / topic, wait=False) as system:
                yield _hydration(system, records, groups)
                if groups == 10_000:
                    list(probes(system.url(), kafka.bootstrap, topic, 10, _record))  # warms the JVMs
                    samples = list(probes(system.url(), kafka.bootstrap, topic, 10 if quick else 60, _record))
                    figures: dict[str, float | int | str] = {**quantiles(samples), "n": len(samples)}
                    yield Result("rekey", "freshness through the job", figures, "p50 <= 25, p99 <= 120 ms")


def _applied(system: System) -> int:
    """Return the source records that every replica has applied; 0 while the node does not answer."""
    try:
        return min(int(sum(each["sources"])) for each in system.status()["partitions"])
    except (OSError, httpx.HTTPError, ValueError):
        return 0


def _hydration(system: System, records: int, groups: int) -> Result:
    deadline = time.monotonic() + 300
    begun: tuple[float, int] | None = None
    while True:
        assert time.monotonic() < deadline, system.tail()
        applied, now = _applied(system), time.perf_counter()
        if begun is None and applied >= records // 10:
            begun = now, applied
            described = system.described()
            meters = {
                "job": Meter(described["rekeyJob"]),
                "ingest": Meter(system.pid("ingest")),
                "serve": Meter(system.pid("serve")),
            }
        if begun is not None and applied >= records * 9 // 10:
            break
        time.sleep(0.1)  # the pace of the looks
    rate = round((applied - begun[1]) / (now - begun[0]))
    cpu = {f"{name} CPU %": meter.cpu_percent() for name, meter in meters.items()}
    figures: dict[str, float | int | str] = {"records/s": rate, **cpu}
    return Result("rekey", f"records into {groups:,} groups", figures, ">= 60,000/s")


def _record(number: int, page: str) -> tuple[bytes, bytes]:
    return b"%d" % number, json.dumps({"page": page}).encode()


def probes(
    url: str, bootstrap: str, topic: str, seconds: float, record: Callable[[int, str], tuple[bytes, bytes]]
) -> Iterator[float]:
    """Yield the milliseconds from produce() to the first answer that counts the record of a new group."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port or 80, timeout=10)
    client = topics.producer(bootstrap, **{"linger.ms": 0})
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        page = f"probe-{time.time_ns()}"
        born = time.perf_counter()
        key, value = record(number, page)
        client.produce(topic, key=key, value=value)
        client.poll(0)
        deadline = time.monotonic() + 30
        while True:
            connection.request("GET", f"/v1/keys/{page}?consistency=any")
            answer = connection.getresponse()
            if answer.read() and answer.status == 200:
                break
            assert time.monotonic() < deadline, "a probe was not readable within 30 s"
            time.sleep(0.0005)  # the pace of the polls
        yield (time.perf_counter() - born) * 1000
        time.sleep(0.05)
    client.flush(10)
    connection.close()
