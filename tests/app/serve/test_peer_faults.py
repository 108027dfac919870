"""What a node does when another one is away, hangs, or answers what no node answers."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from queryable_app.contract import NodeSettings
from queryable_app.partitioners import partition_for
from queryable_app.placement import Placement
from tests.support.served import Served, eventually, exchange, parsed, read_answers, served

TOKEN = "between-nodes"
TWO_WAYS = pytest.mark.parametrize("query", ["", "?consistency=bounded"], ids=["fast lane", "fastapi"])
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: closing resets the connection
WELL = b'{"epoch":1,"mismatches":[0,0,0],"copies":{"1":[1,0,true]}}'


def http(status: int, body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n%b\r\n%b" % (status, len(body), more, body)


class BadNode:
    """Answers heartbeats as a node does, and reads as it is told."""

    def __init__(self, listener: socket.socket, behaviour: str) -> None:
        self.behaviour = behaviour
        self.reads = 0
        self._listener = listener
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(65536):
                if b"/internal/v1/heartbeat" in data:
                    connection.sendall(http(200, WELL))
                    continue
                self.reads += data.count(b"GET /v1/keys/")
                self._answer(connection)
        except OSError:
            pass

    def _answer(self, connection: socket.socket) -> None:
        match self.behaviour:
            case "garbage":
                connection.sendall(b"220 mail.example ESMTP\r\n\r\n")
            case "no length":
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            case "closes":
                connection.close()
            case "resets":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.close()
            case "resets in the middle":
                connection.sendall(http(200, b"x" * 1000)[:200])
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.close()
            case "half an answer":
                connection.sendall(http(200, b"x" * 1000)[:200])
            case "wrong owner":
                connection.sendall(http(421, b'{"reason":"wrong_owner"}'))
            case "not available":
                connection.sendall(http(503, b'{"reason":"not_available"}'))
            case "defect":
                connection.sendall(http(500, b'{"reason":"internal"}'))
            case "forbidden":
                connection.sendall(http(403, b'{"reason":"forbidden"}'))
            case "overloaded":
                connection.sendall(http(429, b'{"reason":"overloaded"}'))

    def stop(self) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.close()


def placed(*addresses: str) -> Placement:
    """Node 0 has partition 0, the others partition 1, in their order."""
    return Placement(1, "tests.users.r1", addresses, ((0,), tuple(range(1, len(addresses)))), ((), ()))


KEY = next(f"key-{n}" for n in range(99) if partition_for(b"key-%d" % n, "murmur2", 2) == 1)


@contextmanager
def asked_node(directory: Path, *others: str, settings: dict[str, object] | None = None) -> Iterator[Served]:
    """Node 0, which has to ask others for the key."""
    directory.mkdir(exist_ok=True)
    (directory / "token").write_text(TOKEN)
    listener = socket.create_server(("127.0.0.1", 0))
    placement = placed(f"http://127.0.0.1:{listener.getsockname()[1]}", *others)
    token = {"internal_token_path": str(directory / "token"), **(settings or {})}
    with served(directory / "node-0", placement=placement, listener=listener, settings=token) as node:
        yield node


@contextmanager
def standby_node(directory: Path, listener: socket.socket, placement: Placement) -> Iterator[Served]:
    directory.mkdir(exist_ok=True)
    (directory / "token").write_text(TOKEN)
    token = {"internal_token_path": str(directory / "token")}
    with served(
        directory / "node-2", ordinal=2, placement=placement, listener=listener, settings=token
    ) as node:
        node.put(KEY.encode(), b"7", partition=1)
        yield node


@contextmanager
def with_a_bad_node(directory: Path, behaviour: str) -> Iterator[tuple[Served, BadNode, Served]]:
    """Node 0 asks, node 1 is first to be asked and behaves badly, node 2 is well."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    bad = BadNode(listeners[0], behaviour)
    try:
        with (
            asked_node(directory, *addresses) as node,
            standby_node(directory, listeners[1], node.node.placement) as standby,
        ):
            eventually("both are heard", lambda: len(node.node.peers.heard) == 2)
            eventually("none is a suspect", lambda: not node.node.peers.suspects)
            yield node, bad, standby
    finally:
        bad.stop()


@TWO_WAYS
@pytest.mark.parametrize(
    "behaviour",
    [
        "hangs", "garbage", "no length", "closes", "resets", "resets in the middle", "half an answer",
        "wrong owner", "not available", "defect", "overloaded",
    ],
)  # fmt: skip
def test_the_next_copy_answers(tmp_path: Path, behaviour: str, query: str) -> None:
    """Within the same request, long before its deadline, whatever the first copy does."""
    with with_a_bad_node(tmp_path, behaviour) as (node, bad, standby), node.client() as client:
        for _ in range(20):
            answer = client.get(f"/v1/keys/{KEY}{query}")
            assert (answer.status_code, answer.json()) == (200, 7)
            assert (answer.headers["qt-served-by"], answer.headers["qt-hops"]) == ("users-r1-2", "1")
            assert answer.elapsed.total_seconds() < 1
        assert bad.reads > 0
        assert node.node.peers.suspects == frozenset()
        assert standby.node.counters.keys_found >= 20


