"""Reads succeed while another node hangs, fails, or sends malformed responses."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import httpx
import pytest

from queryable_app.errors import Failure, Reason
from queryable_app.policy.freshness import ReadOptions
from queryable_app.wire.partitioners import partition_for
from tests.support.faulty_node import (
    KEY,
    RESET,
    requesting_node,
    standby_node,
    with_faulty_node,
    with_only_faulty_node,
)
from tests.support.node_cluster import address_of, listen
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
def test_next_replica_answers(tmp_path: Path, behaviour: str, query: str) -> None:
    """The client gets the value long before the deadline, whatever the first replica does."""
    with with_faulty_node(tmp_path, behaviour) as (node, faulty, standby), node.client() as client:
        took = []
        for _ in range(20):
            answer = client.get(f"/v1/keys/{KEY}{query}")
            assert (answer.status_code, answer.json()) == (200, 7)
            assert (answer.headers["qt-served-by"], answer.headers["qt-hops"]) == ("users-r1-2", "1")
            took.append(answer.elapsed.total_seconds())
        assert median(took) < 0.5
        assert faulty.reads > 0
        assert node.node.peers.suspected == frozenset()
        assert standby.node.counters.keys_found >= 20


@TWO_WAYS
def test_failing_replica_is_tried_last(tmp_path: Path, query: str) -> None:
    """After several failures in a row the node gets hardly any reads, although it answers heartbeats."""
    with with_faulty_node(tmp_path, "resets") as (node, faulty, _), node.client() as client:
        for _ in range(10):
            client.get(f"/v1/keys/{KEY}{query}")
        before = faulty.reads
        assert before > 0
        for _ in range(50):
            assert client.get(f"/v1/keys/{KEY}{query}").status_code == 200
        assert faulty.reads - before <= 4


@TWO_WAYS
def test_refusal_of_all_replicas_reaches_the_client(tmp_path: Path, query: str) -> None:
    """The client gets 503 not_available with the replica's reason, and never key_not_found."""
    with with_only_faulty_node(tmp_path, "not available") as (node, _), node.client() as client:
        answer = client.get(f"/v1/keys/{KEY}{query}")
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")


@TWO_WAYS
@pytest.mark.parametrize("path", [f"/v1/keys/{KEY}", "/v1/scan"])
def test_read_without_an_answer_from_a_node_that_is_alive_is_late(
    tmp_path: Path, path: str, query: str
) -> None:
    """The client gets 504 deadline_exceeded, and not that the node cannot be reached."""
    with with_only_faulty_node(tmp_path, "hangs") as (node, _), node.client() as client:
        answer = client.get(f"{path}{query}", headers={"qt-deadline-ms": "500"})
        assert (answer.status_code, answer.json()["reason"]) == (504, "deadline_exceeded")
        assert "no node that holds partition 1 has answered in time" in answer.json()["detail"]


@TWO_WAYS
@pytest.mark.parametrize("path", [f"/v1/keys/{KEY}", "/v1/scan"])
def test_read_is_not_available_if_the_only_node_is_silent(tmp_path: Path, path: str, query: str) -> None:
    """The client gets 503 not_available if the node does not answer heartbeats either."""
    with with_only_faulty_node(tmp_path, "hangs") as (node, faulty), node.client() as client:
        faulty.behaviour = "silent"
        eventually("the node is suspected", lambda: node.node.peers.suspected == {1})
        answer = client.get(f"{path}{query}", headers={"qt-deadline-ms": "500"})
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")
        assert "no node that holds partition 1 can be reached" in answer.json()["detail"]


@TWO_WAYS
def test_next_replica_answers_if_a_node_refuses_the_token(tmp_path: Path, query: str) -> None:
    """The refusal is of this node, and does not reach the client."""
    with with_faulty_node(tmp_path, "forbidden") as (node, faulty, _), node.client() as client:
        # On a busy machine the next replica may answer before the first has received a read.
        def is_refused() -> bool:
            assert client.get(f"/v1/keys/{KEY}{query}").json() == 7
            return faulty.reads > 0

        eventually("the first replica refuses a read", is_refused)


@TWO_WAYS
def test_read_is_not_available_if_the_only_node_refuses_the_token(tmp_path: Path, query: str) -> None:
    """The client gets 503 not_available: it cannot correct the token."""
    with with_only_faulty_node(tmp_path, "forbidden") as (node, _), node.client() as client:
        answer = client.get(f"/v1/keys/{KEY}{query}")
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")


