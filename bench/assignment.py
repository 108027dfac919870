"""Measure how long freshness stops when a node gains or loses partitions.

Two nodes share six partitions at 200 msg/s. `qtopic standby` adds the other node's partitions to each node, and removes them
again. Probes continue, as in `freshness`. A changed assignment starts a new Spark query on both nodes at once. The maximum is
the longest time until a record was readable, from a second before the change until a second after it settled.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.freshness import Load, probe
from bench.harness import Result, document, quantiles
from tests.integration import topics
from tests.integration.system import System, running
from tests.support.kafka import embedded_kafka

PARTITIONS, RATE = 6, 200
AROUND_SECONDS = 1.0


def during(system: System, bootstrap: str, what: Callable[[], object]) -> list[float]:
    """Return the samples from shortly before until shortly after the change."""
    samples: list[float] = []

    def act() -> None:
        time.sleep(AROUND_SECONDS)  # the samples before
        what()

    acting = threading.Thread(target=act)
    acting.start()
    while acting.is_alive():
        samples += probe(system.url(), bootstrap, "moved", 0.5)
    return samples + list(probe(system.url(), bootstrap, "moved", AROUND_SECONDS))


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    with embedded_kafka(directory / "broker") as kafka:
        topics.create(kafka.bootstrap, "moved", PARTITIONS)
        spec = document("moved", kafka.bootstrap, replicas=2)
        with running(spec, directory / "moved", nodes=2) as system, Load(kafka.bootstrap, "moved", RATE):
            list(probe(system.url(), kafka.bootstrap, "moved", 10))  # warms the JVM
            still = during(system, kafka.bootstrap, lambda: time.sleep(5))
            yield Result("assignment", "nothing changes", {**quantiles(still), "n": len(still)})
            for number in range(2 if quick else 8):
                standby = (number + 1) % 2
                command = [sys.executable, "-m", "queryable_app.cli", "standby", str(standby)]
                change = partial(
                    subprocess.run, [*command, "--data", str(system.data)], check=True, capture_output=True
                )
                samples = during(system, kafka.bootstrap, change)
                case = f"change {number + 1}: partitions {'gained' if standby else 'lost'}"
                yield Result("assignment", case, {**quantiles(samples), "n": len(samples)}, "max <= 1000 ms")