@TWO_WAYS
def test_nobody_is_asked_in_vain_for_long(tmp_path: Path, query: str) -> None:
    """A copy that fails again and again is asked last, though it answers heartbeats."""
    with with_a_bad_node(tmp_path, "resets") as (node, bad, _), node.client() as client:
        for _ in range(10):
            client.get(f"/v1/keys/{KEY}{query}")
        before = bad.reads
        assert before > 0
        for _ in range(50):
            assert client.get(f"/v1/keys/{KEY}{query}").status_code == 200
        assert bad.reads - before <= 4


@TWO_WAYS
def test_a_refusal_of_everyone_is_passed_back(tmp_path: Path, query: str) -> None:
    """503 not_available with its reason when that is all that there is, and never key_not_found."""
    listener = socket.create_server(("127.0.0.1", 0))
    bad = BadNode(listener, "not available")
    with (
        asked_node(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}") as node,
        node.client() as client,
    ):
        answer = client.get(f"/v1/keys/{KEY}{query}")
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")
        bad.behaviour = "hangs"
        answer = client.get(f"/v1/keys/{KEY}{query}", headers={"x-other": "connection"})
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")
        assert "no node that holds partition 1 can be reached" in answer.json()["detail"]
    bad.stop()


def test_a_node_that_does_not_know_the_token_is_passed_over(tmp_path: Path) -> None:
    """A plain read carries nothing that its client could be refused for."""
    with with_a_bad_node(tmp_path, "forbidden") as (node, bad, _), node.client() as client:
        assert client.get(f"/v1/keys/{KEY}").json() == 7
        assert bad.reads == 1


@TWO_WAYS
def test_a_node_of_another_view_is_passed_over(tmp_path: Path, query: str) -> None:
    """Its refusal of our token is no answer to the client."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "token").write_text("another token")
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    foreign = {"internal_token_path": str(other / "token")}
    with (
        asked_node(tmp_path, *addresses) as node,
        served(
            other / "node", ordinal=1, placement=node.node.placement, listener=listeners[0], settings=foreign
        ),
        standby_node(tmp_path, listeners[1], node.node.placement),
        node.client() as client,
    ):
        assert client.get(f"/v1/keys/{KEY}{query}").status_code == 200


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
    """Killed, stopped or asked to end: no read fails and none takes long, and soon it is a suspect."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    with (
        asked_node(tmp_path, *addresses) as node,
        standby_node(tmp_path, listeners[1], node.node.placement) as standby,
    ):
        settings = node_one(tmp_path, node, listeners[0])
        with process_of(settings) as process:
            eventually("node 1 is there", lambda: not node.node.peers.suspects, 20)
            took = stopped_while_asked(process, node, signal_number)
            eventually("it is a suspect", lambda: node.node.peers.suspects == {1})
    assert max(took) < 1
    assert sum(seconds > 0.1 for seconds in took) <= 5
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


@pytest.mark.parametrize(
    "header",
    [
        "qt-forwarded: x\r\nqt-deadline-ms: 2000",
        "qt-forwarded: \r\nqt-deadline-ms: 2000",
        "qt-forwarded: x\r\nqt-forwarded: x\r\nqt-deadline-ms: 2000",
        "qt-forwarded: x",
    ],
)
def test_a_forged_mark_is_refused(tmp_path: Path, header: str) -> None:
    """On one request or on many at once, whoever is asked first."""
    with asked_node(tmp_path, "http://127.0.0.1:1") as node:
        request = f"GET /v1/keys/{KEY} HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode()
        for _ in range(2):
            status, _, body = parsed(exchange(node.port, request))
            assert (status, b'"forbidden"' in body) == (403, True)
        many = exchange(node.port, request * 3)
        assert many.startswith(b"HTTP/1.1 403")
        assert b"HTTP/1.1 2" not in many
        assert httpx.get(f"{node.url}/internal/v1/heartbeat", headers={"qt-node": "x"}).status_code == 403


def test_reads_of_everything_do_not_wait_for_a_node_that_hangs(tmp_path: Path) -> None:
    """Multi-get, scan and count ask the next copy after a moment, although the first one answers heartbeats."""
    with with_a_bad_node(tmp_path, "hangs") as (node, _, _), node.client() as client:
        for _ in range(5):
            started = time.monotonic()
            items = client.post("/v1/multi-get", json={"keys": [KEY]}).json()["items"]
            assert [item["value"] for item in items] == [7]
            assert [item["key"] for item in client.get("/v1/scan").json()["items"]] == [KEY]
            assert client.get("/v1/count").json()["count"] == 1
            assert time.monotonic() - started < 1.5


