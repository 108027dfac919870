"""Measure the cost of Real-Time Mode: the stall between two batches, SQL against plain, and Spark against a bare consumer.

Four cases over 12 partitions at 1 000 msg/s, each with the probes of `freshness`: batches of one minute over two
boundaries, of five minutes over one; a view with SQL and one without, at equal settings; and the same node fed by a
plain librdkafka consumer that speaks the row socket in Spark's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.freshness import Load, probe
from bench.harness import Result, document, quantiles
from bench.plain_ingest import plain_node
from tests.integration import topics
from tests.integration.system import System, running
from tests.support.kafka import embedded_kafka

PARTITIONS = 12
RATE = 1000
SCHEMA = "load STRING, probe LONG, name STRING, status STRING, amount DOUBLE, city STRING"
SQL = "SELECT key, value.probe AS probe FROM records WHERE coalesce(value.amount, 1) > 0"


def samples_of(system: System, bootstrap: str, topic: str, seconds: float) -> dict[str, float | int | str]:
    with Load(bootstrap, topic, RATE):
        list(probe(system.url(), bootstrap, topic, 10))
        samples = list(probe(system.url(), bootstrap, topic, seconds))
    late = {f"> {ms} ms": sum(s > ms for s in samples) for ms in (20, 100)}
    return {**quantiles(samples), "n": len(samples), **late}


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    with embedded_kafka(directory / "broker") as kafka:

        def case(name: str, seconds: float, target: str = "", **spec: Any) -> Result:
            topics.create(kafka.bootstrap, name, PARTITIONS)
            with running(document(name, kafka.bootstrap, **spec), directory / name) as system:
                figures = samples_of(system, kafka.bootstrap, name, seconds)
            return Result("boundaries", f"{name}, {seconds:.0f} s", figures, target)

        over = "over a boundary max <= 300 ms"
        yield case("batch-1m", 30 if quick else 140, over, ingest={"batch": "1m"})
        if not quick:
            yield case("batch-5m", 330, over, ingest={"batch": "5m"})
        for _ in range(1 if quick else 2):
            seconds = 10 if quick else 40
            suffix = f"-{_ + 1}"
            yield case(f"plain{suffix}", seconds)
            yield case(f"sql{suffix}", seconds, value={"schema": SCHEMA}, transform={"sql": SQL})
            name = f"consumer{suffix}"
            topics.create(kafka.bootstrap, name, PARTITIONS)
            with plain_node(document(name, kafka.bootstrap), directory / name, PARTITIONS) as system:
                figures = samples_of(system, kafka.bootstrap, name, seconds)
            yield Result("boundaries", f"bare consumer{suffix}, {seconds} s", figures)
