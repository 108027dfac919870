"""Measure the point reads of a pod with one node and with two workers: CPU for each read, and reads a second.

Each process of the pod has a core, which it shares with its part of the load: a core for one node, two cores for two workers.
So the throughput is what pod and load have together, and the CPU for each read is the figure for other machines. The load has
few or many connections for each core. Aware of the placement, each connection reads keys that its worker hosts; unaware, it
goes to the front port, and half of the reads are forwarded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.forwarded_read import WRK_SCRIPT
from bench.harness import Result, median
from bench.server import TOPIC, key_of, value_of
from queryable_app.contract import NodeSettings, worker_settings
from queryable_app.placement.assignment import initial_placement
from queryable_app.serve.node import Node
from queryable_app.wire.disk_format import ReplicaState, Row, encode_row
from queryable_app.wire.partitioners import partition_for

FRONT = 18460
OWN = (18461, 18462)
PARTITIONS = 4
KEYS = 100_000


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    workers: int
    aware: bool
    connections: int
    """The load's connections to each core."""


CASES = tuple(
    Case(f"{name}, {connections} connections", workers, aware, connections)
    for connections in (4, 32)
    for name, workers, aware in (
        ("one node", 1, True),
        ("two workers, aware", 2, True),
        ("two workers, front port", 2, False),
    )
)


@dataclass
class Round:
    """What one run of the load measured."""

    per_second: float
    server_us: float
    """User and system time of the pod's processes for each read."""
    load_us: float
    """The same of the load's processes."""
    forwarded: float
    """The share of reads that a worker sent to its sibling."""


def pod_settings(directory: Path, workers: int) -> NodeSettings:
    home = directory / f"pod-{workers}"
    home.mkdir(exist_ok=True)
    ports = OWN if workers > 1 else (FRONT,)
    addresses = [f"http://127.0.0.1:{port}" for port in ports]
    placement, spec, token = home / "placement.json", home / "spec.json", home / "token"
    placement.write_text(initial_placement("bench.r1", PARTITIONS, addresses, 1).to_json())
    spec.write_text(json.dumps({"kafka": {"bootstrapServers": "127.0.0.1:1"}, "topic": TOPIC}))
    token.write_text("between-nodes")
    return NodeSettings(
        name="bench-0",
        ordinal=0,
        application_id="bench.r1",
        spec_path=str(spec),
        bootstrap_servers="127.0.0.1:1",
        advertised_url=f"http://127.0.0.1:{FRONT}",
        data_dir=str(home / "data"),
        run_dir=str(home / "run"),
        placement_path=str(placement),
        http_host="127.0.0.1",
        http_port=FRONT,
        worker_ports=",".join(map(str, OWN)) if workers > 1 else "",
        internal_token_path=str(token),
    )


def partition_of(number: int) -> int:
    return partition_for(key_of(number), "murmur2", PARTITIONS)


def fill(settings: NodeSettings) -> list[list[bytes]]:
    """Fill the stores of a pod, and return the keys that each of its nodes hosts."""
    hosted = []
    now_ms = time.time_ns() // 1_000_000
    for worker in worker_settings(settings):
        node = Node.open(worker)
        keys = []
        for partition, replica in node.replicas.by_partition.items():
            numbers = [number for number in range(KEYS) if partition_of(number) == partition]
            keys += [key_of(number) for number in numbers]
            for start in range(0, len(numbers), 1000):
                rows = [
                    (key_of(n), encode_row(Row(offset, now_ms, 0, value_of(n))))
                    for offset, n in enumerate(numbers[start : start + 1000], start)
                ]
                at = start + len(rows)
                replica.store.apply(rows, ReplicaState(at, True, at, mismatches=(0, 1, 1)))
        node.replicas.close()
        hosted.append(keys)
    return hosted


@contextmanager
def pod(settings: NodeSettings, keys: Sequence[Sequence[bytes]]) -> Iterator[psutil.Process]:
    """Run the pod's serve, and yield its process once every node answers."""
    command = [sys.executable, "-m", "queryable_app.serve"]
    process = subprocess.Popen(command, env={**os.environ, **settings.to_env()}, stderr=subprocess.DEVNULL)
    try:
        for worker, hosted in zip(worker_settings(settings), keys, strict=True):
            url = f"http://127.0.0.1:{worker.http_port}/v1/keys/{hosted[0].decode()}"
            deadline = time.monotonic() + 30
            while True:
                try:
                    with urllib.request.urlopen(url, timeout=1):
                        break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
        time.sleep(1)  # heartbeats, and the front port
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def cpu_seconds(family: Sequence[psutil.Process]) -> float:
    return sum(t.user + t.system for t in (member.cpu_times() for member in family))


