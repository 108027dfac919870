"""Measure what a node costs by the size of its view: 1 node, 10 nodes, and 100 nodes with 1 000 partitions.

Node 0 is the product's, in a process of its own. `bench.crowd` stands in for all other nodes. An idle node's CPU is what its
heartbeats cost. Beside it: the size and the cost of what lists the nodes (placement, status), of reads over all partitions, and
the disk that a record takes. docs/capacity.md uses these constants.
"""

from __future__ import annotations

import gc
import json
import math
import random
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import uvloop

from bench.crowd import COUNTS
from bench.harness import Result, median
from bench.server import PARTITIONS, serve_node, settings
from queryable_app.client.placement_map import parse_placement
from queryable_app.contract import NODE_HEADER, PLACEMENT_PATH
from queryable_app.placement.assignment import Placement, initial_placement, refusal
from queryable_app.policy import failure_detector
from queryable_app.serve.node import Node
from queryable_app.wire.disk_format import ReplicaState, Row, encode_row
from queryable_app.wire.partitioners import count_mismatches
from queryable_app.wire.row_frames import ROW, SliceHeader, SliceRow, encode_slice

PORT: Final = 18_200
TOKEN: Final = "between-nodes"
VIEWS: Final = ((1, 10, 1), (10, 100, 2), (100, 1000, 2))
"""Nodes, partitions, replicas of each."""
KEYS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class View:
    """The processes of a view: its node 0, and the others in one."""

    nodes: int
    node: psutil.Process
    http: httpx.Client

    def counts(self) -> dict[str, int]:
        if self.nodes == 1:
            return {}
        counts: dict[str, int] = httpx.get(f"http://127.0.0.1:{PORT + 1}{COUNTS}").json()
        return counts

    def cpu_ms(self) -> float:
        times = self.node.cpu_times()
        return 1000 * (times.user + times.system)

    def cost(self, path: str, times: int, headers: dict[str, str] | None = None) -> dict[str, float | int]:
        """Return the CPU of node 0, the time and the bytes of one request."""
        body = b""
        for _ in range(3):
            body = self.http.get(path, headers=headers).raise_for_status().content
        cpu, began = self.cpu_ms(), time.perf_counter()
        for _ in range(times):
            self.http.get(path, headers=headers).raise_for_status()
        seconds = time.perf_counter() - began
        return {
            "bytes": len(body),
            "CPU ms": round((self.cpu_ms() - cpu) / times, 2),
            "ms": round(1000 * seconds / times, 2),
        }


@contextmanager
def view(directory: Path, nodes: int, partitions: int, replicas: int, capped: bool = True) -> Iterator[View]:
    """Start node 0 and the stand-ins for the others. Without `capped`, each node sends heartbeats to all others at each tick."""
    directory.mkdir()
    addresses = [f"http://127.0.0.1:{PORT + ordinal}" for ordinal in range(nodes)]
    placement = initial_placement("bench.r1", partitions, addresses, replicas)
    node_0 = settings(directory, PORT)  # writes the spec, and a placement of its own
    (directory / "placement.json").write_text(placement.to_json())
    (directory / "token").write_text(TOKEN)
    started = []
    try:
        serve = [
            "taskset",
            "-c",
            "0",
            sys.executable,
            "-m",
            "bench.capacity",
            str(directory),
            str(int(capped)),
        ]
        started.append(subprocess.Popen(serve))
        if nodes > 1:
            ticks = failure_detector.heartbeat_ticks(nodes - 1) if capped else 1
            crowd = ["taskset", "-c", "1", sys.executable, "-m", "bench.crowd", str(directory), str(ticks)]
            started.append(subprocess.Popen(crowd))
        with httpx.Client(base_url=node_0.advertised_url, timeout=30) as http:
            _wait_until_ready(http, nodes)
            yield View(nodes, psutil.Process(started[0].pid), http)
    finally:
        for process in started:
            process.terminate()
            process.wait(10)


