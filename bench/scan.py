"""Measure a scan of a million rows as NDJSON: rows a second on one core, the effect on the node's memory, and what conditions and
fields cost."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import psutil

from bench.harness import Result, median
from bench.point_read import KEYS, server

SELECTIONS: dict[str, tuple[dict[str, str], str]] = {
    "where: one condition, no row matches": ({"where": "status = 'closed'"}, "none"),
    "where: three conditions, one row matches": (
        {"where": f"status = 'active' and amount > 100 and pad like '{7:022d}%'"},
        "one",
    ),
    "where: all rows match": ({"where": "amount > 100"}, "all"),
    "fields: two of five, of all rows": ({"fields": "status,amount"}, "all"),
}
"""Parameters of a scan, and how many rows it has, by the case."""


def serve_process(port: int) -> psutil.Process:
    return next(
        p
        for p in psutil.Process(os.getpid()).children(recursive=True)
        if str(port) in p.cmdline() and "bench.server" in p.cmdline()
    )


def stream(port: int, **parameters: str) -> tuple[int, float]:
    """Return the rows and seconds of one whole scan, read at full speed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    started, rows = time.perf_counter(), 0
    connection.request("GET", f"/v1/scan?{urlencode(parameters)}", headers={"accept": "application/x-ndjson"})
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
        selected = [_selected(port, process, case, 1 if quick else 5) for case in SELECTIONS]
    figures = {
        "rows/s": median(rates),
        "min": min(rates),
        "max": max(rates),
        "MB before": before,
        "MB grown": grown,
    }
    yield Result("scan", "1 M rows as NDJSON", {**figures}, ">= 200 K rows/s, constant memory")
    yield from selected


def _selected(port: int, process: psutil.Process, case: str, rounds: int) -> Result:
    """Measure a scan with conditions or fields, in rows that are looked at."""
    parameters, expected = SELECTIONS[case]
    rates, cpu = [], []
    for _ in range(rounds):
        used = sum(process.cpu_times()[:2])
        rows, seconds = stream(port, **parameters)
        assert (rows == KEYS) == (expected == "all"), rows
        rates.append(KEYS / seconds)
        cpu.append((sum(process.cpu_times()[:2]) - used) / KEYS * 1e6)
    figures = {
        "rows looked at/s": median(rates),
        "min": min(rates),
        "max": max(rates),
        "CPU µs a row": median(cpu),
    }
    return Result("scan", case, {**figures})