def test_answers_keep_the_order_of_the_requests(tmp_path: Path) -> None:
    """What a client sends while its forwarded read waits is answered after it, also when it is here and quick."""
    here = next(f"key-{n}" for n in range(99) if partition_for(b"key-%d" % n, "murmur2", 2) == 0)
    with with_a_bad_node(tmp_path, "hangs") as (node, _, _):
        with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
            for target in (KEY, here, f"{here}?x=y", KEY):
                connection.sendall(f"GET /v1/keys/{target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                eventually("it is on its way", lambda: node.protocol.forwards.running)
            answers = read_answers(connection, 4)
        statuses = [int(piece[1:4]) for piece in answers.split(b"HTTP/1.1")[1:]]
        assert statuses == [200, 404, 400, 200]


def test_more_reads_than_can_wait_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """429 overloaded, at once."""
    monkeypatch.setattr("queryable_app.serve.peer_link._CALLS_MAX", 4)
    listener = socket.create_server(("127.0.0.1", 0))
    bad = BadNode(listener, "hangs")
    with ExitStack() as stack:
        node = stack.enter_context(asked_node(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}"))
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=10))
            for _ in range(6)
        ]
        for connection in connections:
            connection.sendall(f"GET /v1/keys/{KEY} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        statuses = sorted(parsed(read_answers(connection, 1))[0] for connection in connections)
    bad.stop()
    assert statuses == [429, 429, 503, 503, 503, 503]


def test_a_client_that_leaves_takes_its_request_along(tmp_path: Path) -> None:
    """Nothing waits for an answer that nobody wants."""
    listener = socket.create_server(("127.0.0.1", 0))
    bad = BadNode(listener, "hangs")
    with asked_node(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}") as node:
        with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
            connection.sendall(f"GET /v1/keys/{KEY} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            eventually("it is on its way", lambda: bad.reads)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        eventually("it is forgotten", lambda: not node.protocol.forwards.running, 1)
    bad.stop()


def test_a_server_that_ends_answers_what_it_has_forwarded(tmp_path: Path) -> None:
    """The connection is closed behind the answer, not before it."""
    with with_a_bad_node(tmp_path, "hangs") as (node, _, _):
        with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
            connection.sendall(f"GET /v1/keys/{KEY} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            eventually("it is on its way", lambda: node.protocol.forwards.running)
            node.on_loop(lambda: [protocol.shutdown() for protocol in node.protocol.open])
            received = b""
            while chunk := connection.recv(65536):
                received += chunk
        assert received.startswith(b"HTTP/1.1 200")


def test_a_client_cannot_make_nodes_suspects(tmp_path: Path) -> None:
    """Reads with no time for an answer say nothing of the node that did not answer in it."""
    with with_a_bad_node(tmp_path, "hangs") as (node, _, standby), node.client() as client:
        for _ in range(30):
            client.get(f"/v1/keys/{KEY}?deadline-ms=1")
        assert node.node.peers.suspects == frozenset()
        assert client.get(f"/v1/keys/{KEY}?consistency=any").status_code == 200
        assert standby.node.counters.keys_found > 0


def test_the_nodes_follow_the_placement(tmp_path: Path) -> None:
    """One that comes is heard, one that leaves is not asked any more, and a newer placement is noticed and fetched."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    with asked_node(tmp_path, addresses[0]) as node, node.client() as client:
        first = node.node.placement
        newer = replace(placed(first.addresses[0], *addresses), epoch=2)
        told: list[int] = []
        node.node.peers.newer_epoch = told.append
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
            node.on_loop(lambda: setattr(node.node.copies, "placement", fetched))
            eventually("both are heard", lambda: set(node.node.peers.heard) == {1, 2})
            assert client.get(f"/v1/keys/{KEY}").status_code in (200, 404)
            node.on_loop(lambda: setattr(node.node.copies, "placement", replace(first, epoch=3)))
            eventually("the other is forgotten", lambda: set(node.node.peers.heard) == {1})


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
        eventually("all are heard", lambda: len(nodes[0].node.peers.heard) == 2)
        yield nodes


@TWO_WAYS
def test_a_copy_that_is_being_built_is_not_asked_for_what_another_serves(tmp_path: Path, query: str) -> None:
    """And when it is the only one left, a key that it does not have is not_available, never key_not_found."""
    placement = Placement(1, "tests.users.r1", (), ((0,), (2,)), ((), (1,)))
    with three_nodes(tmp_path, placement, placement, whole=2) as nodes, nodes[0].client() as client:
        for _ in range(20):
            assert client.get(f"/v1/keys/{KEY}{query}").json() == 7
        nodes[2].on_loop(nodes[2].node.copies.by_partition.clear)
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
