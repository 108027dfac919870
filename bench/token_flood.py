"""Measure good reads beside a flood of bad tokens: 10 000 different ones a second, of one kind after the other.

The node has core 0, and the load core 1. Good reads are 500 a second with a token that the node knows, and 50 a second with
tokens that it has never seen. Latency counts from the moment at which a read is due.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import uvloop

from bench.harness import Meter, Result, quantiles
from bench.open_loop import open_loop
from bench.point_read import server
from bench.server import JWT, key_of
from tests.support.tokens import OTHER_SECRET, SECRET, secret_directory, token

BAD_A_SECOND = 10_000
KNOWN_A_SECOND = 500
NEW_A_SECOND = 50
KEYS = 1_000
WARM_UP = 1.0
_REQUEST = b"GET /v1/keys/%b HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n\r\n"
KINDS = {
    "no flood": "",
    "no tokens": "rubbish",
    "signatures of another key": "signature",
    "expired, with a good signature": "expired",
}


def bad_requests(kind: str, count: int) -> list[bytes]:
    """Return requests with different bad tokens."""
    if kind == "rubbish":
        tokens = [f"x{number}" for number in range(count)]
    elif kind == "signature":
        tokens = [token(OTHER_SECRET, sub=f"s{number}") for number in range(count)]
    else:
        tokens = [token(SECRET, sub=f"s{number}", exp=1) for number in range(count)]
    return [_REQUEST % (key_of(7), each.encode()) for each in tokens]


def good_requests(tokens: int) -> list[bytes]:
    made = [token(sub=f"good-{number}").encode() for number in range(tokens)]
    return [_REQUEST % (key_of(number % KEYS), made[number % tokens]) for number in range(max(tokens, KEYS))]


async def load(port: int, kind: str, seconds: float) -> dict[str, float | str]:
    gc.disable()  # the pauses to be measured are the server's
    bad = bad_requests(kind, int(BAD_A_SECOND * (seconds + WARM_UP))) if kind else []
    new = good_requests(int(NEW_A_SECOND * (seconds + WARM_UP)))
    flood = [open_loop(port, bad, BAD_A_SECOND, seconds, 64, WARM_UP)] if bad else []
    known_reads, new_reads, *flooded = await asyncio.gather(
        open_loop(port, good_requests(1), KNOWN_A_SECOND, seconds, 16, WARM_UP),
        open_loop(port, new, NEW_A_SECOND, seconds, 16, WARM_UP),
        *flood,
    )
    figures: dict[str, float | str] = {"p50": 0.0}
    figures |= quantiles(known_reads.latencies_ms)
    figures["p99, new tokens"] = quantiles(new_reads.latencies_ms)["p99"]
    for name, outcome in (("good", known_reads), ("new", new_reads)):
        failed = outcome.statuses.total() - outcome.statuses[200]
        figures[f"{name} not answered"] = f"{failed} of {outcome.statuses.total()}"
    for outcome in flooded:
        figures["bad/s"] = outcome.statuses.total() / seconds
        figures["429 %"] = 100 * outcome.statuses[429] / outcome.statuses.total()
        assert set(outcome.statuses) <= {401, 429}, outcome.statuses
    return figures


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    if not hasattr(os, "sched_setaffinity"):
        print("token_flood needs Linux")
        return
    seconds = 2 if quick else 8
    subprocess.run([sys.executable, "-m", "bench.server", "fill", str(directory), str(KEYS)], check=True)
    secret_directory(directory / JWT)
    with server("token", directory) as port:
        (node,) = (process for process in psutil.Process().children() if str(port) in process.cmdline())
        for about, kind in KINDS.items():
            meter = Meter(node.pid)
            command = ["taskset", "-c", "1", sys.executable, "-m", "bench.token_flood"]
            out = subprocess.run(
                [*command, str(port), kind, str(seconds)], capture_output=True, text=True, check=True
            )
            figures = json.loads(out.stdout)
            figures["CPU %"] = round(meter.cpu_percent())
            target = "every good read is answered" if kind else ""
            yield Result("token_flood", about, figures, target)


if __name__ == "__main__":
    print(json.dumps(uvloop.run(load(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))))
