"""Measure point reads over TLS beside plain ones, on one core and kept-alive connections.

Both servers are the product, over the same store. The server has core 0, the load (wrk, 32 connections) core 1; rounds
alternate, so that a noisy machine affects both alike.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Result, median
from bench.point_read import KEYS, WRK_SCRIPT, closed_loop, server
from bench.server import SECRET
from tests.support.certificates import mount_for_localhost

_SCHEMES = {"node": "http", "tls": "https"}


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    if shutil.which("wrk") is None or not hasattr(os, "sched_setaffinity"):
        print("tls needs Linux and wrk (Debian: apt-get install wrk)")
        return
    keys, seconds, rounds = (10_000, 2, 1) if quick else (KEYS, 5, 5)
    store, script = directory / "store", directory / "wrk.lua"
    store.mkdir()
    mount_for_localhost(store / SECRET)
    script.write_text(WRK_SCRIPT.replace("KEYS", str(keys)))
    subprocess.run([sys.executable, "-m", "bench.server", "fill", str(store), str(keys)], check=True)
    rates: dict[str, list[float]] = {kind: [] for kind in _SCHEMES}
    for _ in range(rounds):
        for kind, scheme in _SCHEMES.items():
            with server(kind, store) as port:
                rates[kind].append(closed_loop(port, script, seconds, scheme=scheme))
    for kind, about in (("node", "plain"), ("tls", "TLS 1.3")):
        figures = {"requests/s": median(rates[kind]), "min": min(rates[kind]), "max": max(rates[kind])}
        yield Result("tls", about, {**figures})
    ratio = median(rates["tls"]) / median(rates["node"])
    yield Result("tls", "TLS beside plain", {"ratio": round(ratio, 2)}, ">= 0.7")
