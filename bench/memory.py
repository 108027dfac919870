"""Measure whether memory stays flat: both processes of a node under a steady load with updates, sampled every half minute.

The slope is a least-squares line over the second half of the run: the first half belongs to caches and the JIT.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.freshness import Load, probe
from bench.harness import Meter, Result, document, quantiles
from tests.integration import topics
from tests.integration.system import running
from tests.support.kafka import embedded_kafka


def slope_mb_per_10_minutes(samples: Sequence[tuple[float, float]]) -> float:
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return 600 * sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    minutes = 2 if quick else 22
    with embedded_kafka(directory / "broker") as kafka:
        topics.create(kafka.bootstrap, "soak", 4)
        with running(document("soak", kafka.bootstrap), directory) as system:
            meters = {role: Meter(system.pid(role)) for role in ("serve", "ingest")}
            seen: dict[str, list[tuple[float, float]]] = {"serve": [], "ingest": []}
            started, pids = time.monotonic(), (system.pid("serve"), system.pid("ingest"))
            with Load(kafka.bootstrap, "soak", 1000):
                window = 0
                while time.monotonic() < started + minutes * 60:
                    window += 1
                    samples = list(probe(system.url(), kafka.bootstrap, "soak", 30))
                    for role, meter in meters.items():
                        seen[role].append((time.monotonic() - started, float(meter.rss_mb())))
                    if window % 6 == 0 or quick:
                        rss = {f"{role} MB": values[-1][1] for role, values in seen.items()}
                        yield Result(
                            "soak", f"{window * 30} s", {**quantiles(samples), "n": len(samples), **rss}
                        )
            assert pids == (system.pid("serve"), system.pid("ingest")), "a process was restarted"
            for role, target in (("serve", "<= 150 MB + caches, flat"), ("ingest", "<= 700 MB, flat")):
                half = seen[role][len(seen[role]) // 2 :]
                figures = {"MB": half[-1][1], "MB / 10 min": slope_mb_per_10_minutes(half)}
                yield Result("soak", f"memory of {role}", {**figures}, target)
