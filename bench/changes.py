"""Measure the change feed: how long a change takes to reach a thousand clients, and what logging changes costs a replica."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final, cast

import psutil
import uvloop

from bench.harness import Result, median, quantiles
from bench.server import key_of, serve_node, settings
from queryable_app.platform.processes import free_ports
from queryable_app.serve.node import Node
from queryable_app.wire.disk_format import ReplicaState, Row, encode_row
from queryable_app.wire.row_frames import ROW, SliceHeader, SliceRow, encode_slice

RECORDS_PER_SECOND: Final = 1000
SLICE_ROWS: Final = 10
_TIME: Final = b'"at":'
_SAMPLED: Final = 20  # each client looks at one change in so many
_ROUNDS_OF_WRITES: Final = 5
_WRITTEN_ROWS: Final = 200_000


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    for clients in (1, 100) if quick else (1, 100, 1000):
        yield _delivery(directory / f"clients-{clients}", clients, 3 if quick else 15)
    yield _cost_of_logging(directory, quick)


def open_node(directory: Path, changes: bool, port: int = 1) -> Node:
    directory.mkdir(parents=True, exist_ok=True)
    wanted = settings(directory, port)
    spec = json.loads(Path(wanted.spec_path).read_text())
    Path(wanted.spec_path).write_text(json.dumps({**spec, "view": {"changes": changes}}))
    return Node.open(replace(wanted, connections_max=4096))


def payload(partition: int, first: int, keys: list[bytes], value: bytes, now_ms: int) -> bytes:
    rows = [
        SliceRow(key, encode_row(Row(first + n, now_ms, 0, value)), ROW, first + n)
        for n, key in enumerate(keys)
    ]
    header = SliceHeader(partition, first, first + len(rows) - 1, now_ms, len(rows), 0, 0, 0, 0, 0, 0)
    return encode_slice(header, rows)[4:]


async def serve(directory: Path, port: int) -> None:
    """Serve a node whose replicas apply records, as ingest would send them."""
    node = open_node(directory, True, port)
    for replica in node.replicas.by_partition.values():
        replica.apply((), ReplicaState(0, True))
    writing = asyncio.create_task(_write(node))
    await serve_node(node, port)
    writing.cancel()


async def _write(node: Node) -> None:
    random, due = Random(1), time.monotonic()
    while True:
        for partition, replica in node.replicas.by_partition.items():
            due += SLICE_ROWS / RECORDS_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            value = b'{"name":"customer","pad":"%060d",%b%d}' % (0, _TIME, time.monotonic_ns())
            keys = [key_of(random.randrange(100_000)) for _ in range(SLICE_ROWS)]
            now_ms = time.time_ns() // 1_000_000
            node.slices.apply(payload(partition, max(0, replica.position), keys, value, now_ms))


class Client(asyncio.Protocol):
    """Follow the feed, and note how long some of the changes took."""

    def __init__(self, samples: list[float]) -> None:
        self._samples = samples
        self.changes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        request = b"GET /v1/changes HTTP/1.1\r\nHost: a\r\n\r\n"
        cast(asyncio.Transport, transport).write(request)

    def data_received(self, data: bytes) -> None:
        now, pieces = time.monotonic_ns(), data.split(_TIME)
        self.changes += len(pieces) - 1
        self._samples += [
            (now - int(piece.partition(b"}")[0])) / 1e6 for piece in pieces[1::_SAMPLED] if b"}" in piece
        ]


async def follow(port: int, clients: int, seconds: float) -> tuple[list[float], float]:
    """Return the delays, in ms, and the changes that a client got per second."""
    samples: list[float] = []
    loop = asyncio.get_running_loop()
    made = [
        (await loop.create_connection(lambda: Client(samples), "127.0.0.1", port)) for _ in range(clients)
    ]
    await asyncio.sleep(2)
    samples.clear()
    before = [protocol.changes for _, protocol in made]
    await asyncio.sleep(seconds)
    rates = [(protocol.changes - count) / seconds for (_, protocol), count in zip(made, before, strict=True)]
    found = list(samples)
    for transport, _ in made:
        transport.close()
    return found, min(rates)


@contextmanager
def _server(directory: Path, port: int) -> Iterator[psutil.Process]:
    command = [sys.executable, "-m", "bench.changes", str(directory), str(port)]
    with subprocess.Popen(["taskset", "-c", "0", *command]) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def _delivery(directory: Path, clients: int, seconds: float) -> Result:
    (port,) = free_ports(1)
    with _server(directory, port) as process:
        _wait(port)
        os.sched_setaffinity(0, {1})
        before, started = process.cpu_times(), time.monotonic()
        samples, rate = uvloop.run(follow(port, clients, seconds))
        after, took = process.cpu_times(), time.monotonic() - started
        os.sched_setaffinity(0, {0, 1})
        cpu = 100 * (after.user + after.system - before.user - before.system) / took
        rss = process.memory_info().rss >> 20
    figures: dict[str, float | int | str] = {
        **quantiles(samples),
        "changes/s, slowest client": rate,
        "CPU %": round(cpu),
        "MB": rss,
    }
    return Result("changes", f"{clients} clients, {RECORDS_PER_SECOND}/s: ms", figures)


def _wait(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("the node did not start")


def _cost_of_logging(directory: Path, quick: bool) -> Result:
    """Compare the CPU of applying rows with and without a log, in turns."""
    spent: dict[bool, list[float]] = {False: [], True: []}
    rows = _WRITTEN_ROWS // 10 if quick else _WRITTEN_ROWS
    for turn in range(2 * _ROUNDS_OF_WRITES):
        changes = bool(turn % 2)
        node = open_node(directory / f"write-{turn}", changes)
        now_ms = time.time_ns() // 1_000_000
        slices = [
            payload(0, start, [key_of(n) for n in range(start, start + 1000)], b'{"n":1}' * 12, now_ms)
            for start in range(0, rows, 1000)
        ]
        started = time.process_time()
        for each in slices:
            node.slices.apply(each)
        spent[changes].append((time.process_time() - started) / rows * 1e6)
        node.replicas.close()
    plain, logged = median(spent[False]), median(spent[True])
    figures: dict[str, float | int | str] = {
        "us/row": plain,
        "us/row logged": logged,
        "ratio": round(logged / plain, 2),
    }
    return Result("changes", "CPU to apply a row", figures)


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
