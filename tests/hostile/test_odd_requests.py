"""Test requests that are not quite HTTP/1.1, or that this API does not accept."""

from __future__ import annotations

from tests.support.served import Served
from tests.support.wire import request, wire


def test_garbage_gets_400_and_ends_the_connection(node: Served) -> None:
    """A node answers bytes that are not HTTP with 400 and closes the connection."""
    with wire(node.port) as connection:
        connection.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not HTTP at all\r\n\r\n")
        (answer,) = connection.answers()
    assert (answer.status, answer.reason) == (400, "invalid_request")


def test_pipelined_requests_are_answered_in_order(node: Served) -> None:
    """A node answers pipelined requests of both lanes in their order, on one connection."""
    with wire(node.port) as connection:
        connection.send(
            request(b"GET", b"/v1/keys/key-000001")
            + request(b"POST", b"/v1/multi-get", body=b'{"keys":["key-000002"]}')
            + request(b"GET", b"/v1/keys/key-000003")
        )
        first, second, third = (connection.answer() for _ in range(3))
    assert (first.json(), second.json()["items"][0]["value"], third.json()) == ({"n": 1}, {"n": 2}, {"n": 3})
