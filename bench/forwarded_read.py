"""Measure point reads that another node answers: two nodes on one core, beside the local read of the same nodes.

Node 0 gets all requests. It answers those for its own keys, and forwards those for the other half of the keys to
node 1. Both have core 0, the load core 1. Capacity is closed loop (wrk, 32 connections), in alternating rounds;
latency is open loop at half of the measured capacity.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop

from bench.harness import Meter, Result, median
from bench.open_loop import open_loop_latency
from bench.point_read import closed_loop
from bench.server import key_of, serve_node, value_of
from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import initial_placement
from queryable_app.serve.node import Node
from queryable_app.wire.disk_format import ReplicaState, Row, encode_row
from queryable_app.wire.partitioners import partition_for

PORTS = (18185, 18186)
PARTITIONS = 4
KEYS = 200_000

WRK_SCRIPT = """
local keys = {}
for key in io.lines("KEYS") do keys[#keys + 1] = "/v1/keys/" .. key end
local n = 0
request = function()
  n = (n * 1103515245 + 12345) % 2147483648
  return wrk.format("GET", keys[n % #keys + 1])
end
"""


def settings(directory: Path, ordinal: int) -> NodeSettings:
    own = directory / f"node-{ordinal}"
    own.mkdir(exist_ok=True)
    addresses = [f"http://127.0.0.1:{port}" for port in PORTS]
    (own / "placement.json").write_text(initial_placement("bench.r1", PARTITIONS, addresses, 1).to_json())
    (own / "token").write_text("between-nodes")
    (own / "spec.json").write_text(
        json.dumps({"kafka": {"bootstrapServers": "127.0.0.1:1"}, "topic": "bench"})
    )
    return NodeSettings(
        name=f"bench-{ordinal}",
        ordinal=ordinal,
        application_id="bench.r1",
        spec_path=str(own / "spec.json"),
        bootstrap_servers="127.0.0.1:1",
        advertised_url=addresses[ordinal],
        data_dir=str(own),
        run_dir=str(own),
        placement_path=str(own / "placement.json"),
        internal_token_path=str(own / "token"),
        http_host="127.0.0.1",
        http_port=PORTS[ordinal],
    )


def fill(node: Node, numbers: range) -> None:
    puts: dict[int, list[tuple[bytes, bytes]]] = {partition: [] for partition in node.replicas.by_partition}
    for number in numbers:
        where = partition_for(key_of(number), "murmur2", PARTITIONS)
        if where in puts:
            row = encode_row(Row(len(puts[where]), 1, 0, value_of(number)))
            puts[where].append((key_of(number), row))
    for partition, rows in puts.items():
        state = ReplicaState(len(rows), True, len(rows), mismatches=(0, 1, 1))
        node.replicas.by_partition[partition].apply(rows, state)


async def serve(directory: Path, ordinal: int) -> None:
    node = Node.open(settings(directory, ordinal))
    fill(node, range(KEYS))
    await node.peers.start()
    await serve_node(node, PORTS[ordinal])
    await node.peers.stop()


@contextmanager
def node(directory: Path, ordinal: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        "taskset",
        "-c",
        "0",
        sys.executable,
        "-m",
        "bench.forwarded_read",
        str(directory),
        str(ordinal),
    ]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


def by_owner() -> tuple[list[bytes], list[bytes]]:
    """Return the keys of node 0 and of node 1."""
    placement = initial_placement("bench.r1", PARTITIONS, ["0", "1"], 1)
    keys: tuple[list[bytes], list[bytes]] = [], []
    for number in range(KEYS):
        key = key_of(number)
        keys[placement.serving[partition_for(key, "murmur2", PARTITIONS)][0]].append(key)
    return keys


def answers(key: bytes) -> None:
    """Wait until node 0 has an answer for the key."""
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORTS[0]}/v1/keys/{key.decode()}", timeout=1):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    if shutil.which("wrk") is None or not hasattr(os, "sched_setaffinity"):
        print("forwarded_read needs Linux and wrk (Debian: apt-get install wrk)")
        return
    seconds, rounds = (3, 1) if quick else (8, 5)
    files, scripts = {}, {}
    for name, keys in zip(("local", "forwarded"), by_owner(), strict=True):
        files[name], scripts[name] = directory / f"{name}.keys", directory / f"{name}.lua"
        files[name].write_bytes(b"\n".join(keys))
        scripts[name].write_text(WRK_SCRIPT.replace("KEYS", str(files[name])))
    rates: dict[str, list[float]] = {"local": [], "forwarded": []}
    costs: dict[str, list[float]] = {"local": [], "forwarded": []}
    with ExitStack() as nodes:
        processes = [nodes.enter_context(node(directory, ordinal)) for ordinal in range(2)]
        for file in files.values():
            answers(file.read_bytes().split()[0])
        for _ in range(rounds):
            for name, script in scripts.items():
                meters = [Meter(process.pid) for process in processes]
                rates[name].append(closed_loop(PORTS[0], script, seconds))
                busy = sum(meter.cpu_percent() for meter in meters) / 100
                costs[name].append(1e6 * busy / rates[name][-1])
        local, forwarded = median(rates["local"]), median(rates["forwarded"])
        for name, target in (("local", ""), ("forwarded", ">= 16 K/s, both nodes on one core")):
            figures = {"requests/s": median(rates[name]), "min": min(rates[name]), "max": max(rates[name])}
            figures["CPU us each"] = median(costs[name])
            yield Result("forwarded_read", name, {**figures}, target)
        yield Result("forwarded_read", "beside local", {"of local": round(forwarded / local, 2)})
        sent = files["forwarded"].read_bytes().split()[:20_000]
        latencies = open_loop_latency(PORTS[0], sent, forwarded / 2, seconds)
        yield Result("forwarded_read", f"open loop at {forwarded / 2:,.0f}/s", {**latencies}, "p99 <= 8 ms")


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
