"""Measure the time to the first answer of `qtopic run` with warm caches and of a node with a million keys on disk, and the
time until a topic of a million records is readable.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import yaml

from bench.harness import Result, document
from tests.integration import topics
from tests.integration.system import System, running
from tests.support.kafka import embedded_kafka
from tests.support.waiting import eventually


def first_answer(directory: Path, nodes: int) -> float:
    """Return the seconds from `qtopic run` with its own broker until every node is ready."""
    directory.mkdir(parents=True)
    file = directory / "topic.yaml"
    spec = document("start", "ignored:9092", replicas=nodes, standbyReplicas=1 if nodes > 1 else 0)
    file.write_text(yaml.safe_dump(spec))
    command = [
        sys.executable,
        "-m",
        "queryable_app.cli",
        "run",
        "-f",
        str(file),
        "--data",
        str(directory / "data"),
    ]
    started = time.perf_counter()
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
        )
    try:
        system = System(process, directory / "data", directory / "log")
        eventually("run.json", lambda: (system.data / "run.json").exists(), 120)
        system.wait_ready(nodes)
        return time.perf_counter() - started
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def serve_again(directory: Path, keys: int) -> tuple[float, float]:
    """Return the seconds from SIGKILL of serve until it answers a read, and of ingest's JVM until a new record is readable."""
    with embedded_kafka(directory / "broker") as kafka:
        topics.create(kafka.bootstrap, "again", 4)
        records = ((b"%016x" % n, b'{"n":%d,"pad":"%080d"}' % (n, n)) for n in range(keys))
        topics.produce(kafka.bootstrap, "again", records, **{"linger.ms": 50})
        with running(document("again", kafka.bootstrap), directory) as system:
            system.at_end(topics.ends(kafka.bootstrap, "again"), 120)
            old = system.pid("serve")
            url = f"{system.url()}/v1/keys/{keys - 1:016x}"
            started = time.perf_counter()
            os.kill(old, signal.SIGKILL)
            with httpx.Client(timeout=5) as client:

                def answered() -> bool:
                    try:
                        return client.get(url).status_code == 200
                    except httpx.TransportError:
                        return False

                eventually("serve answers", answered, 60)
                serve_s = time.perf_counter() - started
                system.wait_ready()
                started = time.perf_counter()
                os.kill(system.pid("ingest"), signal.SIGKILL)
                topics.produce(kafka.bootstrap, "again", [(b"new", b"1")])
                eventually(
                    "new rows are readable",
                    lambda: client.get(f"{system.url()}/v1/keys/new").status_code == 200,
                    90,
                )
                return serve_s, time.perf_counter() - started


def cold_start(directory: Path, records: int, rounds: int) -> list[float]:
    """Return the seconds from `qtopic run` until all records of a topic are readable, with a new data directory in each round."""
    with embedded_kafka(directory / "broker") as kafka:
        topics.create(kafka.bootstrap, "cold", 8)
        rows = ((b"%016x" % n, b'{"n":%d,"pad":"%080d"}' % (n, n)) for n in range(records))
        topics.produce(kafka.bootstrap, "cold", rows, **{"linger.ms": 50})
        ends, seconds = topics.ends(kafka.bootstrap, "cold"), []
        for number in range(rounds):
            started = time.perf_counter()
            with running(document("cold", kafka.bootstrap), directory / str(number)) as system:
                system.at_end(ends, 180)
                seconds.append(time.perf_counter() - started)
        return seconds


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    first_answer(directory / "warm", 1)
    for nodes, target in ((1, "<= 15 s"), (3, "<= 40 s")):
        samples = [first_answer(directory / f"run-{nodes}-{n}", nodes) for n in range(1 if quick else 3)]
        yield Result(
            "startup",
            f"qtopic run, {nodes} node(s), ready",
            {"s": sorted(samples)[len(samples) // 2]},
            target,
        )
    seconds = cold_start(directory / "cold", 100_000 if quick else 1_000_000, 1 if quick else 5)
    yield Result(
        "startup",
        "qtopic run, all of 1 M records readable",
        {"s": sorted(seconds)[len(seconds) // 2], "fewest": min(seconds), "most": max(seconds)},
        "<= 10 s",
    )
    serve_s, ingest_s = serve_again(directory / "again", 100_000 if quick else 1_000_000)
    yield Result("startup", "serve after kill -9, 1 M keys", {"s to an answer": serve_s}, "<= 1 s")
    yield Result("startup", "ingest after kill -9", {"s to new rows": ingest_s}, "<= 8 s")
