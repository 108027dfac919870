"""Test a process with few file descriptors, and clients that would take them all."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx

from tests.support.serve_process import FakeIngest, ServeProcess, serve_process
from tests.support.waiting import eventually

LIMIT = 256
CLIENTS = 400


def everything_is_stored(node: ServeProcess, ingest: FakeIngest) -> bool:
    """Return whether every record is stored; return False also while the node is too busy to answer."""
    answer = node.client.get("/v1/status")
    return answer.status_code == 200 and all(
        replica["position"] == ingest.ends[replica["partition"]] for replica in answer.json()["partitions"]
    )


def idle_clients(stack: ExitStack, node: ServeProcess, count: int) -> None:
    for _ in range(count):
        with suppress(OSError):  # the node may close it at once
            connection = socket.create_connection(("127.0.0.1", node.port), timeout=30)
            stack.enter_context(connection)


def test_idle_clients_do_not_take_the_descriptors_of_stores_and_ingest(tmp_path: Path) -> None:
    """With more idle clients than descriptors, ingest continues, probes are answered, and nothing fails."""
    with (
        serve_process(tmp_path, descriptors=LIMIT) as node,
        FakeIngest(node) as ingest,
        ExitStack() as stack,
    ):
        (few,) = node.events("few-descriptors")
        assert (few["limit"], few["connections_max"]) == (LIMIT, 1024)
        assert few["connections"] < LIMIT

        for part in range(1, 5):
            idle_clients(stack, node, CLIENTS // 4)
            for partition in ingest.ends:
                ingest.ends[partition] = 500 * part  # so many that tables are written
            for path in ("/livez", "/metrics"):
                assert httpx.get(f"http://127.0.0.1:{node.port}{path}", timeout=30).status_code == 200
        eventually("every record is stored", lambda: everything_is_stored(node, ingest))

        assert ingest.starts == 1
        assert [p for p in node.partitions() if p["failed"]] == []
        assert node.events("internal-error") == []


def test_node_without_descriptors_waits_without_spinning(tmp_path: Path) -> None:
    """While clients take the last descriptors a node closes connections that it cannot accept, and answers as soon as it
    can."""
    with serve_process(tmp_path, descriptors=72) as node:
        with ExitStack() as stack:
            idle_clients(stack, node, CLIENTS)
            before = node.cpu_seconds()
            idle_clients(stack, node, 100)
            threading.Event().wait(2)
            assert node.cpu_seconds() - before < 1

        eventually("it answers", lambda: answered(node))
        assert node.process.poll() is None


def answered(node: ServeProcess) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{node.port}/livez", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
