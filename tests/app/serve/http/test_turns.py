"""Test the order of answers on a connection whose input arrives several times in one turn of the event loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from queryable_app.errors import Failure
from queryable_app.policy.routing import not_hosted_here
from queryable_app.serve.api.guard import PIECE_BYTES
from queryable_app.serve.http.fast_lane import FastLane
from tests.support.certificates import CertificateAuthority
from tests.support.served import Served, served
from tests.support.tls_node import connect, tls_node, trusting
from tests.support.waiting import eventually
from tests.support.wire import Wire, wire

KEY = b"GET /v1/keys/a HTTP/1.1\r\nHost: node\r\n\r\n"
MISSING = b"GET /v1/keys/missing HTTP/1.1\r\nHost: node\r\n\r\n"
SLOW = b"GET /v1/keys/a?consistency=any HTTP/1.1\r\nHost: node\r\n\r\n"
GARBAGE = b"no request\r\n\r\n"


@pytest.fixture(params=["plain", "TLS"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Served, Wire]]:
    """Return a node, and a connection that it has answered on."""
    with ExitStack() as stack:
        if request.param == "TLS":
            ca = CertificateAuthority()
            node = stack.enter_context(tls_node(tmp_path, ca))
            client = Wire(stack.enter_context(connect(node, trusting(ca))))
        else:
            node = stack.enter_context(served(tmp_path))
            client = stack.enter_context(wire(node.port))
        node.put(b"a", b"1")
        client.send(KEY)
        assert client.answer().body == b"1"
        yield node, client


def connection_of(node: Served) -> FastLane:
    """Return the node's side of the only connection."""
    eventually("the node has one connection", lambda: len(node.protocol.open) == 1)
    (connection,) = node.protocol.open
    assert isinstance(connection, FastLane)
    return connection


@pytest.mark.parametrize(
    ("later", "status"),
    [(MISSING, 404), (SLOW, 200), (GARBAGE, 400), (KEY, 200)],
    ids=["absent", "task", "garbage", "key"],
)
def test_answers_of_one_turn_keep_their_order(opened: tuple[Served, Wire], later: bytes, status: int) -> None:
    """A request that arrives in the turn of an earlier one is answered after it, on any path."""
    node, client = opened
    connection = connection_of(node)

    def receive() -> None:
        connection.data_received(KEY)
        connection.data_received(later)

    node.on_loop(receive)
    assert client.answer().body == b"1"
    assert client.answer().status == status


@pytest.mark.parametrize("outcome", ["a failure", "a large answer"])
def test_outcome_of_a_forwarded_read_comes_after_earlier_answers(
    opened: tuple[Served, Wire], outcome: str
) -> None:
    """What another node answers comes after the answer of the same turn before it."""
    node, client = opened
    connection = connection_of(node)
    large = b"x" * (PIECE_BYTES + 1)

    def receive() -> None:
        connection.data_received(KEY)
        if outcome == "a failure":
            connection.on_forward_failure(not_hosted_here(0))
        else:
            connection.on_forwarded_response(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(large), large
            )

    node.on_loop(receive)
    assert client.answer().body == b"1"
    later = client.answer()
    assert later.body == large or later.reason == "wrong_owner"


def test_read_behind_a_forwarded_one_is_not_forwarded_beside_it(
    opened: tuple[Served, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the request before it is forwarded in the same turn, a read waits for that answer."""
    node, client = opened
    connection = connection_of(node)
    forwarded: list[bytes] = []

    def forward(key: bytes, _: Failure) -> None:
        forwarded.append(key)

    def receive() -> None:
        monkeypatch.setattr(connection, "_forward", forward)
        monkeypatch.setattr(connection, "queued", object())  # stands for a request in progress
        connection.idle_since = None
        connection.take_unanswered(b"a", KEY, not_hosted_here(0))
        monkeypatch.undo()
        connection.idle_since = connection.sweeps
        connection.resume_parsing()

    node.on_loop(receive)
    assert client.answer().body == b"1"
    assert forwarded == []


def test_answer_comes_before_the_end_of_the_input(opened: tuple[Served, Wire]) -> None:
    """A client that ends its input in the turn of its request gets the answer."""
    node, client = opened
    connection = connection_of(node)

    def receive() -> None:
        connection.data_received(KEY)
        if not connection.eof_received():
            connection.transport.close()

    node.on_loop(receive)
    assert [answer.body for answer in client.answers()] == [b"1"]


def test_answer_comes_before_a_shutdown(opened: tuple[Served, Wire]) -> None:
    """A node that shuts down in the turn of a request answers it."""
    node, client = opened
    connection = connection_of(node)

    def receive() -> None:
        connection.data_received(KEY)
        connection.shutdown()

    node.on_loop(receive)
    assert [answer.body for answer in client.answers()] == [b"1"]


def test_answer_is_written_before_the_socket_is_closed(opened: tuple[Served, Wire]) -> None:
    """Nothing is left to write once a connection is lost: its socket's number may be another connection's by then."""
    node, _ = opened
    connection = connection_of(node)
    left: list[bool] = []

    def receive() -> None:
        connection.data_received(KEY)
        connection.connection_lost(None)
        left.append(bool(connection.turn._reads or connection.turn._answers))
        connection.transport.abort()

    node.on_loop(receive)
    assert left == [False]
