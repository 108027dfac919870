"""What a node does when another one hangs, fails, or answers what no node answers."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import httpx
import pytest

from queryable_app.wire.partitioners import partition_for
from tests.support.bad_node import (
    KEY,
    RESET,
    FaultyNode,
    requesting_node,
    standby_node,
    with_faulty_node,
)
from tests.support.served import Served, exchange, parsed, read_answers, served
from tests.support.waiting import eventually

TWO_WAYS = pytest.mark.parametrize("query", ["", "?consistency=bounded"], ids=["fast lane", "fastapi"])


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
    with with_faulty_node(tmp_path, behaviour) as (node, bad, standby), node.client() as client:
        took = []
        for _ in range(20):
            answer = client.get(f"/v1/keys/{KEY}{query}")
            assert (answer.status_code, answer.json()) == (200, 7)
            assert (answer.headers["qt-served-by"], answer.headers["qt-hops"]) == ("users-r1-2", "1")
            took.append(answer.elapsed.total_seconds())
        assert median(took) < 0.5
        assert bad.reads > 0
        assert node.node.peers.suspected == frozenset()
        assert standby.node.counters.keys_found >= 20


@TWO_WAYS
def test_nobody_is_asked_in_vain_for_long(tmp_path: Path, query: str) -> None:
    """A copy that fails again and again is asked last, though it answers heartbeats."""
    with with_faulty_node(tmp_path, "resets") as (node, bad, _), node.client() as client:
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
    bad = FaultyNode(listener, "not available")
    with (
        requesting_node(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}") as node,
        node.client() as client,
    ):
        answer = client.get(f"/v1/keys/{KEY}{query}")
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")
        bad.behaviour = "hangs"
        answer = client.get(f"/v1/keys/{KEY}{query}", headers={"x-other": "connection"})
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")
        assert "no node that holds partition 1 can be reached" in answer.json()["detail"]
    bad.stop()


@TWO_WAYS
def test_a_node_that_does_not_know_the_token_is_passed_over(tmp_path: Path, query: str) -> None:
    """A client has nothing to be refused for by it."""
    with with_faulty_node(tmp_path, "forbidden") as (node, bad, _), node.client() as client:
        assert client.get(f"/v1/keys/{KEY}{query}").json() == 7
        assert bad.reads == 1


@TWO_WAYS
def test_a_node_that_does_not_know_the_token_is_no_node(tmp_path: Path, query: str) -> None:
    """Where it is the only one, nobody can be reached, which is not for the client to mend."""
    listener = socket.create_server(("127.0.0.1", 0))
    bad = FaultyNode(listener, "forbidden")
    with (
        requesting_node(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}") as node,
        node.client() as client,
    ):
        answer = client.get(f"/v1/keys/{KEY}{query}")
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")
    bad.stop()


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
        requesting_node(tmp_path, *addresses) as node,
        served(
            other / "node", ordinal=1, placement=node.node.placement, listener=listeners[0], settings=foreign
        ),
        standby_node(tmp_path, listeners[1], node.node.placement),
        node.client() as client,
    ):
        assert client.get(f"/v1/keys/{KEY}{query}").status_code == 200


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
    with requesting_node(tmp_path, "http://127.0.0.1:1") as node:
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
    with with_faulty_node(tmp_path, "hangs") as (node, _, _), node.client() as client:
        took = []
        for _ in range(5):
            started = time.monotonic()
            items = client.post("/v1/multi-get", json={"keys": [KEY]}).json()["items"]
            assert [item["value"] for item in items] == [7]
            assert [item["key"] for item in client.get("/v1/scan").json()["items"]] == [KEY]
            assert client.get("/v1/count").json()["count"] == 1
            took.append(time.monotonic() - started)
        assert median(took) < 1.5


def read_everything(client: httpx.Client, what: str, deadline_ms: int) -> object:
    """What there is of the key."""
    if what == "multi-get":
        answer = client.post(f"/v1/multi-get?deadline-ms={deadline_ms}", json={"keys": [KEY]})
        return [item["value"] for item in answer.json()["items"]]
    answer = client.get(f"/v1/{what}?deadline-ms={deadline_ms}")
    return answer.json()["count"] if what == "count" else [item["value"] for item in answer.json()["items"]]


@pytest.mark.parametrize(("what", "found"), [("multi-get", [7]), ("scan", [7]), ("count", 1)])
def test_a_read_leaves_a_node_that_falls_silent_meanwhile(tmp_path: Path, what: str, found: object) -> None:
    """As soon as its heartbeats make it a suspect, and not when half of the time is over."""
    with with_faulty_node(tmp_path, "falls silent") as (node, bad, _), node.client() as client:
        assert read_everything(client, what, 60_000) == found
        assert bad.reads <= 1  # none, when it was late to say that it may answer


@pytest.mark.parametrize("what", ["multi-get", "scan"])
def test_a_read_leaves_a_node_whose_reads_alone_hang(tmp_path: Path, what: str) -> None:
    """It answers heartbeats and says that it may answer, and still it is not asked a second time."""
    with with_faulty_node(tmp_path, "hangs later") as (node, bad, _), node.client() as client:
        assert read_everything(client, what, 8_000) == [7]
        assert bad.reads <= 1


@pytest.mark.parametrize(
    ("what", "found", "behaviour"),
    [
        ("multi-get", [7], "says nothing"),
        ("multi-get", [7], "says nonsense"),
        ("scan", [7], "says nothing"),
        ("scan", [7], "says nothing later"),
        ("count", 1, "says nonsense"),
        ("count", 1, "says nothing later"),
    ],
)
def test_a_read_leaves_a_node_whose_answers_lack_something(
    tmp_path: Path, what: str, found: object, behaviour: str
) -> None:
    """Its answer is well-formed, and not one to this question: the next copy answers."""
    with with_faulty_node(tmp_path, behaviour) as (node, bad, _), node.client() as client:
        assert read_everything(client, what, 20_000) == found
        assert bad.reads <= 1  # none, when it was late to say that it may answer


@pytest.mark.parametrize("behaviour", ["says nothing", "says nothing later", "says nonsense"])
def test_a_read_of_a_node_whose_answers_lack_something_is_not_available(
    tmp_path: Path, behaviour: str
) -> None:
    """Where it is the only one; a defect of another node is none of this one."""
    listener = socket.create_server(("127.0.0.1", 0))
    bad = FaultyNode(listener, behaviour)
    with (
        requesting_node(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}") as node,
        node.client() as client,
    ):
        answer = client.get("/v1/count")
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")
    bad.stop()


def test_a_silent_node_is_waited_for_when_nobody_else_has_the_rows(tmp_path: Path) -> None:
    """A long count goes on over a pause of the only node that can do it."""
    listener = socket.create_server(("127.0.0.1", 0))
    bad = FaultyNode(listener, "falls silent")
    with (
        requesting_node(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}") as node,
        node.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        eventually("it is heard", lambda: node.node.peers.last_heartbeats)
        counting = pool.submit(read_everything, client, "count", 60_000)
        eventually("it is a suspect", lambda: node.node.peers.suspected)
        eventually("it stays one", lambda: node.node.peers._health[1]._missed >= 6)
        bad.awake.set()
        assert counting.result(15) == 1
        assert bad.reads == 1
    bad.stop()


def test_answers_keep_the_order_of_the_requests(tmp_path: Path) -> None:
    """What a client sends while its forwarded read waits is answered after it, also when it is here and quick."""
    here = next(f"key-{n}" for n in range(99) if partition_for(b"key-%d" % n, "murmur2", 2) == 0)
    with with_faulty_node(tmp_path, "hangs") as (node, _, _):
        with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
            for target in (KEY, here, f"{here}?x=y", KEY):
                connection.sendall(f"GET /v1/keys/{target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                eventually("it is on its way", lambda: node.node.forwarded_reads.running)
            answers = read_answers(connection, 4)
        statuses = [int(piece[1:4]) for piece in answers.split(b"HTTP/1.1")[1:]]
        assert statuses == [200, 404, 400, 200]


def test_more_reads_than_can_wait_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """429 overloaded, at once."""
    monkeypatch.setattr("queryable_app.serve.peers.pipeline._UNANSWERED_MAX", 4)
    listener = socket.create_server(("127.0.0.1", 0))
    bad = FaultyNode(listener, "hangs")
    with ExitStack() as stack:
        node = stack.enter_context(requesting_node(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}"))
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
    bad = FaultyNode(listener, "hangs")
    with requesting_node(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}") as node:
        with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
            connection.sendall(f"GET /v1/keys/{KEY} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            eventually("it is on its way", lambda: bad.reads)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        eventually("it is forgotten", lambda: not node.node.forwarded_reads.running, 1)
    bad.stop()


def test_a_server_that_ends_answers_what_it_has_forwarded(tmp_path: Path) -> None:
    """The connection is closed behind the answer, not before it."""

    def end(node: Served) -> None:
        for protocol in node.protocol.open:
            protocol.shutdown()

    with with_faulty_node(tmp_path, "hangs") as (node, _, _):
        with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
            connection.sendall(f"GET /v1/keys/{KEY} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            eventually("it is on its way", lambda: node.node.forwarded_reads.running)
            node.on_loop(lambda: end(node))
            received = b""
            while chunk := connection.recv(65536):
                received += chunk
        assert received.startswith(b"HTTP/1.1 200")


def test_a_client_cannot_bring_nodes_into_doubt(tmp_path: Path) -> None:
    """Reads with hardly any time say nothing of the node that did not answer in it."""
    with with_faulty_node(tmp_path, "hangs") as (node, bad, _), node.client() as client:
        for _ in range(30):
            client.get(f"/v1/keys/{KEY}?deadline-ms=40")
        assert node.node.peers.suspected == frozenset()
        before = bad.reads
        assert client.get(f"/v1/keys/{KEY}").status_code == 200
        assert bad.reads == before + 1  # it is still the first to be asked
