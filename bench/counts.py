"""Measure records/s into counts by record key, from Kafka to the read, beside Kafka Streams' count() over the same topic.

The first and the last record of every partition have keys of their own. A run begins when the first are readable and ends when
the last are, over HTTP, for both systems alike. So the rate excludes the start of the JVM; `whole s` includes it. Kafka Streams
runs with its own defaults, and writes its changelog to the broker, as `count()` does. It needs a JDK.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

from bench.beside_streams import PARTITIONS, status, streams_table
from bench.harness import Result, document, median
from queryable_app.wire.partitioners import partition_for
from tests.integration import topics
from tests.integration.system import running
from tests.support.kafka import embedded_kafka
from tests.support.waiting import eventually

PAUSE_SECONDS = 0.2  # while reads arrive, a node gives ingest half of its time
VIEW = {"kind": "aggregate", "aggregate": {"columns": [{"name": "n", "op": "count"}]}}


def marks(name: str) -> list[str]:
    """Return a key for each partition."""
    keys = [f"{name}-{number}" for number in range(100 * PARTITIONS)]
    by_partition = {partition_for(key.encode(), "murmur2", PARTITIONS): key for key in keys}
    return [by_partition[partition] for partition in range(PARTITIONS)]


def fill(bootstrap: str, topic: str, groups: int, records: int) -> None:
    topics.create(bootstrap, topic, PARTITIONS)
    dice = random.Random(groups)
    keys = (b"key-%012d" % dice.randrange(groups) for _ in range(records))
    ends = ([mark.encode() for mark in marks(name)] for name in ("first", "last"))
    value = b'{"amount":%d}'
    made = ((key, value % n) for n, key in zip(count(), chain(next(ends), keys, next(ends)), strict=False))
    topics.produce(bootstrap, topic, made, **{"linger.ms": 50, "compression.type": "lz4"})


def rate(url: str, records: int, started: float) -> Mapping[str, float | int | str]:
    times = []
    for name in ("first", "last"):
        for mark in marks(name):
            while status(f"{url}/v1/keys/{mark}?consistency=any") != 200:
                time.sleep(PAUSE_SECONDS)
        times.append(time.monotonic())
    return {"records/s": records / (times[1] - times[0]), "whole s": times[1] - started}


@contextmanager
def node(directory: Path, bootstrap: str, topic: str) -> Iterator[str]:
    """Run a node as `qtopic run` does, and yield its address before it has any record."""
    with running(document(topic, bootstrap, view=VIEW), directory, wait=False) as system:
        eventually("run.json", lambda: (system.data / "run.json").exists(), 120)
        yield system.url()


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    records, rounds = (200_000, 1) if quick else (2_000_000, 3)
    has_jdk = shutil.which("javac") is not None
    with embedded_kafka(directory / "broker") as kafka:
        for groups in (10_000, 1_000_000):
            topic = f"counts-{groups}"
            fill(kafka.bootstrap, topic, groups, records)
            rates: dict[str, list[Mapping[str, float | int | str]]] = {}
            for number in range(rounds):
                place = directory / f"{topic}-{number}"
                started = time.monotonic()
                with node(place, kafka.bootstrap, topic) as url:
                    rates.setdefault("node", []).append(rate(url, records, started))
                if not has_jdk:
                    continue
                started = time.monotonic()
                own = {"count": "true", "application.id": f"{topic}-{number}"}
                with streams_table(place, kafka.bootstrap, topic, own, None) as url:
                    rates.setdefault("Kafka Streams", []).append(rate(url, records, started))
            for name, runs in rates.items():
                figures = {key: median([float(run[key]) for run in runs]) for key in runs[0]}
                target = ">= 120 K records/s" if name == "node" else ""
                yield Result("counts", f"{name}, {groups:,} groups", {**figures}, target)
