"""The memory of answers is bounded: for one answer over all nodes, and for all running answers of a node."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.placement.assignment import Placement
from queryable_app.serve.base.peer_frames import decode_rows
from queryable_app.serve.reads import covered_reads, multi_get
from queryable_app.serve.reads.multi_get import VALUE_BYTES_MAX
from queryable_app.wire.partitioners import partition_for
from queryable_operator.spec.requirements import requirements
from tests.support.node import node_settings
from tests.support.node_cluster import TOKEN, NodeCluster, three_nodes
from tests.support.served import Served, served
from tests.support.waiting import eventually

NDJSON = {"accept": "application/x-ndjson"}


def text_of(size: int) -> bytes:
    """Return a JSON text of this size that does not compress."""
    return b'"%b"' % os.urandom(size // 2).hex().encode()


def nothing_is_reserved(cluster: NodeCluster) -> bool:
    return all(node.node.answer_budget.taken == 0 for node in cluster.nodes)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    """Start three nodes with 60 values of 50 KB."""
    with three_nodes(tmp_path_factory.mktemp("cluster"), 1) as started:
        for number in range(60):
            started.put(b"key-%02d" % number, text_of(50_000))
        yield started


KEYS = [f"key-{number:02d}" for number in range(60)]


@pytest.mark.parametrize("keys", [KEYS, ["key-00"] * 60], ids=["over all nodes", "one key again and again"])
def test_values_of_all_nodes_together_are_bounded(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch, keys: list[str]
) -> None:
    """A multi-get answers 413 if its values exceed the bound together, though not on any node alone."""
    for module in (covered_reads, multi_get):
        monkeypatch.setattr(module, "VALUE_BYTES_MAX", 2_000_000)
    for node in cluster.nodes:
        with node.client() as http:
            refused = http.post("/v1/multi-get", json={"keys": keys})
            assert (refused.status_code, refused.json()["reason"]) == (413, "too_large")
            assert http.post("/v1/multi-get", json={"keys": keys[:20]}).status_code == 200
    eventually("all memory is released", lambda: nothing_is_reserved(cluster))


@contextmanager
def memory_left(node: Served, size: int) -> Iterator[None]:
    """Let other answers reserve all but `size` bytes."""
    budget = node.node.answer_budget
    others = budget.bytes_max - size
    node.on_loop(lambda: budget.take_over_limit(others))
    try:
        yield
    finally:
        node.on_loop(lambda: budget.release(others))


SendTo = Callable[[httpx.Client], httpx.Response]


@pytest.mark.parametrize(
    "send_read",
    [
        lambda http: http.post("/v1/multi-get", json={"keys": KEYS}),
        lambda http: http.get("/v1/scan"),
        lambda http: http.get("/v1/prefix/key-"),
    ],
    ids=["multi-get", "scan", "prefix"],
)
def test_large_answer_without_memory_is_refused(cluster: NodeCluster, send_read: SendTo) -> None:
    """The node answers 429 with Retry-After while other answers use the budget, and still answers small reads."""
    node = cluster.nodes[0]
    with node.client() as http:
        assert send_read(http).status_code == 200
        with memory_left(node, 10_000):
            refused = send_read(http)
            assert (refused.status_code, refused.json()["reason"]) == (429, "overloaded")
            assert "retry-after" in refused.headers
            small = http.post("/v1/multi-get", json={"keys": KEYS[:1]})
            assert (small.status_code, small.json()["items"][0]["found"]) == (200, True)
        assert send_read(http).status_code == 200
    eventually("all memory is released", lambda: nothing_is_reserved(cluster))


def test_page_ends_early_when_memory_runs_out(cluster: NodeCluster) -> None:
    """The page is shorter than its limit, and its cursor continues; together the pages have every row once."""
    node = cluster.nodes[0]
    with node.client() as http, memory_left(node, 6_000_000):
        first = http.get("/v1/scan").json()
        assert (len(first["items"]), first["cursor"]) == (60, None)
    with node.client() as http:
        keys: list[str] = []
        cursor = ""
        with memory_left(node, 4_500_000):
            while True:
                page = http.get(f"/v1/scan?{cursor}").json()
                assert page["items"]
                keys += [item["key"] for item in page["items"]]
                if page["cursor"] is None:
                    break
                assert len(page["items"]) < 60
                cursor = f"cursor={page['cursor']}"
    assert keys == KEYS
    assert cursor
    eventually("all memory is released", lambda: nothing_is_reserved(cluster))


def test_peer_returns_rows_of_keys_in_batches(cluster: NodeCluster) -> None:
    """A node returns about as many bytes as its peer asks for, and the number of keys that they answer."""
    partition = partition_for(b"key-00", "murmur2", 6)
    keys = [key for key in KEYS if partition_for(key.encode(), "murmur2", 6) == partition]
    body: dict[str, Any] = {
        "positions": {str(partition): len(keys)},
        "keys": {str(partition): [b64encode(key.encode()).decode() for key in keys]},
    }
    owner = cluster.nodes[cluster.placement.serving[partition][0]]
    with owner.client(headers={"qt-node": TOKEN}) as http:
        head, rows = decode_rows(http.post("/internal/v1/keys", json={**body, "bytesMax": 60_000}).content)
        assert head == {"answered": len(rows)}
        assert 60_000 < sum(len(stored) for _, _, stored in rows) < 300_000
        head, rows = decode_rows(http.post("/internal/v1/keys", json=body).content)
        assert head == {"answered": len(keys)} == {"answered": len(rows)}


@pytest.mark.parametrize(
    "keys", [[f"{n}" * 32_000 for n in range(10, 40)], ["k" * 2_097_130]], ids=["thirty", "one"]
)
def test_long_keys_reach_other_nodes(cluster: NodeCluster, keys: list[str]) -> None:
    """A multi-get whose keys fill a body of 2 MiB is answered, also for the keys of other nodes."""
    for node in cluster.nodes:
        with node.client() as http:
            answer = http.post(
                "/v1/multi-get?deadline-ms=60000", content=dumps({"keys": keys}, separators=(",", ":"))
            )
            assert answer.status_code == 200
            assert [item["found"] for item in answer.json()["items"]] == [False] * len(keys)


def test_stream_reserves_no_memory(cluster: NodeCluster) -> None:
    """A stream keeps one batch of each node in memory, however much other answers have reserved."""
    node = cluster.nodes[0]
    with node.client() as http, memory_left(node, 10_000):
        assert len(http.get("/v1/scan", headers=NDJSON).text.splitlines()) == 60


def peak_bytes(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@contextmanager
def process_between(directory: Path, owners: int) -> Iterator[tuple[httpx.Client, int, list[Served]]]:
    """Start a real serve process without replicas, and nodes with one partition each."""
    with ExitStack() as stack:
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(owners + 1)]
        ports = [listener.getsockname()[1] for listener in listeners]
        serving = tuple((ordinal,) for ordinal in range(1, owners + 1))
        addresses = tuple(f"http://127.0.0.1:{port}" for port in ports)
        placement = Placement(1, "tests.users.r1", addresses, serving, ((),) * owners)
        token = directory / "token"
        token.write_text(TOKEN)
        nodes = [
            stack.enter_context(
                served(
                    directory / f"node-{ordinal}",
                    ordinal=ordinal,
                    placement=placement,
                    listener=listeners[ordinal],
                    settings={"internal_token_path": str(token)},
                )
            )
            for ordinal in range(1, owners + 1)
        ]
        (directory / "placement.json").write_text(placement.to_json())
        settings = replace(
            node_settings(directory),
            application_id="tests.users.r1",
            placement_path=str(directory / "placement.json"),
            internal_token_path=str(token),
            http_host="127.0.0.1",
            http_port=ports[0],
        )
        listeners[0].close()
        with (directory / "serve.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "queryable_app.serve"],
                env={**os.environ, **settings.to_env()},
                stderr=log,
            )
        try:
            http = stack.enter_context(httpx.Client(base_url=addresses[0], timeout=120))
            eventually("it serves", lambda: _answers(http) or process.poll() is not None, 60)
            yield http, process.pid, nodes
        finally:
            process.kill()
            process.wait()


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/livez").status_code == 200
    except httpx.TransportError:
        return False


def test_gathered_answers_stay_below_the_container_limit(tmp_path: Path) -> None:
    """Many large multi-gets over two nodes at once: some get 429, and the process stays below the memory limit that the
    operator sets."""
    limit = requirements({}, "serve")["limits"]["memory"]
    assert limit.endswith("Mi")
    names = [b"key-%05d" % number for number in range(500)]
    by_partition = {p: [k for k in names if partition_for(k, "murmur2", 2) == p][:25] for p in range(2)}
    assert 25 * 2_000_000 < VALUE_BYTES_MAX < 50 * 2_000_000
    with process_between(tmp_path, 2) as (http, pid, nodes):
        for partition, node in enumerate(nodes):
            for key in by_partition[partition]:
                node.put(key, text_of(2_000_000), partition=partition)
        everything = [key.decode() for keys in by_partition.values() for key in keys]
        most = [key.decode() for keys in by_partition.values() for key in keys[:14]]  # 56 MB
        refused = http.post("/v1/multi-get?deadline-ms=60000", json={"keys": everything})
        assert (refused.status_code, refused.json()["reason"]) == (413, "too_large")

        statuses: list[int] = []

        def reading() -> None:
            with httpx.Client(base_url=http.base_url, timeout=120) as client:
                answer = client.post("/v1/multi-get?deadline-ms=60000", json={"keys": most})
                if answer.status_code == 200:
                    assert len(answer.json()["items"]) == len(most)
                statuses.append(answer.status_code)

        readers = [threading.Thread(target=reading) for _ in range(6)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert {*statuses} <= {200, 429}
        assert len(statuses) == len(readers)
        assert http.post("/v1/multi-get?deadline-ms=60000", json={"keys": most}).status_code == 200
        peak = peak_bytes(pid)
    print(f"peak {peak >> 20} MiB of {limit}, {sorted(statuses)}")
    assert peak < int(limit.removesuffix("Mi")) << 20
