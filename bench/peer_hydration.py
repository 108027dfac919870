"""Measure how fast a node fetches its replicas from a peer, and what readers of that peer see meanwhile.

Two million records (16 B keys, 100 B JSON that hardly compresses, 4 partitions) are in the stores of node A, which a process of
its own serves. Another process builds all four replicas from it, over HTTP, until each is verified and ready to be opened,
several times over. `cp` copies the same files beside it, as the limit of the disk. The rate from the topic is that of
docs/benchmarks.md.

    python -m bench peer_hydration
    python -m bench.peer_hydration --records 500000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import uvloop

from bench.harness import Meter, Result, median
from bench.open_loop import open_loop_latency
from bench.point_read import random_keys
from bench.server import PARTITIONS, key_of, settings
from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import Placement
from queryable_app.serve.node import Node
from queryable_app.wire.disk_format import ReplicaState, Row, encode_row
from queryable_app.wire.partitioners import partition_for

PORT = 18_084
READS_PER_SECOND = 500
RECORDS = 2_000_000
TOPIC_ROWS_PER_SECOND = 211_000


def node_settings(directory: Path, mb_per_second: int) -> tuple[NodeSettings, NodeSettings]:
    """Return the settings of node A, which serves everything, and of node B, which hydrates the same partitions."""
    addresses = (f"http://127.0.0.1:{PORT}", f"http://127.0.0.1:{PORT + 1}")
    placement = Placement(1, "bench.r1", addresses, ((0,),) * PARTITIONS, ((1,),) * PARTITIONS)
    (directory / "token").write_text("bench")
    (directory / "two-nodes.json").write_text(placement.to_json())
    node_a = replace(
        settings(directory / "a", PORT),
        placement_path=str(directory / "two-nodes.json"),
        internal_token_path=str(directory / "token"),
        peer_copy_mb_per_second_max=mb_per_second,
    )
    data = str(directory / "b")
    node_b = replace(
        node_a, name="bench-1", ordinal=1, advertised_url=addresses[1], data_dir=data, run_dir=data
    )
    return node_a, node_b


def fill(directory: Path, records: int) -> None:
    """Write the rows slice by slice, as ingest does."""
    node = Node.open(settings(directory, 1))
    dice = random.Random(1)
    by_partition: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for number in range(records):
        by_partition[partition_for(key_of(number), "murmur2", PARTITIONS)].append(number)
    for partition, numbers in enumerate(by_partition):
        store = node.replicas.by_partition[partition].store
        for start in range(0, len(numbers), 1000):
            puts = [
                (key_of(number), encode_row(Row(offset, 1, 0, b'{"id":"%s","amount":12345.67}' % text)))
                for offset, number in enumerate(numbers[start : start + 1000], start)
                if (text := dice.randbytes(36).hex().encode())
            ]
            position = start + len(puts)
            store.apply(puts, ReplicaState(position, True, position, mismatches=(0, 1, 1)))
        store.compact(b"", b"g")
    node.replicas.close()


@contextmanager
def served(node: NodeSettings) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "queryable_app.serve"]
    process = subprocess.Popen(command, env=os.environ | node.to_env(), stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/livez", timeout=1).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait(20)


async def copy_all(node: Node, into: Path) -> None:
    places = {partition: into / f"p{partition:04d}" for partition in range(PARTITIONS)}
    done = await asyncio.gather(*(node.hydration.fetch(p, place) for p, place in places.items()))
    assert all(done), "a replica was not fetched"


def copy_again_and_again(seconds: float) -> None:
    """Copy at least once, in node B's process, and print the duration of each copy."""
    node = Node.open(NodeSettings.from_env())
    into = Path(node.settings.data_dir, "fetched")
    loop, took = uvloop.new_event_loop(), list[float]()
    until = time.monotonic() + seconds
    while not took or time.monotonic() < until:
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir()
        started = time.perf_counter()
        loop.run_until_complete(copy_all(node, into))
        took.append(time.perf_counter() - started)
    node.replicas.close()
    print(json.dumps(took))


@contextmanager
def copying(node: NodeSettings, seconds: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.peer_hydration", "--copy-for", str(seconds)]
    environment, quiet = os.environ | node.to_env(), subprocess.DEVNULL
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=quiet, text=True
    ) as process:
        yield process


def took(process: subprocess.Popen[str]) -> list[float]:
    out, _ = process.communicate(timeout=300)
    seconds: list[float] = json.loads(out)
    return seconds


def reads(seconds: float, keys: int) -> dict[str, float]:
    """Measure the latency of point reads at node A, open loop."""
    sent = random_keys(keys, 5_000)
    quantiles = open_loop_latency(PORT, sent, READS_PER_SECOND, seconds, core=None)
    return {f"{name} ms": value for name, value in quantiles.items()}


def rates(records: int, size: int, seconds: float) -> dict[str, float | int | str]:
    return {
        "s": round(seconds, 2),
        "MB/s": size / seconds / 1e6,
        "rows/s": records / seconds,
        "x topic": round(records / seconds / TOPIC_ROWS_PER_SECOND, 1),
    }


def measure(directory: Path, quick: bool, records: int | None = None) -> Iterator[Result]:
    records = records or (300_000 if quick else RECORDS)
    seconds = 3.0 if quick else 10.0
    name = "peer_hydration"
    for node in "ab":
        (directory / node).mkdir()
    fill(directory / "a", records)
    stores = directory / "a" / "bench.r1"
    size = sum(file.stat().st_size for file in stores.glob("p*/*"))
    copied = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run(["cp", "-r", str(stores), str(directory / "cp")], check=True)
        copied.append(time.perf_counter() - started)
        shutil.rmtree(directory / "cp")
    yield Result(name, "cp of the same files", rates(records, size, median(copied)))
    default = settings(directory / "a", PORT).peer_copy_mb_per_second_max
    for case, limit in ((f"limit of {default} MB/s", default), ("no limit", 10_000)):
        node_a, node_b = node_settings(directory, limit)
        with served(node_a) as process:
            quiet = reads(seconds, records)
            meter = Meter(process.pid)
            with copying(node_b, seconds + 1) as again:
                busy = reads(seconds, records)
                all_of_them = took(again)
            cpu = meter.cpu_percent()
        target = ">= 5 x the topic's 211 K/s, or >= 70 % of cp"
        yield Result(name, case, rates(records, size, median(all_of_them)), target)
        figures = {"reads/s": READS_PER_SECOND, **busy, **{f"before, {k}": v for k, v in quiet.items()}}
        yield Result(name, f"{case}: reads at A meanwhile", {**figures, "A's CPU %": cpu})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--copy-for", type=float, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.copy_for is not None:
        copy_again_and_again(chosen.copy_for)
    else:
        with tempfile.TemporaryDirectory(prefix="qtbench-") as made:
            for result in measure(Path(made), False, chosen.records):
                print(result.line(), flush=True)
