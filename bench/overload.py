"""Measure a node under more requests than it can answer, from half of its capacity to three times as much.

Multi-gets, which the node admits in turn, come in an open loop, with probes beside them. The node answers point reads as it
reads them from their connections, so excess ones wait there, one per connection: wrk, with more and more connections. The
server has core 0, the load core 1. The first second of each open loop, in which a burst becomes a backlog, does not count.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import uvloop

from bench import forwarded_read, multi_get, point_read
from bench.harness import Result, quantiles
from bench.open_loop import open_loop
from bench.point_read import KEYS, closed_loop, server
from bench.server import key_of

WARM_UP = 1.0
LOADS = (0.5, 1.0, 1.5, 2.0, 3.0)  # times the capacity
CONNECTIONS = (8, 32, 128, 512, 1000)
DEADLINE_MS = 2000  # clients give up after this time
PROBES = {"/livez": 50.0, "/metrics": 5.0}  # a second
_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


def multi_gets(count: int = 500) -> list[bytes]:
    dice = random.Random(1)
    made = []
    for _ in range(count):
        body = json.dumps({"keys": [key_of(dice.randrange(KEYS)).decode() for _ in range(100)]}).encode()
        head = b"POST /v1/multi-get HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        made.append(head + body)
    return made


async def load(port: int, per_second: float, seconds: float) -> dict[str, float]:
    gc.disable()  # the pauses to be measured are the server's
    probes = [
        open_loop(
            port, [b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode()], rate, seconds, 4, WARM_UP
        )
        for path, rate in PROBES.items()
    ]
    asked, *probed = await asyncio.gather(
        open_loop(port, multi_gets(), per_second, seconds, 512, WARM_UP), *probes
    )
    assert set(asked.statuses) <= {200, 429}, asked.statuses
    assert all(set(outcome.statuses) == {200} for outcome in probed), probed
    total = asked.statuses.total()
    figures = quantiles(asked.accepted_ms)
    in_time = sum(took <= DEADLINE_MS for took in asked.accepted_ms)
    figures |= {"goodput/s": in_time / seconds, "429 %": 100 * asked.statuses[429] / total}
    for path, outcome in zip(PROBES, probed, strict=True):
        figures[f"{path} p99"] = quantiles(outcome.latencies_ms)["p99"]
    return figures


def multi_gets_beyond(directory: Path, quick: bool) -> Iterator[Result]:
    seconds = 3 if quick else 8
    script = directory / "multi_get.lua"
    script.write_text(multi_get.WRK_SCRIPT.replace("KEYS", str(KEYS)))
    with server("node", directory / "store") as port:
        capacity = closed_loop(port, script, seconds, 4)
        yield Result("overload", "multi-get of 100, closed loop", {"requests/s": capacity})
        unloaded: dict[str, float] = {}
        for times in LOADS:
            command = ["taskset", "-c", "1", sys.executable, "-m", "bench.overload"]
            out = subprocess.run(
                [*command, str(port), str(times * capacity), str(seconds)],
                capture_output=True,
                text=True,
                check=True,
            )
            figures = json.loads(out.stdout)
            unloaded = unloaded or figures
            figures["of capacity"] = round(figures["goodput/s"] / capacity, 2)
            figures["x unloaded p99"] = round(figures["p99"] / unloaded["p99"], 1)
            target = ">= 0.9 of capacity, p99 <= 3 x unloaded" if times == 2 else ""
            yield Result("overload", f"multi-get of 100, {times} x capacity", {**figures}, target)


def point_reads_beyond(case: str, port: int, script: Path, seconds: int) -> Iterator[Result]:
    peak = 0.0
    for connections in CONNECTIONS:
        command = ["taskset", "-c", "1", "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
        out = subprocess.run(
            [*command, "-s", str(script), f"http://127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "Non-2xx" not in out, out
        found = re.search(r"Requests/sec:\s+([\d.]+)", out)
        assert found is not None, out
        rate = float(found[1])
        peak = max(peak, rate)
        figures: dict[str, float] = {"requests/s": rate, "of peak": round(rate / peak, 2)}
        for name, part in (("p50", "50%"), ("p99", "99%")):
            value = re.search(rf"{part}\s+([\d.]+)(us|ms|s)\b", out)
            assert value is not None, out
            figures[name] = round(float(value[1]) * _UNITS[value[2]], 2)
        yield Result("overload", f"{case}, {connections} connections", {**figures})


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    if shutil.which("wrk") is None or not hasattr(os, "sched_setaffinity"):
        print("overload needs Linux and wrk (Debian: apt-get install wrk)")
        return
    seconds = 3 if quick else 8
    store = directory / "store"
    store.mkdir()
    subprocess.run([sys.executable, "-m", "bench.server", "fill", str(store), str(KEYS)], check=True)
    yield from multi_gets_beyond(directory, quick)
    script = directory / "point.lua"
    script.write_text(point_read.WRK_SCRIPT.replace("KEYS", str(KEYS)))
    with server("node", store) as port:
        yield from point_reads_beyond("point read", port, script, seconds)
    keys, script = directory / "forwarded.keys", directory / "forwarded.lua"
    keys.write_bytes(b"\n".join(forwarded_read.by_owner()[1]))
    script.write_text(forwarded_read.WRK_SCRIPT.replace("KEYS", str(keys)))
    with ExitStack() as nodes:
        for ordinal in range(2):
            nodes.enter_context(forwarded_read.node(directory, ordinal))
        forwarded_read.answers(keys.read_bytes().split()[0])
        yield from point_reads_beyond("forwarded", forwarded_read.PORTS[0], script, seconds)


if __name__ == "__main__":
    port_, per_second_, seconds_ = sys.argv[1:]
    print(json.dumps(uvloop.run(load(int(port_), float(per_second_), float(seconds_)))))
