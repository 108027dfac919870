"""Measure aggregates by record key: records/s into windows and sessions, freshness, and memory with many groups.

The topic is full when a view starts; the rate is that of the positions while they go from a tenth to nine tenths of the topic,
and memory is measured at that point. The cases take turns, a round each, so that a noisy machine affects all alike. For
freshness, twenty times a second a record of a new group is produced, and its key polled over HTTP until it is there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from bench.harness import Meter, Result, document, median, quantiles
from bench.rekey import probes
from tests.integration import topics
from tests.integration.system import System, running
from tests.support.kafka import embedded_kafka

PARTITIONS: Final = 4
GROUPS: Final = 10_000
COUNT: Final = [{"name": "n", "op": "count"}]
WINDOWS: Final[Mapping[str, Mapping[str, Any]]] = {
    "no window": {},
    "tumbling, 1 m": {"size": "1m"},
    "hopping, 5 m every 1 m": {"size": "5m", "slide": "1m"},
    "sessions, gap 30 s": {"sessionGap": "30s"},
}
Figures = dict[str, float | int | str]


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    records, rounds = (200_000, 1) if quick else (1_000_000, 3)
    with embedded_kafka(directory / "broker") as kafka:
        _fill(kafka.bootstrap, "views", records, GROUPS)
        found: dict[str, list[Figures]] = {}
        for number in range(rounds):
            for name, window in WINDOWS.items():
                place = directory / f"{number}-{name.split(',')[0]}"
                with running(_view("views", kafka.bootstrap, window), place, wait=False) as system:
                    found.setdefault(name, []).append(_filled(system, records))
                    if number == rounds - 1 and not window:
                        yield _freshness(system, kafka.bootstrap, 10 if quick else 60)
        for name, runs in found.items():
            yield Result(
                "windows", f"{name}, {GROUPS:,} groups", {key: _median(runs, key) for key in runs[0]}
            )
        for groups in (100_000,) if quick else (1_000_000, 10_000_000):
            topic = f"groups-{groups}"
            _fill(kafka.bootstrap, topic, groups, groups)
            with running(_view(topic, kafka.bootstrap, {}), directory / topic, wait=False) as system:
                yield Result("windows", f"count, {groups:,} groups", _filled(system, groups))


def _median(runs: list[Figures], key: str) -> float:
    return median([float(run[key]) for run in runs])


def _view(topic: str, bootstrap: str, window: Mapping[str, Any]) -> dict[str, Any]:
    aggregate = {"columns": COUNT, **({"window": dict(window)} if window else {})}
    return document(topic, bootstrap, view={"kind": "aggregate", "aggregate": aggregate})


def _fill(bootstrap: str, topic: str, records: int, groups: int) -> None:
    topics.create(bootstrap, topic, PARTITIONS)
    made = ((b"key-%08d" % (n * 2654435761 % groups), b'{"n":%d}' % n) for n in range(records))
    topics.produce(bootstrap, topic, made, **{"linger.ms": 50, "compression.type": "lz4"})


def _filled(system: System, records: int) -> Figures:
    """Wait for most of the topic, and return its rate and what the processes took meanwhile."""
    deadline = time.monotonic() + 600
    begun: tuple[float, int] | None = None
    meters: dict[str, Meter] = {}
    while True:
        assert time.monotonic() < deadline, system.tail()
        read, now = _position(system), time.perf_counter()
        if begun is None and read >= records // 10:
            begun = now, read
            meters = {role: Meter(system.pid(role)) for role in ("serve", "ingest")}
        if begun is not None and read >= records * 9 // 10:
            break
        time.sleep(0.1)  # the pace of the looks
    figures: Figures = {"records/s": round((read - begun[1]) / (now - begun[0]))}
    for role, meter in meters.items():
        figures[f"{role} CPU %"] = meter.cpu_percent()
        figures[f"{role} MB"] = meter.rss_mb()
    return figures


def _position(system: System) -> int:
    """Return how many records the replicas have applied; 0 while the node does not answer."""
    try:
        return sum(max(0, int(each["position"])) for each in system.status()["partitions"])
    except (OSError, httpx.HTTPError, ValueError):
        return 0


def _freshness(system: System, bootstrap: str, seconds: float) -> Result:
    def record(_: int, group: str) -> tuple[bytes, bytes]:
        return group.encode(), b'{"n":1}'

    list(probes(system.url(), bootstrap, "views", 10, record))  # warms the JVM
    samples = list(probes(system.url(), bootstrap, "views", seconds, record))
    return Result(
        "windows", "freshness by record key", {**quantiles(samples), "n": len(samples)}, "p50 <= 8 ms"
    )
