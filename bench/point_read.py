"""Measure point reads on one core: the product with its fast lane, beside a raw ASGI handler and a FastAPI route.

All three give the same answers, freshness headers and all, from the same store of a million keys. The server has
core 0, the load core 1. Capacity is closed loop (wrk, 32 connections), in several alternating rounds, so that a
noisy machine affects all alike; latency is open loop at half of the measured capacity.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Result, median
from bench.open_loop import open_loop_latency
from bench.server import KINDS, bearer, key_of, value_of

PORTS = {"node": 18080, "asgi": 18081, "fastapi": 18082, "tls": 18083, "token": 18084, "both": 18085}
COMPARED = ("node", "asgi", "fastapi")
KEYS = 1_000_000

_UNVERIFIED = ssl.create_default_context()  # of a server that this process has started
_UNVERIFIED.check_hostname = False
_UNVERIFIED.verify_mode = ssl.CERT_NONE

# Made before the start: `wrk.format` takes longer than a node to answer.
WRK_SCRIPT = """
local requests, next = {}, 0
init = function()
  local n = 0
  for i = 1, 200000 do
    n = (n * 1103515245 + 12345) % 2147483648
    requests[i] = wrk.format("GET", string.format("/v1/keys/%016x", ((n % KEYS) * 2654435761) % 281474976710656))
  end
end
request = function()
  next = next % 200000 + 1
  return requests[next]
end
"""


@contextmanager
def server(kind: str, directory: Path) -> Iterator[int]:
    """Run one kind of server on core 0, and yield its port."""
    how = KINDS.get(kind, KINDS["node"])
    port, scheme = PORTS[kind], "https" if how.tls else "http"
    command = ["taskset", "-c", "0", sys.executable, "-m", "bench.server", kind, str(directory), str(port)]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                url = f"{scheme}://127.0.0.1:{port}/v1/keys/{key_of(7).decode()}"
                request = urllib.request.Request(
                    url, headers={"Authorization": bearer()} if how.token else {}
                )
                with urllib.request.urlopen(request, timeout=1, context=_UNVERIFIED) as answer:
                    assert answer.read() == value_of(7)
                    break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def closed_loop(port: int, script: Path, seconds: int, connections: int = 32, scheme: str = "http") -> float:
    """Return the requests per second, and check that all answers are 200."""
    command = ["taskset", "-c", "1", "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script)]
    out = subprocess.run(
        [*command, f"{scheme}://127.0.0.1:{port}"], capture_output=True, text=True, check=True
    ).stdout
    assert "Non-2xx" not in out, out
    found = re.search(r"Requests/sec:\s+([\d.]+)", out)
    assert found is not None, out
    return float(found[1])


def random_keys(keys: int = KEYS, count: int = 20_000) -> list[bytes]:
    dice = random.Random(1)
    return [key_of(dice.randrange(keys)) for _ in range(count)]


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    if shutil.which("wrk") is None or not hasattr(os, "sched_setaffinity"):
        print("point_read needs Linux and wrk (Debian: apt-get install wrk)")
        return
    seconds, rounds = (2, 1) if quick else (8, 5)
    store, script = directory / "store", directory / "wrk.lua"
    store.mkdir()
    script.write_text(WRK_SCRIPT.replace("KEYS", str(KEYS)))
    subprocess.run([sys.executable, "-m", "bench.server", "fill", str(store), str(KEYS)], check=True)
    rates: dict[str, list[float]] = {kind: [] for kind in COMPARED}
    for _ in range(rounds):
        for kind in COMPARED:
            with server(kind, store) as port:
                rates[kind].append(closed_loop(port, script, seconds))
    node, asgi, route = (median(rates[kind]) for kind in COMPARED)
    for kind, target in (("node", ">= 40 K/s"), ("asgi", ""), ("fastapi", "")):
        figures = {"requests/s": median(rates[kind]), "min": min(rates[kind]), "max": max(rates[kind])}
        yield Result("point_read", kind, {**figures}, target)
    ratios = {"x raw ASGI": round(node / asgi, 2), "x FastAPI": round(node / route, 2)}
    yield Result("point_read", "node beside them", {**ratios}, ">= 3 and >= 6")
    with server("node", store) as port:
        figures = open_loop_latency(port, random_keys(), node / 2, seconds)
    yield Result("point_read", f"node, open loop at {node / 2:,.0f}/s", {**figures}, "p99 <= 5 ms")
