"""Send requests on a schedule: each is due at its moment, whether or not earlier ones were answered.

Latency counts from the due moment, so a stalled server cannot hide it. If every connection is busy, a request
waits in a queue, with its clock running. As a program, read the keys of a view in turns and print the quantiles:

    python -m bench.open_loop PORT REQUESTS_A_SECOND SECONDS < KEYS
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import uvloop

from bench.harness import quantiles


@dataclass
class Outcome:
    latencies_ms: list[float] = field(default_factory=list)
    accepted_ms: list[float] = field(default_factory=list)  # of those that were answered 200
    statuses: Counter[int] = field(default_factory=Counter)


class _Connection(asyncio.Protocol):
    def __init__(self, load: _Load) -> None:
        self.load, self.due, self.buffer = load, 0.0, b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class

    def ask(self, request: bytes, due: float) -> None:
        self.due = due
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head_end = self.buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = self.buffer[:head_end].lower()
        at = head.find(b"content-length:") + 15
        length = int(head[at : (head.find(b"\r\n", at) + 1 or len(head) + 1) - 1])
        if len(self.buffer) < head_end + 4 + length:
            return
        self.buffer = b""
        self.load.answered(self, int(head[9:12]), self.due)


class _Load:
    def __init__(self, requests: Sequence[bytes]) -> None:
        self.requests, self.next = requests, 0
        self.noted_from = 0.0
        self.free: deque[_Connection] = deque()
        self.waiting: deque[float] = deque()
        self.outcome = Outcome()

    def _request(self) -> bytes:
        self.next = (self.next + 1) % len(self.requests)
        return self.requests[self.next]

    def due(self, moment: float) -> None:
        if self.free:
            self.free.popleft().ask(self._request(), moment)
        else:
            self.waiting.append(moment)

    def answered(self, connection: _Connection, status: int, due: float) -> None:
        if due >= self.noted_from:
            took_ms = (time.perf_counter() - due) * 1000
            self.outcome.latencies_ms.append(took_ms)
            if status == 200:
                self.outcome.accepted_ms.append(took_ms)
            self.outcome.statuses[status] += 1
        if self.waiting:
            connection.ask(self._request(), self.waiting.popleft())
        else:
            self.free.append(connection)


async def open_loop(
    port: int,
    requests: Sequence[bytes],
    per_second: float,
    seconds: float,
    connections: int = 64,
    warm_up: float = 0.0,
) -> Outcome:
    """Run the schedule; requests due in the first `warm_up` seconds are sent and not recorded."""
    load = _Load(requests)
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        _, protocol = await loop.create_connection(lambda: _Connection(load), "127.0.0.1", port)
        load.free.append(protocol)
    started, sent = time.perf_counter(), 0
    load.noted_from = started + warm_up
    while (now := time.perf_counter() - started) < warm_up + seconds:
        while sent < now * per_second:
            load.due(started + sent / per_second)
            sent += 1
        await asyncio.sleep(0.0005)
    deadline = time.perf_counter() + 10
    while len(load.free) < connections and time.perf_counter() < deadline:
        await asyncio.sleep(0.01)
    for connection in load.free:
        connection.transport.close()
    return load.outcome


def open_loop_latency(
    port: int, keys: Iterable[bytes], per_second: float, seconds: float, core: int | None = 1
) -> dict[str, float]:
    """Measure point reads from a process of its own, on that core if any. Each must be answered 200."""
    command = ["taskset", "-c", str(core)] if core is not None else []
    command += [sys.executable, "-m", "bench.open_loop", str(port), str(per_second), str(seconds)]
    ran = subprocess.run(command, input=b"\n".join(keys), stdout=subprocess.PIPE, check=True)
    figures: dict[str, float] = json.loads(ran.stdout)
    return figures


def _measure(port: int, keys: Sequence[bytes], per_second: float, seconds: float) -> dict[str, float]:
    requests = [b"GET /v1/keys/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % key for key in keys]
    gc.disable()  # the pauses to be measured are the server's
    outcome = uvloop.run(open_loop(port, requests, per_second, seconds))
    assert set(outcome.statuses) == {200}, outcome.statuses
    return quantiles(outcome.latencies_ms)


if __name__ == "__main__":
    given = sys.stdin.buffer.read().split()
    print(json.dumps(_measure(int(sys.argv[1]), given, float(sys.argv[2]), float(sys.argv[3]))))