@TWO_WAYS
def test_next_replica_answers_if_a_node_is_of_another_view(tmp_path: Path, query: str) -> None:
    """The next replica answers if the first node has another view's token and refuses this one's."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "token").write_text("another token")
    listeners = listen(2)
    addresses = [address_of(listener) for listener in listeners]
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
def test_forged_forwarding_header_is_refused(tmp_path: Path, header: str) -> None:
    """A node answers 403 to one such request, and to the first of several in one write."""
    with requesting_node(tmp_path, "http://127.0.0.1:1") as node:
        request = f"GET /v1/keys/{KEY} HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode()
        for _ in range(2):
            status, _, body = parsed(exchange(node.port, request))
            assert (status, b'"forbidden"' in body) == (403, True)
        many = exchange(node.port, request * 3)
        assert many.startswith(b"HTTP/1.1 403")
        assert b"HTTP/1.1 2" not in many
        assert httpx.get(f"{node.url}/internal/v1/heartbeat", headers={"qt-node": "x"}).status_code == 403


def test_reads_over_partitions_do_not_wait_for_a_hanging_node(tmp_path: Path) -> None:
    """Multi-get, scan and count try the next replica soon, although the first node answers heartbeats."""
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
    """Return what the read finds of the key."""
    if what == "multi-get":
        answer = client.post(f"/v1/multi-get?deadline-ms={deadline_ms}", json={"keys": [KEY]})
        return [item["value"] for item in answer.json()["items"]]
    answer = client.get(f"/v1/{what}?deadline-ms={deadline_ms}")
    return answer.json()["count"] if what == "count" else [item["value"] for item in answer.json()["items"]]


@pytest.mark.parametrize(("what", "found"), [("multi-get", [7]), ("scan", [7]), ("count", 1)])
def test_read_moves_to_the_next_replica_when_the_node_is_suspected(
    tmp_path: Path, what: str, found: object
) -> None:
    """A read moves to the next replica when heartbeats are missed, not when half of the deadline has passed."""
    with with_faulty_node(tmp_path, "falls silent") as (node, faulty, _), node.client() as client:
        assert read_everything(client, what, 60_000) == found
        assert faulty.reads <= 1  # none, if it was late to report its replica


@pytest.mark.parametrize("what", ["multi-get", "scan"])
def test_read_moves_to_the_next_replica_if_only_its_request_hangs(tmp_path: Path, what: str) -> None:
    """The node answers heartbeats and reports a fresh replica, but gets no second request of the read."""
    with with_faulty_node(tmp_path, "hangs later") as (node, faulty, _), node.client() as client:
        assert read_everything(client, what, 8_000) == [7]
        assert faulty.reads <= 1


@pytest.mark.parametrize(
    ("what", "found", "behaviour"),
    [
        ("multi-get", [7], "returns no fields"),
        ("multi-get", [7], "returns malformed fields"),
        ("scan", [7], "returns no fields"),
        ("scan", [7], "returns no fields later"),
        ("count", 1, "returns malformed fields"),
        ("count", 1, "returns no fields later"),
    ],
)
def test_read_moves_to_the_next_replica_after_a_malformed_response(
    tmp_path: Path, what: str, found: object, behaviour: str
) -> None:
    """The frame is valid, but lacks what the request needs."""
    with with_faulty_node(tmp_path, behaviour) as (node, faulty, _), node.client() as client:
        assert read_everything(client, what, 20_000) == found
        assert faulty.reads <= 1  # none, if it was late to report its replica


@pytest.mark.parametrize(
    "behaviour", ["returns no fields", "returns no fields later", "returns malformed fields"]
)
def test_read_is_not_available_if_the_only_response_is_malformed(tmp_path: Path, behaviour: str) -> None:
    """The defect is the other node's, so this node does not answer 500."""
    with with_only_faulty_node(tmp_path, behaviour) as (node, _), node.client() as client:
        answer = client.get("/v1/count")
        assert (answer.status_code, answer.json()["reason"]) == (503, "not_available")


