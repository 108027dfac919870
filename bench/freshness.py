"""Measure the age of what a reader sees: produce a record, and poll its key over HTTP until the answer is that record.

A steady load of other keys runs at the stated rate; twenty times a second a probe record is produced and its key polled
on a kept-alive connection of its own, from the moment of produce() on. The figure is produce() → the first answer that
shows it, so it includes the producer, the broker, Spark, the store and HTTP.
"""

from __future__ import annotations

import http.client
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Meter, Result, document, quantiles
from tests.integration import topics
from tests.integration.system import System, running
from tests.support.kafka import embedded_kafka

TARGETS = {
    (1000, "realtime"): "p50 <= 5, p99 <= 40 ms",
    (4, "realtime"): "p99 <= 15 ms",
    (1000, "microbatch"): "p50 <= 200 ms",
}
VALUE = b'{"name":"customer","status":"active","amount":12345.67,"city":"Munich"}'


class Load:
    """Produce records at a steady rate, with keys over all partitions, from a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, per_second: int) -> None:
        self.bootstrap, self.topic, self.per_second = bootstrap, topic, per_second
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        client = topics.producer(self.bootstrap, **{"linger.ms": 0 if self.per_second <= 1000 else 1})
        started, sent = time.perf_counter(), 0
        while not self.stop.is_set():
            due = int((time.perf_counter() - started) * self.per_second)
            while sent < due:
                sent += 1
                key = b"%016x" % (sent * 2654435761 % 2**48)
                client.produce(self.topic, key=key, value=VALUE)
            client.poll(0)
            self.stop.wait(0.002 if self.per_second > 100 else 0.05)
        client.flush(30)

    def __enter__(self) -> Load:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()


def wait_until_readable(connection: http.client.HTTPConnection, key: str, value: bytes) -> None:
    """Poll a key until the answer shows the value."""
    deadline = time.monotonic() + 120  # the first one waits for Spark's start
    while True:
        connection.request("GET", f"/v1/keys/{key}")
        answer = connection.getresponse()
        if answer.read() == value and answer.status == 200:
            return
        if time.monotonic() > deadline:
            raise AssertionError("a probe was not readable within 120 s")
        time.sleep(0.0003)  # the pace of the polls


def probe(url: str, bootstrap: str, topic: str, seconds: float, pause_s: float = 0.05) -> Iterator[float]:
    """Yield the milliseconds from produce() to the first answer with the record, one per probe."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port or 80, timeout=10)
    client = topics.producer(bootstrap, **{"linger.ms": 0})
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        key, value = f"probe-{number % 64}", b'{"probe":%d}' % time.time_ns()
        born = time.perf_counter()
        client.produce(topic, key=key.encode(), value=value)
        client.poll(0)
        wait_until_readable(connection, key, value)
        yield (time.perf_counter() - born) * 1000
        time.sleep(pause_s)
    client.flush(10)
    connection.close()


def require_no_bad_records(system: System) -> None:
    """Fail if the node could not decode a record: a bad record costs the node more than a good one."""
    replicas = system.status()["partitions"]
    bad = [(replica["partition"], replica["lastBad"]) for replica in replicas if replica["bad"]]
    assert not bad, f"partitions with bad records: {bad}"


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    seconds = 10 if quick else 30
    with embedded_kafka(directory / "broker") as kafka:
        for mode in ("realtime", "microbatch"):
            for partitions in (4, 12):
                topic = f"fresh-{mode}-{partitions}"
                topics.create(kafka.bootstrap, topic, partitions)
                spec = document(topic, kafka.bootstrap, ingest={"mode": mode})
                with running(spec, directory / topic) as system:
                    with Load(kafka.bootstrap, topic, 1000):
                        list(probe(system.url(), kafka.bootstrap, topic, 10))  # warms the JVM
                    for rate in (0, 4, 1000, 5000):
                        yield _case(system, kafka.bootstrap, topic, mode, partitions, rate, seconds)
                    require_no_bad_records(system)


def _case(
    system: System, bootstrap: str, topic: str, mode: str, partitions: int, rate: int, seconds: int
) -> Result:
    serve, ingest = Meter(system.pid("serve")), Meter(system.pid("ingest"))
    case = f"{mode}, {partitions} partitions, {rate} msg/s"
    figures: dict[str, float | int | str]
    if rate == 0:
        time.sleep(seconds)
        figures = {"serve CPU %": serve.cpu_percent(), "ingest CPU %": ingest.cpu_percent()}
        return Result("freshness", case, figures, "idle node <= 3 % of a core" if mode == "realtime" else "")
    if rate == 4:  # the probes themselves are the load
        samples = list(probe(system.url(), bootstrap, topic, seconds * 2, 0.25))
    else:
        with Load(bootstrap, topic, rate):
            samples = list(probe(system.url(), bootstrap, topic, seconds))
    figures = {**quantiles(samples), "n": len(samples)}
    figures |= {"serve CPU %": serve.cpu_percent(), "ingest CPU %": ingest.cpu_percent()}
    return Result("freshness", case, figures, TARGETS.get((rate, mode), ""))
