"""Test reads from real processes that are killed and stopped."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from queryable_app.client import AsyncQueryableTopic, QueryableTopic
from queryable_app.placement.assignment import Placement, initial_placement

KEYS = [f"key-{n:06d}" for n in range(100)]
SECONDS_MAX = (
    1.5  # of one read; the deadline is two. The figures for latency are the bench's, on a quiet machine
)


class Processes:
    """Run three nodes with two replicas of each of six partitions, and a hundred rows."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        with ExitStack() as probes:
            found = [probes.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            ports = [listener.getsockname()[1] for listener in found]
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.placement: Placement = initial_placement("tests.users.r1", 6, self.urls, 2)
        (directory / "token").write_text("between-nodes")
        script = Path(__file__).parent / "node_process.py"
        self.processes = [
            stack.enter_context(
                subprocess.Popen(
                    [
                        sys.executable,
                        str(script),
                        str(directory / str(n)),
                        str(n),
                        str(port),
                        self.placement.to_json(),
                    ],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            for n, port in enumerate(ports)
        ]
        stack.callback(self.kill)
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        for process in self.processes:
            process.kill()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(tmp_path, stack)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_lost_node_fails_no_read(nodes: Processes, how: signal.Signals) -> None:
    """Reads of one key and of many, and a scan that has begun, succeed for both clients. The benchmark measures their time."""
    with QueryableTopic(nodes.urls[1], deadline_ms=10_000) as users:
        for key in KEYS:
            users.get(key)
        rows = users.scan(page_rows=10)
        first = next(rows)
        nodes.processes[1].send_signal(how)
        for _ in range(3):
            for n, key in enumerate(KEYS):
                row = users.get(key)
                assert row is not None
                assert row.value == {"n": n}
        assert [row and row.key for row in users.multi_get(KEYS)] == KEYS
        assert [first.key, *(row.key for row in rows)] == KEYS
        assert users.count() == len(KEYS)
    asyncio.run(read_all(nodes.urls))


async def read_all(urls: list[str]) -> None:
    """Read with a client that starts after the node was lost."""
    async with AsyncQueryableTopic(urls, deadline_ms=10_000) as users:
        for start in range(0, len(KEYS), 10):
            keys = KEYS[start : start + 10]
            rows = await asyncio.gather(*(users.get(key) for key in keys))
            assert [row and row.key for row in rows] == keys
        assert [row.key async for row in users.scan()] == KEYS
