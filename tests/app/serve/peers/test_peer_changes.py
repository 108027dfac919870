"""Reads succeed while nodes end, start, and follow placements of different epochs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import Placement
from queryable_app.serve.replication import assigned_replicas
from tests.support.faulty_node import KEY, placement_of, requesting_node, standby_node
from tests.support.node_cluster import APPLICATION_ID, NodeCluster, address_of, listen, token_settings
from tests.support.served import Served, served
from tests.support.waiting import eventually

TWO_WAYS = pytest.mark.parametrize("query", ["", "?consistency=bounded"], ids=["fast lane", "fastapi"])


def read_while_stopping(process: subprocess.Popen[bytes], node: Served, signal_number: int) -> list[float]:
    """Read steadily through node 0, signal node 1 meanwhile, and return the seconds that each read took."""
    took: list[float] = []
    with node.client() as client:
        for number in range(300):
            if number == 100:
                process.send_signal(signal_number)
            answer = client.get(f"/v1/keys/{KEY}")
            assert (answer.status_code, answer.json()) == (200, 7)
            took.append(answer.elapsed.total_seconds())
            time.sleep(0.003)
    return took


@pytest.mark.parametrize(
    "signal_number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], ids=lambda s: s.name
)
def test_reads_survive_a_process_that_ends_or_stops(tmp_path: Path, signal_number: signal.Signals) -> None:
    """After SIGKILL, SIGSTOP or SIGTERM no read fails, a few take long, and soon the node is suspected."""
    listeners = listen(2)
    addresses = [address_of(listener) for listener in listeners]
    with (
        requesting_node(tmp_path, *addresses) as node,
        standby_node(tmp_path, listeners[1], node.node.placement) as standby,
    ):
        # Its lag is unknown, as the process's is, which has no Kafka.
        standby.on_loop(lambda: setattr(standby.node.replicas.by_partition[1], "fresh_as_of_ms", -1))
        settings = node_one(tmp_path, node, listeners[0])
        with process_of(settings) as process:
            eventually("node 1 is not suspected", lambda: not node.node.peers.suspected, 20)
            took = read_while_stopping(process, node, signal_number)
            eventually("it is suspected", lambda: node.node.peers.suspected == {1})
    assert sum(seconds > 0.25 for seconds in took) <= 5
    assert 0 < standby.node.counters.keys_found <= 250


def node_one(directory: Path, node: Served, listener: socket.socket) -> NodeSettings:
    """Return the settings of a process that has the key on disk. The listener only reserved the port."""
    port = listener.getsockname()[1]
    listener.close()
    own = directory / "node-1"
    with served(own, ordinal=1, placement=node.node.placement) as filling:
        filling.put(KEY.encode(), b"7", partition=1)
    return replace(
        filling.node.settings,
        http_host="127.0.0.1",
        http_port=port,
        internal_token_path=str(directory / "token"),
        advertised_url=f"http://127.0.0.1:{port}",
    )


@contextmanager
def process_of(settings: NodeSettings) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "queryable_app.serve"]
    with subprocess.Popen(
        command, env={**os.environ, **settings.to_env()}, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_nodes_follow_a_newer_placement(tmp_path: Path) -> None:
    """A node fetches a newer placement that a heartbeat names; heartbeats to new nodes start, and those to removed ones end."""
    listeners = listen(2)
    addresses = [address_of(listener) for listener in listeners]
    with requesting_node(tmp_path, addresses[0]) as node, node.client() as client:
        first = node.node.placement
        newer = replace(placement_of(first.addresses[0], *addresses), epoch=2)
        newer_at: list[int] = []
        node.node.peers.on_newer_epoch = newer_at.append
        with (
            standby_node(tmp_path, listeners[1], newer),
            served(
                tmp_path / "node-1",
                ordinal=1,
                placement=newer,
                listener=listeners[0],
                settings=token_settings(tmp_path),
            ),
        ):
            eventually("a heartbeat names the newer epoch", lambda: newer_at)
            fetched = node.begin(node.node.peers.fetch_placement(1, time.monotonic() + 10)).result(10)
            assert fetched == newer
            node.on_loop(lambda: setattr(node.node.replicas, "placement", fetched))
            eventually("heartbeats of both arrived", lambda: set(node.node.peers.last_heartbeats) == {1, 2})
            assert client.get(f"/v1/keys/{KEY}").status_code in (200, 404)
            node.on_loop(lambda: setattr(node.node.replicas, "placement", replace(first, epoch=3)))
            eventually("the removed node is dropped", lambda: set(node.node.peers.last_heartbeats) == {1})


@contextmanager
def nodes_with_key(
    directory: Path, of_0: Placement, of_others: Placement, complete: int
) -> Iterator[list[Served]]:
    """Start three nodes. Only one of them has complete replicas, and the key."""
    with NodeCluster(directory, [of_0, of_others, of_others], {complete}) as cluster:
        nodes = cluster.nodes
        nodes[complete].put(KEY.encode(), b"7", partition=1)
        eventually("heartbeats of both others arrived", lambda: len(nodes[0].node.peers.last_heartbeats) == 2)
        yield nodes


@TWO_WAYS
def test_hydrating_replica_is_not_read_while_another_serves(tmp_path: Path, query: str) -> None:
    """If only the hydrating replica is left, a key that it lacks is not_available, never key_not_found."""
    placement = Placement(1, APPLICATION_ID, (), ((0,), (2,)), ((), (1,)))
    with nodes_with_key(tmp_path, placement, placement, complete=2) as nodes, nodes[0].client() as client:
        for _ in range(20):
            assert client.get(f"/v1/keys/{KEY}{query}").json() == 7
        nodes[2].on_loop(nodes[2].node.replicas.by_partition.clear)
        answer = client.get(f"/v1/keys/{KEY}{query}")
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")


@TWO_WAYS
def test_nodes_of_different_epochs_answer(tmp_path: Path, query: str) -> None:
    """A node with an older placement tries the former replica, and then the one that was hydrating."""
    before = Placement(1, APPLICATION_ID, (), ((0,), (1,)), ((), (2,)))
    after = Placement(2, APPLICATION_ID, (), ((0,), (2,)), ((), ()))
    with nodes_with_key(tmp_path, before, after, complete=2) as nodes, nodes[0].client() as client:
        answer = client.get(f"/v1/keys/{KEY}{query}")
        assert (answer.status_code, answer.json(), answer.headers["qt-epoch"]) == (200, 7, "2")


def test_starting_node_fetches_the_newest_placement_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node fetches the newest placement before its first request: its own one may name only nodes without a replica."""
    monkeypatch.setattr(assigned_replicas, "_FIRST_FETCH_SECONDS", 10)
    before = Placement(1, APPLICATION_ID, (), ((0,), (1,)), ((), ()))
    after = Placement(4, APPLICATION_ID, (), ((0,), (2,)), ((), ()))
    with nodes_with_key(tmp_path, before, after, complete=2) as nodes:
        nodes[0].begin(nodes[0].node.assigned_replicas.start()).result(20)
        assert nodes[0].node.placement.epoch == 4
