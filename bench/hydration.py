"""Measure how fast a node hydrates from a topic, and what readers see meanwhile.

Two million records (16 B keys, 100 B JSON) are in the topic before the node starts. The rate is taken from the first to
the last row, at two samples of the positions, so that it excludes the start of the JVM; the table has the whole time too. A bare
consumer of the same topic runs before and after, to measure the machine.

    python -m bench hydration
    python -m bench.hydration --records 10000000
    python -m bench.hydration --records 300000 --formats 2  (two rounds of JSON, Avro and Protobuf, in turns)
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
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

PROTOBUF = """syntax = "proto3";
message Customer { string name = 1; string status = 2; double amount = 3; string city = 4; string pad = 5; }"""


def fill(bootstrap: str, topic: str, count: int) -> None:
    topics.create(bootstrap, topic, PARTITIONS)
    value = b'{"name":"customer","status":"active","amount":12345.67,"city":"Munich","pad":"%012d"}'
    records = ((b"%016x" % (n * 2654435761 % 2**48), value % n) for n in range(count))
    topics.produce(bootstrap, topic, records, **{"linger.ms": 50, "compression.type": "lz4"})


def fill_avro(bootstrap: str, topic: str, count: int) -> None:
    """Write the records of `fill` as Avro."""
    topics.create(bootstrap, topic, PARTITIONS)
    value = b"\x10customer\x0cactive" + struct.pack("<d", 12345.67) + b"\x0cMunich\x18%012d"
    records = (
        (b"%016x" % (n * 2654435761 % 2**48), value.replace(b"%012d", b"%012d" % n)) for n in range(count)
    )
    topics.produce(bootstrap, topic, records, **{"linger.ms": 50, "compression.type": "lz4"})


def fill_protobuf(bootstrap: str, topic: str, count: int) -> None:
    """Write the records of `fill` as Protobuf."""
    topics.create(bootstrap, topic, PARTITIONS)
    value = (
        b"\x0a\x08customer\x12\x06active\x19" + struct.pack("<d", 12345.67) + b"\x22\x06Munich\x2a\x0c%012d"
    )
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


def hydrate(directory: Path, spec: dict[str, Any], count: int, reading: bool) -> dict[str, float | int | str]:
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
        return figures


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
        fill_avro(kafka.bootstrap, "hydrate-avro", count)
        value = {"format": "avro", "schemaFrom": {"inline": AVRO}}
        spec = document("hydrate-avro", kafka.bootstrap, value=value)
        yield Result("hydration", "realtime, Avro", hydrate(directory / "avro", spec, count, reading=False))
        yield Result(
            "hydration", "bare consumer, again", {"rows/s": bare_consumer(kafka.bootstrap, "hydrate", count)}
        )


def compare_formats(directory: Path, rounds: int, count: int) -> Iterator[Result]:
    """Ingest the same records as JSON, Avro and Protobuf, in turns."""
    values: dict[str, dict[str, Any]] = {
        "json": {},
        "avro": {"format": "avro", "schemaFrom": {"inline": AVRO}},
        "protobuf": {"format": "protobuf", "schemaFrom": {"inline": PROTOBUF}},
    }
    with embedded_kafka(directory / "broker") as kafka:
        fill(kafka.bootstrap, "json", count)
        fill_avro(kafka.bootstrap, "avro", count)
        fill_protobuf(kafka.bootstrap, "protobuf", count)
        for turn in range(rounds):
            for format, value in values.items():
                spec = document(format, kafka.bootstrap, value=value)
                yield Result(
                    "hydration", format, hydrate(directory / f"{format}-{turn}", spec, count, reading=False)
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--formats", type=int, metavar="ROUNDS")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qtbench-") as made:
        results = (
            compare_formats(Path(made), chosen.formats, chosen.records)
            if chosen.formats
            else measure(Path(made), False, chosen.records)
        )
        for result in results:
            print(result.line(), flush=True)
