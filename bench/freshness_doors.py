"""Measure where the time between produce() and the first HTTP answer with the record goes: the moment at each door it passes.

The doors are the broker's acknowledgement, the writer in Spark's task, the row socket, serve's write, and the answer. All
clocks are the machine's monotonic one. A record can pass the writer before its acknowledgement arrives, so that time may be
negative. Beside the median and p99 of each part stands its mean among the slowest 2 % of the records: what makes them late.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
import urllib.parse
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.door_serve import DOORS_FILE
from bench.freshness import Load, require_no_bad_records, wait_until_readable
from bench.harness import Result, document, quantiles
from tests.integration import topics
from tests.integration.system import serving
from tests.support.kafka import embedded_kafka

PARTITIONS = 8
PARTS = ("acknowledged", "in Spark's task", "sent", "serve begins", "written", "answered")


@dataclass(frozen=True)
class Probe:
    partition: int
    offset: int
    produced_ns: int
    acknowledged_ns: int
    answered_ns: int


def probes(url: str, bootstrap: str, topic: str, seconds: float) -> Iterator[Probe]:
    """Produce a record and poll its key until the answer shows it, again and again."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port or 80, timeout=10)
    client = topics.producer(bootstrap, **{"linger.ms": 0})
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        key, value = f"probe-{number % 64}", b'{"probe":%d}' % time.time_ns()
        delivered: list[Any] = []
        produced = time.monotonic_ns()
        client.produce(
            topic,
            key=key.encode(),
            value=value,
            on_delivery=lambda _, message, to=delivered: to.append(message),
        )
        client.poll(0)
        wait_until_readable(connection, key, value)
        answered = time.monotonic_ns()
        while not delivered:
            client.poll(0.01)
        (message,) = delivered
        acknowledged = produced + int(message.latency() * 1e9)
        yield Probe(message.partition(), message.offset(), produced, acknowledged, answered)
        time.sleep(0.01)
    connection.close()


def slices_of(files: Iterator[Path]) -> dict[int, list[tuple[int, int, int, int]]]:
    """Return (last offset, first offset, begun, ended) of each slice, by partition, in order."""
    found: dict[int, list[tuple[int, int, int, int]]] = {}
    for file in files:
        for line in file.read_text().splitlines():
            partition, first, last, begun, ended = map(int, line.split())
            found.setdefault(partition, []).append((last, first, begun, ended))
    for slices in found.values():
        slices.sort()
    return found


def parts_of(one: Probe, sent: Any, applied: Any) -> list[float]:
    """Return the milliseconds between each door and the one before it."""
    moments = [one.produced_ns, one.acknowledged_ns]
    for slices in (sent, applied):
        of_partition = slices[one.partition]
        moments += of_partition[bisect_left(of_partition, (one.offset,))][2:]
    moments.append(one.answered_ns)
    return [(after - before) / 1e6 for before, after in pairwise(moments)]


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    seconds = 10 if quick else 60
    with embedded_kafka(directory / "broker") as kafka:
        topics.create(kafka.bootstrap, "doors", PARTITIONS)
        spec = document("doors", kafka.bootstrap)
        doors = directory / "doors"
        doors.mkdir()
        os.environ[DOORS_FILE] = str(doors / "serve")
        with serving(spec, directory / "node", PARTITIONS, module="bench.door_serve") as (system, settings):
            java = {"_JAVA_OPTIONS": f"-Dio.queryabletopics.doors={doors / 'writer'}"}
            ingest = subprocess.Popen(
                [sys.executable, "-m", "queryable_app.ingest"],
                env={**os.environ, **settings.to_env(), **java},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                system.wait_ready()
                with Load(kafka.bootstrap, "doors", 1000):
                    list(probes(system.url(), kafka.bootstrap, "doors", 12))  # warms the JVM
                    taken = list(probes(system.url(), kafka.bootstrap, "doors", seconds))
                require_no_bad_records(system)
            finally:
                ingest.terminate()
                ingest.wait(30)
        sent = slices_of(doors.glob("writer-*"))
        applied = slices_of(doors.glob("serve"))
        rows = sorted((parts_of(one, sent, applied) for one in taken), key=sum)
        slowest = rows[-max(1, len(rows) // 50) :]
        for name, column, late in zip(
            PARTS, zip(*rows, strict=True), zip(*slowest, strict=True), strict=True
        ):
            figures = {**quantiles(column), "of the slowest": round(sum(late) / len(late), 2)}
            yield Result("doors", name, figures)
        totals = quantiles([sum(row) for row in rows])
        yield Result("doors", "together", {**totals, "n": len(rows)})