def _wait_until_ready(http: httpx.Client, nodes: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            peers = http.get("/v1/status").raise_for_status().json()["peers"]
            if len(peers) == nodes - 1 and all(p["heardMs"] is not None and not p["suspect"] for p in peers):
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError("the nodes have not reached each other")
        time.sleep(0.1)


async def serve(directory: Path, capped: bool) -> None:
    """Run node 0 until SIGTERM."""
    if not capped:
        failure_detector.HEARTBEATS_PER_TICK_MAX = 1_000_000  # type: ignore[misc]
    node = Node.open(replace(settings_of(directory), internal_token_path=str(directory / "token")))
    for replica in node.replicas.by_partition.values():
        replica.apply([], ReplicaState(1, True, 1, mismatches=(0, 1, 1)))
    node.replicas.note_mismatches()
    await node.peers.start()
    gc.freeze()
    await serve_node(node, PORT)
    await node.peers.stop()


def settings_of(directory: Path) -> Any:
    """Return node 0's settings without overwriting the placement."""
    placement = (directory / "placement.json").read_text()
    made = settings(directory, PORT)
    (directory / "placement.json").write_text(placement)
    return made


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    seconds, rounds, times = (4, 1, 20) if quick else (4, 5, 50)
    for nodes, partitions, replicas in VIEWS:
        with view(directory / f"{nodes}", nodes, partitions, replicas) as started:
            figures = _heartbeats(started, seconds, rounds)
            yield Result("capacity", f"{nodes} nodes idle", figures, "<= 3 % of a core")
            for case, path in (
                ("status", "/v1/status"),
                ("/v1/placement", "/v1/placement"),
                ("placement between nodes", PLACEMENT_PATH),
                ("metrics", "/metrics"),
                ("count", "/v1/count"),
                ("approximate count", "/v1/count?approximate=true"),
                ("page of 100 rows", "/v1/scan"),
                ("page of 1 000 rows", "/v1/scan?limit=1000"),
            ):
                before = started.counts()
                cost = started.cost(path, times, {NODE_HEADER: TOKEN})
                figures = {**cost, **_per_request(before, started.counts(), times + 3)}
                yield Result("capacity", f"{nodes} nodes: {case}", figures)
            figures = {"MB": started.node.memory_info().rss >> 20, "descriptors": started.node.num_fds()}
            yield Result("capacity", f"{nodes} nodes: node 0 afterwards", figures)
    nodes, partitions, replicas = VIEWS[-1]
    with view(directory / "uncapped", nodes, partitions, replicas, capped=False) as started:
        figures = _heartbeats(started, seconds, rounds)
        yield Result("capacity", f"{nodes} nodes idle, heartbeats without the cap", figures)
    yield from _placements()
    yield _apply(directory / "apply", 100_000 if quick else 500_000)
    yield _disk(directory / "disk", 100_000 if quick else KEYS)


def _heartbeats(started: View, seconds: float, rounds: int) -> dict[str, float | int | str]:
    """Return the CPU of the idle node in % of a core, and the figures of its heartbeats."""
    time.sleep(2)  # the first heartbeats and their connections
    costs: list[float] = []
    sent: list[float] = []
    received: list[float] = []
    size: list[float] = []
    for _ in range(rounds):
        cpu, counts, began = started.cpu_ms(), started.counts(), time.perf_counter()
        time.sleep(seconds)
        passed, after = time.perf_counter() - began, started.counts()
        costs.append((started.cpu_ms() - cpu) / passed / 10)
        for name, into in (("heartbeats", sent), ("answered", received), ("heartbeat bytes", size)):
            into.append((after.get(name, 0) - counts.get(name, 0)) / passed)
    figures: dict[str, float | int | str] = {
        "CPU %": round(median(costs), 2),
        "min": round(min(costs), 2),
        "max": round(max(costs), 2),
    }
    if started.nodes > 1:
        figures |= {
            "heartbeats sent/s": round(median(sent)),
            "answered/s": round(median(received)),
            "bytes of one": round(median(size) / max(1.0, median(sent))),
            "KB/s sent and received": round(2 * median(size) / 1000, 1),
        }
    return figures


def _per_request(before: dict[str, int], after: dict[str, int], times: int) -> dict[str, float]:
    asked = (after.get("requests", 0) - before.get("requests", 0)) / times
    size = (after.get("request bytes", 0) - before.get("request bytes", 0)) / times
    return {"requests to nodes": round(asked, 1), "KB between nodes": round(size / 1000, 1)} if asked else {}


def _placements() -> Iterator[Result]:
    """Yield the size of the placement, and what it costs a node and a client to take one over."""
    for nodes, partitions, replicas in VIEWS:
        addresses = [f"http://users-r1-{n}.users-r1.default.svc:8080" for n in range(nodes)]
        placement = initial_placement("default.users.r1", partitions, addresses, replicas)
        text = placement.to_json()
        public = json.dumps(_public(placement), separators=(",", ":"))
        figures: dict[str, float | int | str] = {
            "KB between nodes": round(len(text) / 1000, 1),
            "KB to clients": round(len(public) / 1000, 1),
            "encode ms": _milliseconds(placement.to_json),
            "parse and check ms": _milliseconds(lambda: refusal(Placement.from_json(text), placement)),  # noqa: B023
            "client parses ms": _milliseconds(lambda: parse_placement(json.loads(public))),  # noqa: B023
            "KB in memory": round(_memory(lambda: Placement.from_json(text)) / 1000),  # noqa: B023
        }
        yield Result("capacity", f"placement, {partitions} x {nodes}", figures)


def _public(placement: Placement) -> dict[str, Any]:
    """Return the document of `/v1/placement`, as `placement_json` makes it of a node."""
    return {
        "epoch": placement.epoch,
        "applicationId": placement.application_id,
        "partitioner": "murmur2",
        "keyFormat": "string",
        "partitions": [
            {"partition": p, "addresses": [placement.addresses[o] for o in serving], "hydrating": []}
            for p, serving in enumerate(placement.serving)
        ],
    }


def _milliseconds(function: Callable[[], object]) -> float:
    samples = []
    for _ in range(9):
        began = time.perf_counter()
        function()
        samples.append(1000 * (time.perf_counter() - began))
    return round(median(samples), 2)


def _memory(function: Callable[[], object]) -> int:
    tracemalloc.start()
    kept = function()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return size


def _disk(directory: Path, keys: int) -> Result:
    """Return the bytes on disk of a key, written once, and after all keys have been written three times more."""
    directory.mkdir()
    made = settings(directory, PORT)
    node = Node.open(made)
    store = node.replicas.by_partition[0].store
    dice = random.Random(1)
    figures: dict[str, float | int | str] = {"bytes of key and value": 16 + len(_value(random.Random(1)))}
    position = 0
    most = 0
    for name, writes in (("once", 1), ("4 times", 3)):
        for _ in range(writes):
            for start in range(0, keys, 1000):
                numbers = (n * 2654435761 % 2**48 for n in range(start, start + 1000))
                puts = [
                    (b"%016x" % number, encode_row(Row(position + n, 1, 0, _value(dice))))
                    for n, number in enumerate(numbers)
                ]
                position += len(puts)
                store.apply(puts, ReplicaState(position, True, position, mismatches=(0, 1, 1)))
                if start % 100_000 == 0:
                    most = max(most, _size(Path(made.data_dir)))
        figures[f"bytes a key, written {name}"] = round(_size(Path(made.data_dir)) / keys)
    figures["at most"] = math.ceil(max(most, _size(Path(made.data_dir))) / keys)
    node.replicas.close()
    figures["after closing"] = round(_size(Path(made.data_dir)) / keys)
    return Result("capacity", f"disk of {keys:,} keys", figures)


def _apply(directory: Path, records: int) -> Result:
    """Return the CPU of serve for a record: a slice of 1 000 rows is checked, written to RocksDB, and its position noted."""
    directory.mkdir()
    node = Node.open(settings(directory, PORT))
    node.replicas.by_partition[0].accepts_slices = True
    dice = random.Random(1)
    slices = []
    for start in range(0, records, 1000):
        keys = [b"%016x" % (n * 2654435761 % 2**48) for n in range(start, start + 1000)]
        rows = [
            SliceRow(key, encode_row(Row(start + n, 1, 0, _value(dice))), ROW, start + n)
            for n, key in enumerate(keys)
        ]
        mismatches = count_mismatches(keys, 0, PARTITIONS)
        slices.append(
            encode_slice(SliceHeader(0, start, start + 999, 1, 1000, 0, 0, 0, *mismatches), rows)[4:]
        )
    cpu = time.process_time()
    for each in slices:
        node.slices.apply(each)
    cpu = time.process_time() - cpu
    assert node.replicas.by_partition[0].position == records, node.replicas.by_partition[0].failed
    node.replicas.close()
    return Result(
        "capacity", "serve applies a record", {"CPU us, all threads": round(1e6 * cpu / records, 2)}
    )


def _value(dice: random.Random) -> bytes:
    """Return 100 bytes of JSON that hardly compresses."""
    return b'{"id":"%s","amount":12345.67}' % dice.randbytes(36).hex().encode()


def _size(directory: Path) -> int:
    total = 0
    for entry in directory.rglob("*"):
        with suppress(FileNotFoundError):  # a compaction has removed it
            total += entry.stat().st_blocks * 512 * entry.is_file()
    return total


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), bool(int(sys.argv[2]))))
