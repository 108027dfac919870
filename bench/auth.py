"""Measure point reads with a token, over TLS, and with both, beside plain ones: one core, kept-alive connections.

All four servers are the product, each over a copy of the same store, and all are alive on core 0 at the same time. The load (wrk,
32 connections) has core 1 and goes to one after the other in short turns, so that a noisy machine affects all alike. The ratio of
each round is of the rates in it, and that of the CPU of the servers' processes for each read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil

from bench.harness import Result, median
from bench.point_read import KEYS, WRK_SCRIPT, closed_loop, server
from bench.server import JWT, KINDS, SECRET, bearer
from tests.support.certificates import mount_for_localhost
from tests.support.tokens import secret_directory

_ABOUT = {
    "node": ("plain", ""),
    "token": ("with a token", ">= 0.85"),
    "tls": ("TLS 1.3", ">= 0.7"),
    "both": ("with a token, TLS 1.3", ""),
}
_WITH_TOKEN = WRK_SCRIPT.replace(
    "init = function()\n", 'init = function()\n  wrk.headers["Authorization"] = "BEARER"\n'
)


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    if shutil.which("wrk") is None or not hasattr(os, "sched_setaffinity"):
        print("auth needs Linux and wrk (Debian: apt-get install wrk)")
        return
    keys, seconds, rounds = (10_000, 1, 2) if quick else (KEYS, 2, 11)
    first = directory / "node"
    first.mkdir()
    subprocess.run([sys.executable, "-m", "bench.server", "fill", str(first), str(keys)], check=True)
    for kind in _ABOUT:
        if kind != "node":
            shutil.copytree(first, directory / kind)
    for kind in _ABOUT:
        mount_for_localhost(directory / kind / SECRET)
        secret_directory(directory / kind / JWT)
        script = _WITH_TOKEN.replace("BEARER", bearer()) if KINDS[kind].token else WRK_SCRIPT
        (directory / f"{kind}.lua").write_text(script.replace("KEYS", str(keys)))
    rates: dict[str, list[float]] = {kind: [] for kind in _ABOUT}
    costs: dict[str, list[float]] = {kind: [] for kind in _ABOUT}
    with ExitStack() as stack:
        running = {kind: stack.enter_context(server(kind, directory / kind)) for kind in _ABOUT}
        of_port = {port: process for process in psutil.process_iter() for port in _listening(process)}
        for _ in range(rounds):
            for kind, port in running.items():
                process = of_port[port]
                before = _cpu_seconds(process)
                scheme = "https" if KINDS[kind].tls else "http"
                rate = closed_loop(port, directory / f"{kind}.lua", seconds, scheme=scheme)
                rates[kind].append(rate)
                costs[kind].append(1e6 * (_cpu_seconds(process) - before) / (rate * seconds))
    for kind, (about, target) in _ABOUT.items():
        figures: dict[str, float | int | str] = {
            "requests/s": median(rates[kind]),
            "min": min(rates[kind]),
            "max": max(rates[kind]),
            "us of CPU": round(median(costs[kind]), 1),
        }
        if kind != "node":
            pairs = zip(rates["node"], rates[kind], strict=True)
            ratios = [secured / plain for plain, secured in pairs]
            figures |= {"of plain": f"{median(ratios):.2f}", "rounds": " ".join(f"{r:.2f}" for r in ratios)}
            figures["plain CPU / its CPU"] = f"{median(costs['node']) / median(costs[kind]):.2f}"
        yield Result("auth", about, figures, target)


def _listening(process: psutil.Process) -> list[int]:
    try:
        connections = process.net_connections("tcp")
    except psutil.Error:  # it has ended, or is of another user
        return []
    return [each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN]


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