def forwards(ports: Sequence[int]) -> float:
    """Return how many reads the nodes at these ports have sent to another node."""
    total = 0.0
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/metrics", timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("qt_forwards_total"):
                total += float(line.rpartition(" ")[2])
    return total


def measure_round(
    process: psutil.Process, settings: NodeSettings, case: Case, scripts: Sequence[Path], seconds: int
) -> Round:
    """Run a load on the core of each node: of the keys that it hosts, or of all keys through the front port."""
    ports = [worker.http_port for worker in worker_settings(settings)]
    everything = [(FRONT, scripts[-1])] * len(ports)
    targets = list(zip(ports, scripts[: len(ports)], strict=True)) if case.aware else everything
    family = [process, *process.children(recursive=True)]
    for core, node in enumerate(family[-len(ports) :]):
        node.cpu_affinity([core])
    sent = forwards(ports)
    before, load_before = cpu_seconds(family), os.times()
    loads = []
    for core, (port, script) in enumerate(targets):
        options = f"-t1 -c{case.connections} -d{seconds}s -s {script}"
        command = ["taskset", "-c", str(core), "wrk", *options.split(" ")]
        url = f"http://127.0.0.1:{port}"
        loads.append(subprocess.Popen([*command, url], stdout=subprocess.PIPE, text=True))
    outputs = [load.communicate()[0] for load in loads]
    spent, load_after = cpu_seconds(family) - before, os.times()
    rates, reads = 0.0, 0
    for output in outputs:
        assert "Non-2xx" not in output, output
        rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
        count = re.search(r"(\d+) requests in", output)
        assert rate is not None and count is not None, output  # noqa: PT018
        rates += float(rate[1])
        reads += int(count[1])
    loaded = sum(load_after[2:4]) - sum(load_before[2:4])
    return Round(rates, 1e6 * spent / reads, 1e6 * loaded / reads, (forwards(ports) - sent) / reads)


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    if shutil.which("wrk") is None:
        print("workers needs wrk (Debian: apt-get install wrk)")
        return
    seconds, rounds = (3, 5) if quick else (8, 7)
    settings = {workers: pod_settings(directory, workers) for workers in (1, 2)}
    keys = {workers: fill(each) for workers, each in settings.items()}
    scripts = {}
    for workers, hosted in keys.items():
        lists = hosted if workers == 1 else [*hosted, [key for each in hosted for key in each]]
        scripts[workers] = [script(directory, f"{workers}-{n}", each) for n, each in enumerate(lists)]
    seen: dict[Case, list[Round]] = {case: [] for case in CASES}
    for _ in range(rounds):
        for workers, of_pod in settings.items():
            with pod(of_pod, keys[workers]) as process:
                for case in (case for case in CASES if case.workers == workers):
                    seen[case].append(measure_round(process, of_pod, case, scripts[workers], seconds))
    for case, all_rounds in seen.items():
        figures: dict[str, float | int | str] = {
            "reads/s": median([each.per_second for each in all_rounds]),
            "pod us/read": median([each.server_us for each in all_rounds]),
            "load us/read": median([each.load_us for each in all_rounds]),
            "forwarded": f"{100 * median([each.forwarded for each in all_rounds]):.0f} %",
        }
        yield Result("workers", case.name, figures)
    for at in range(0, len(CASES), 3):
        one, *others = CASES[at : at + 3]
        for case in others:
            yield Result(
                "workers", f"{case.name}, beside one node", *compared(seen[case], seen[one], case.aware)
            )


def compared(
    rounds: Sequence[Round], of_one_node: Sequence[Round], aware: bool
) -> tuple[dict[str, float | int | str], str]:
    """Return ratios, round by round, and the target."""
    pairs = list(zip(rounds, of_one_node, strict=True))
    rate = [a.per_second / b.per_second for a, b in pairs]
    cpu = [a.server_us / b.server_us for a, b in pairs]
    return {
        "x reads/s": f"{median(rate):.2f} ({min(rate):.2f} to {max(rate):.2f})",
        "x CPU for each read": f"{median(cpu):.2f} ({min(cpu):.2f} to {max(cpu):.2f})",
    }, ">= 1.8 x reads/s" if aware else ""


def script(directory: Path, name: str, keys: Sequence[bytes]) -> Path:
    lines, lua = directory / f"keys-{name}", directory / f"wrk-{name}.lua"
    lines.write_bytes(b"\n".join(keys) + b"\n")
    lua.write_text(WRK_SCRIPT.replace("KEYS", str(lines)))
    return lua
