"""Measure how fast a node hydrates from a topic, and what readers see meanwhile.

Two million records (16 B keys, 100 B JSON) are in the topic before the node starts. The rate is taken from the first to
the last row, at two samples of the positions, so that it excludes the start of the JVM; the table has the whole time too. A bare
consumer of the same topic runs before and after, to measure the machine.

    python -m bench hydration
    python -m bench.hydration --records 10000000
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Consumer, TopicPartition

from bench.harness import Meter, Result, document
from tests.integration import topics
from tests.integration.system import System, running
from tests.support.kafka import embedded_kafka
from tests.support.waiting import eventually

PARTITIONS = 4
RECORDS = 2_000_000
SQL = "SELECT key, value.name AS name, value.amount AS amount FROM records WHERE value.amount > 0"
SCHEMA = "name STRING, status STRING, amount DOUBLE, city STRING"
AVRO = """{"type": "record", "name": "Customer", "fields": [
 {"name": "name", "type": "string"}, {"name": "status", "type": "string"},
 {"name": "amount", "type": "double"}, {"name": "city", "type": "string"}, {"name": "pad", "type": "string"}]}"""
"""The fields of the JSON records."""

VALUE = b'{"name":"customer","status":"active","amount":12345.67,"city":"Munich","pad":"%012d"}'
AVRO_VALUE = b"\x10customer\x0cactive" + struct.pack("<d", 12345.67) + b"\x0cMunich\x18%012d"
"""Values of the same fields. The number of the record stands for `%012d`."""


def fill(bootstrap: str, topic: str, count: int, value: bytes = VALUE) -> None:
    topics.create(bootstrap, topic, PARTITIONS)
    records = (
        (b"%016x" % (n * 2654435761 % 2**48), value.replace(b"%012d", b"%012d" % n)) for n in range(count)
    )
    topics.produce(bootstrap, topic, records, **{"linger.ms": 50, "compression.type": "lz4"})


def bare_consumer(bootstrap: str, topic: str, count: int) -> float:
    """Return the records per second of a consumer that discards everything."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "bare", "enable.auto.commit": False}
    client = Consumer(settings)
    client.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    seen, started = 0, 0.0
    while seen < count:
        messages = client.consume(10_000, timeout=5)
        started = started or time.perf_counter()
        seen += len(messages)
    rate = seen / (time.perf_counter() - started)
    client.close()
    return rate


class Reader:
    """Send point reads at a steady pace while the node hydrates, and count the answers."""

    def __init__(self, system: System) -> None:
        self.system, self.seen, self.stop = system, Counter[str](), threading.Event()
        self.worst_ms = 0.0
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with httpx.Client(timeout=10) as client:
            n = 0
            while not self.stop.wait(0.02):
                n += 1
                started = time.perf_counter()
                answer = client.get(f"{self.system.url()}/v1/keys/{n * 2654435761 % 2**48:016x}")
                self.worst_ms = max(self.worst_ms, (time.perf_counter() - started) * 1000)
                self.seen["value" if answer.status_code == 200 else answer.json()["reason"]] += 1


def hydrate(
    directory: Path,
    spec: dict[str, Any],
    count: int,
    reading: bool,
    then: Callable[[System], dict[str, float | int | str]] | None = None,
) -> dict[str, float | int | str]:
    """Return the figures of one hydration, and those that `then` takes of the hydrated view."""
    started = time.perf_counter()
    with running(spec, directory, wait=False) as system:
        eventually("run.json", lambda: (system.data / "run.json").exists(), 120)
        reader = Reader(system)
        if reading:
            reader.thread.start()
        samples: list[tuple[float, int]] = []
        while not samples or samples[-1][1] < count:
            position = sum(max(0, p["position"]) for p in system.status()["partitions"])
            samples.append((time.perf_counter(), position))
            time.sleep(0.1)  # the sampling interval
        moving = [s for s in samples if s[1] > 0]
        first, last = moving[0], samples[-1]
        rate = (last[1] - first[1]) / max(0.001, last[0] - first[0])
        figures: dict[str, float | int | str] = {"rows/s": rate, "whole s": last[0] - started}
        figures["ingest MB"] = Meter(system.pid("ingest")).rss_mb()
        figures["serve MB"] = Meter(system.pid("serve")).rss_mb()
        if reading:
            reader.stop.set()
            reader.thread.join()
            figures |= {"reads": str(dict(reader.seen)), "slowest read ms": reader.worst_ms}
        return figures if then is None else figures | then(system)


def measure(directory: Path, quick: bool, count: int = RECORDS) -> Iterator[Result]:
    if quick:
        count = 300_000
    with embedded_kafka(directory / "broker") as kafka:
        fill(kafka.bootstrap, "hydrate", count)
        yield Result(
            "hydration", "bare consumer", {"rows/s": bare_consumer(kafka.bootstrap, "hydrate", count)}
        )
        for mode in ("realtime", "microbatch"):
            spec = document("hydrate", kafka.bootstrap, ingest={"mode": mode})
            figures = hydrate(directory / mode, spec, count, reading=False)
            yield Result("hydration", f"{mode}", figures, ">= 150 K rows/s")
        spec = document("hydrate", kafka.bootstrap)
        figures = hydrate(directory / "reading", spec, count, reading=True)
        yield Result("hydration", "realtime, 50 reads/s meanwhile", figures)
        spec = document("hydrate", kafka.bootstrap, value={"schema": SCHEMA}, transform={"sql": SQL})
        yield Result("hydration", "realtime, SQL", hydrate(directory / "sql", spec, count, reading=False))
        fill(kafka.bootstrap, "hydrate-avro", count, AVRO_VALUE)
        value = {"format": "avro", "schemaFrom": {"inline": AVRO}}
        spec = document("hydrate-avro", kafka.bootstrap, value=value)
        yield Result("hydration", "realtime, Avro", hydrate(directory / "avro", spec, count, reading=False))
        yield Result(
            "hydration", "bare consumer, again", {"rows/s": bare_consumer(kafka.bootstrap, "hydrate", count)}
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qtbench-") as made:
        for result in measure(Path(made), False, chosen.records):
            print(result.line(), flush=True)
