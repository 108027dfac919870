"""Nodes that go away, come, and follow placements of different epochs, while they are read."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import Placement
from queryable_app.serve.replication import assigned_replicas as assigned_replicas
from tests.support.bad_node import KEY, TOKEN, placement_of, requesting_node, standby_node
from tests.support.served import Served, served
from tests.support.waiting import eventually

TWO_WAYS = pytest.mark.parametrize("query", ["", "?consistency=bounded"], ids=["fast lane", "fastapi"])


def stopped_while_asked(process: subprocess.Popen[bytes], node: Served, signal_number: int) -> list[float]:
    """Steady reads through node 0 while node 1 is stopped; the seconds that each took."""
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
def test_a_process_goes_away_under_reads(tmp_path: Path, signal_number: signal.Signals) -> None:
    """Killed, stopped or asked to end: no read fails, a few take long, and soon it is a suspect."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    with (
        requesting_node(tmp_path, *addresses) as node,
        standby_node(tmp_path, listeners[1], node.node.placement) as standby,
    ):
        # As little is known of its lag as of the process's, which has no Kafka.
        standby.on_loop(lambda: setattr(standby.node.replicas.by_partition[1], "fresh_as_of_ms", -1))
        settings = node_one(tmp_path, node, listeners[0])
        with process_of(settings) as process:
            eventually("node 1 is there", lambda: not node.node.peers.suspected, 20)
            took = stopped_while_asked(process, node, signal_number)
            eventually("it is a suspect", lambda: node.node.peers.suspected == {1})
    assert sum(seconds > 0.25 for seconds in took) <= 5
    assert 0 < standby.node.counters.keys_found <= 250


def node_one(directory: Path, node: Served, listener: socket.socket) -> NodeSettings:
    """Settings of a process of its own that has the key on disk. The listener only reserved the port."""
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


def test_the_nodes_follow_the_placement(tmp_path: Path) -> None:
    """One that comes is heard, one that leaves is not asked any more, and a newer placement is noticed and fetched."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    with requesting_node(tmp_path, addresses[0]) as node, node.client() as client:
        first = node.node.placement
        newer = replace(placement_of(first.addresses[0], *addresses), epoch=2)
        told: list[int] = []
        node.node.peers.on_newer_epoch = told.append
        with (
            standby_node(tmp_path, listeners[1], newer),
            served(
                tmp_path / "node-1",
                ordinal=1,
                placement=newer,
                listener=listeners[0],
                settings={"internal_token_path": str(tmp_path / "token")},
            ),
        ):
            eventually("it hears of a newer one", lambda: told)
            fetched = node.begin(node.node.peers.fetch_placement(1, time.monotonic() + 10)).result(10)
            assert fetched == newer
            node.on_loop(lambda: setattr(node.node.replicas, "placement", fetched))
            eventually("both are heard", lambda: set(node.node.peers.last_heartbeats) == {1, 2})
            assert client.get(f"/v1/keys/{KEY}").status_code in (200, 404)
            node.on_loop(lambda: setattr(node.node.replicas, "placement", replace(first, epoch=3)))
            eventually("the other is forgotten", lambda: set(node.node.peers.last_heartbeats) == {1})


@contextmanager
def three_nodes(directory: Path, of_0: Placement, of_others: Placement, whole: int) -> Iterator[list[Served]]:
    """Whose placements have no addresses yet. All copies of node `whole` are complete and have the key."""
    directory.mkdir(exist_ok=True)
    (directory / "token").write_text(TOKEN)
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    addresses = tuple(f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners)
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                served(
                    directory / f"node-{ordinal}",
                    ordinal=ordinal,
                    placement=replace(of_others if ordinal else of_0, addresses=addresses),
                    listener=listener,
                    complete=ordinal == whole,
                    settings={"internal_token_path": str(directory / "token")},
                )
            )
            for ordinal, listener in enumerate(listeners)
        ]
        nodes[whole].put(KEY.encode(), b"7", partition=1)
        eventually("all are heard", lambda: len(nodes[0].node.peers.last_heartbeats) == 2)
        yield nodes


@TWO_WAYS
def test_a_copy_that_is_being_built_is_not_asked_for_what_another_serves(tmp_path: Path, query: str) -> None:
    """And when it is the only one left, a key that it does not have is not_available, never key_not_found."""
    placement = Placement(1, "tests.users.r1", (), ((0,), (2,)), ((), (1,)))
    with three_nodes(tmp_path, placement, placement, whole=2) as nodes, nodes[0].client() as client:
        for _ in range(20):
            assert client.get(f"/v1/keys/{KEY}{query}").json() == 7
        nodes[2].on_loop(nodes[2].node.replicas.by_partition.clear)
        answer = client.get(f"/v1/keys/{KEY}{query}")
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")


@TWO_WAYS
def test_nodes_of_different_epochs_answer(tmp_path: Path, query: str) -> None:
    """A node that has not heard yet that the copy has moved asks who had it, and then who was to have it."""
    before = Placement(1, "tests.users.r1", (), ((0,), (1,)), ((), (2,)))
    after = Placement(2, "tests.users.r1", (), ((0,), (2,)), ((), ()))
    with three_nodes(tmp_path, before, after, whole=2) as nodes, nodes[0].client() as client:
        answer = client.get(f"/v1/keys/{KEY}{query}")
        assert (answer.status_code, answer.json(), answer.headers["qt-epoch"]) == (200, 7, "2")


def test_a_node_that_starts_knows_what_was_decided_while_it_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it answers the first request: by the placement that it has, it might ask only nodes that hold nothing any
    more."""
    monkeypatch.setattr(assigned_replicas, "_FIRST_FETCH_SECONDS", 10)
    before = Placement(1, "tests.users.r1", (), ((0,), (1,)), ((), ()))
    after = Placement(4, "tests.users.r1", (), ((0,), (2,)), ((), ()))
    with three_nodes(tmp_path, before, after, whole=2) as nodes:
        nodes[0].begin(nodes[0].node.assigned_replicas.start()).result(20)
        assert nodes[0].node.placement.epoch == 4
