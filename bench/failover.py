"""Measure reads while a node dies, hangs or restarts: 200 a second of its keys, through the others and with the client."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Result, document
from tests.integration.faults import answers, end, signal_to, wait_until_well
from tests.integration.readers import Producing, Readers, Seen, quantile
from tests.integration.system import System, running
from tests.support.kafka import embedded_kafka
from tests.support.waiting import eventually

NODES = 3
HANGS_SECONDS = 5.0


def readers_of(system: System, producing: Producing, node: int | None = None) -> Readers:
    """Return readers of the keys whose active replica is on the node, or of all keys."""
    wait_until_well(system, NODES)
    urls = [system.url(each) for each in range(NODES)]
    readers = Readers(urls, producing)
    if node is not None:
        placed = system.get("/v1/placement").json()["partitions"]
        first = {each["partition"] for each in placed if each["addresses"][0] == urls[node]}
        readers.keys = [key for key in readers.keys if producing.partition_of[key] in first]
    return readers


def killed(system: System, producing: Producing, node: int, seconds: float) -> tuple[Seen, float]:
    readers = readers_of(system, producing, node)
    with producing.going_on(), readers.around(system.url(node)), readers.reading() as seen:
        began = time.monotonic()
        signal_to(system, node, signal.SIGKILL)
        time.sleep(seconds)
    eventually("the node answers again", lambda: answers(system.url(node)))
    return seen, began


def hung(system: System, producing: Producing, node: int) -> tuple[Seen, float]:
    readers = readers_of(system, producing, node)
    with producing.going_on(), readers.around(system.url(node)), readers.reading() as seen:
        began = time.monotonic()
        signal_to(system, node, signal.SIGSTOP)
        try:
            time.sleep(HANGS_SECONDS)
        finally:
            signal_to(system, node, signal.SIGCONT)
    return seen, began


def restarted_one_after_the_other(system: System, producing: Producing) -> tuple[Seen, float]:
    readers = readers_of(system, producing)
    with producing.going_on(), readers.reading() as seen:
        began = time.monotonic()
        for node in range(NODES):
            with readers.around(system.url(node)):
                end(system, node, signal.SIGTERM)
            wait_until_well(system, NODES)
    return seen, began


def figures(windows: list[tuple[Seen, float]], *how: str) -> dict[str, float | int | str]:
    ms = sorted(ms for seen, began in windows for ms in seen.ms(*how, since=began))
    names = ("client" if each == "session" else each for each in how)
    failed = [each for seen, _ in windows for each in seen.failed if each.split()[0] in how]
    for each in failed[:5]:
        print(f"  failed: {each}")
    return {
        "how": "+".join(dict.fromkeys(names)),
        "reads": len(ms),
        "failed": len(failed),
        "p50 ms": quantile(ms, 0.5),
        "p99 ms": quantile(ms, 0.99),
        "max ms": ms[-1],
    }


def results(case: str, windows: list[tuple[Seen, float]], target: str) -> Iterator[Result]:
    yield Result("failover", case, figures(windows, "kept", "new"), target)
    yield Result("failover", case, figures(windows, "client", "session"), target)


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    nodes = range(1 if quick else NODES)
    with embedded_kafka(directory / "broker") as kafka:
        producing = Producing(kafka.bootstrap, "failover")
        spec = document("failover", kafka.bootstrap, replicas=NODES, standbyReplicas=1)
        with running(spec, directory / "run", nodes=NODES) as system:
            windows = [killed(system, producing, node, 5 if quick else 10) for node in nodes]
            yield from results("kill -9", windows, "0 failed, p99 <= 500 ms")
            yield Result("failover", "kill -9", figures(windows, "strong"), "0 failed, max <= 1 000 ms")
            windows = [hung(system, producing, node) for node in nodes]
            yield from results(f"SIGSTOP for {HANGS_SECONDS:.0f} s", windows, "0 failed, p99 <= 700 ms")
            windows = [restarted_one_after_the_other(system, producing)]
            yield from results("rolling restart", windows, "0 failed")