def test_read_waits_for_a_suspected_node_if_no_other_has_the_rows(tmp_path: Path) -> None:
    """A long count survives a pause of the only node with the partition."""
    with (
        with_only_faulty_node(tmp_path, "falls silent") as (node, faulty),
        node.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        eventually("its heartbeat arrived", lambda: node.node.peers.last_heartbeats)
        counting = pool.submit(read_everything, client, "count", 60_000)
        eventually("it is suspected", lambda: node.node.peers.suspected)
        eventually("it stays suspected", lambda: node.node.peers._health[1]._missed >= 6)
        faulty.recovered.set()
        assert counting.result(15) == 1
        assert faulty.reads == 1


def test_responses_keep_the_order_of_the_requests(tmp_path: Path) -> None:
    """A request behind a forwarded read is answered after it, also if its key is on this node."""
    here = next(f"key-{n}" for n in range(99) if partition_for(b"key-%d" % n, "murmur2", 2) == 0)
    with with_faulty_node(tmp_path, "hangs") as (node, _, _):
        with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
            for target in (KEY, here, f"{here}?x=y", KEY):
                connection.sendall(f"GET /v1/keys/{target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                eventually("it is forwarded", lambda: node.node.forwarded_reads.running)
            answers = read_answers(connection, 4)
        statuses = [int(piece[1:4]) for piece in answers.split(b"HTTP/1.1")[1:]]
        assert statuses == [200, 404, 400, 200]


def test_reads_beyond_the_limit_of_a_peer_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets 429 overloaded at once."""
    monkeypatch.setattr("queryable_app.serve.peers.pipeline._UNANSWERED_MAX", 4)
    with ExitStack() as stack:
        node, _ = stack.enter_context(with_only_faulty_node(tmp_path, "hangs", {"read_deadline_ms": 1000}))
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=10))
            for _ in range(6)
        ]
        for connection in connections:
            connection.sendall(f"GET /v1/keys/{KEY} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        statuses = sorted(parsed(read_answers(connection, 1))[0] for connection in connections)
    assert statuses == [429, 429, 504, 504, 504, 504]


def test_forwarded_read_is_dropped_when_its_client_disconnects(tmp_path: Path) -> None:
    """No state of the read is left."""
    with with_only_faulty_node(tmp_path, "hangs") as (node, faulty):
        with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
            connection.sendall(f"GET /v1/keys/{KEY} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            eventually("the other node got it", lambda: faulty.reads)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        eventually("the read is dropped", lambda: not node.node.forwarded_reads.running, 1)


def test_cancelled_read_with_options_is_dropped(tmp_path: Path) -> None:
    """Neither the read nor its request to the other node is left."""
    refusal = Failure(Reason.WRONG_OWNER, "", "", partition=1)
    with with_only_faulty_node(tmp_path, "hangs") as (node, faulty):
        forwarded_reads = node.node.forwarded_reads
        target, deadline = f"/v1/keys/{KEY}?consistency=bounded".encode(), time.monotonic() + 60
        reading = node.begin(forwarded_reads.with_options(target, b"", 1, ReadOptions(), refusal, deadline))
        eventually("the other node got it", lambda: faulty.reads)
        reading.cancel()
        eventually("the read is dropped", lambda: not forwarded_reads.running, 1)
        permits = node.node.peers._peers[1].client._permits
        eventually("the request is dropped", lambda: permits._value == node.node.peers._connections_max, 1)


def test_shutdown_waits_for_forwarded_reads(tmp_path: Path) -> None:
    """The connection is closed after the response, not before."""

    def end(node: Served) -> None:
        for protocol in node.protocol.open:
            protocol.shutdown()

    with with_faulty_node(tmp_path, "hangs") as (node, _, _):
        with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
            connection.sendall(f"GET /v1/keys/{KEY} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            eventually("it is forwarded", lambda: node.node.forwarded_reads.running)
            node.on_loop(lambda: end(node))
            received = b""
            while chunk := connection.recv(65536):
                received += chunk
        assert received.startswith(b"HTTP/1.1 200")


def test_short_deadlines_of_a_client_make_no_node_unhealthy(tmp_path: Path) -> None:
    """A read that times out after 40 ms says nothing about the node."""
    with with_faulty_node(tmp_path, "hangs") as (node, faulty, _), node.client() as client:
        for _ in range(30):
            client.get(f"/v1/keys/{KEY}?deadline-ms=40")
        assert node.node.peers.suspected == frozenset()
        answer = client.get(f"/v1/keys/{KEY}?max-lag-records=1234567")
        assert answer.status_code == 200
        assert sum(b"1234567" in asked for asked in faulty.asked) == 1  # it is still tried first
