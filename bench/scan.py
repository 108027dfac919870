"""Measure a scan of a million rows as NDJSON: rows a second on one core, and the effect on the node's memory."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.harness import Result, median
from bench.point_read import KEYS, server


def serve_process(port: int) -> psutil.Process:
    return next(
        p
        for p in psutil.Process(os.getpid()).children(recursive=True)
        if str(port) in p.cmdline() and "bench.server" in p.cmdline()
    )


def stream(port: int) -> tuple[int, float]:
    """Return the rows and seconds of one whole scan, read at full speed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    started, rows = time.perf_counter(), 0
    connection.request("GET", "/v1/scan", headers={"accept": "application/x-ndjson"})
    answer = connection.getresponse()
    while chunk := answer.read(1 << 20):
        rows += chunk.count(b"\n")
    return rows, time.perf_counter() - started


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    store = directory / "store"
    store.mkdir()
    subprocess.run([sys.executable, "-m", "bench.server", "fill", str(store), str(KEYS)], check=True)
    with server("node", store) as port:
        process = serve_process(port)
        stream(port)
        before, rates = process.memory_info().rss >> 20, []
        for _ in range(1 if quick else 5):
            rows, seconds = stream(port)
            assert rows >= KEYS, rows
            rates.append(rows / seconds)
        grown = (process.memory_info().rss >> 20) - before
    figures = {
        "rows/s": median(rates),
        "min": min(rates),
        "max": max(rates),
        "MB before": before,
        "MB grown": grown,
    }
    yield Result("scan", "1 M rows as NDJSON", {**figures}, ">= 200 K rows/s, constant memory")
