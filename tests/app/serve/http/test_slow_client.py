"""Test a client of the fast lane that reads its answers late."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.support.served import Served, served
from tests.support.waiting import eventually

REQUESTS = 150
VALUE_DIGITS = 60_000


def value(number: int) -> bytes:
    return b'"%0*d"' % (VALUE_DIGITS, number)


def is_handled(node: Served, answers: int) -> bool:
    """Return whether the fast lane has taken a request, or leaves it until the client reads."""
    paused = any(connection.flow.write_paused for connection in node.protocol.open)
    return node.node.counters.fast_answers >= answers or paused


def bodies_of(client: socket.socket) -> list[bytes]:
    """Read until the last answer is complete."""
    received = bytearray()
    while not received.endswith(value(REQUESTS - 1)):
        received += client.recv(1 << 20)
    return [answer.partition(b"\r\n\r\n")[2] for answer in bytes(received).split(b"HTTP/1.1 200 OK")[1:]]


def test_answers_beyond_the_socket_are_whole_and_in_order(tmp_path: Path) -> None:
    """Answers that the socket takes only in part arrive complete, each once and in order, when the client reads."""
    with served(tmp_path, partitions=1) as node:
        for number in range(REQUESTS):
            node.put(b"%d" % number, value(number))
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            client.settimeout(20)
            client.connect(("127.0.0.1", node.port))
            for number in range(REQUESTS):
                client.sendall(b"GET /v1/keys/%d HTTP/1.1\r\nHost: node\r\n\r\n" % number)
                eventually("the request is handled", lambda: is_handled(node, number + 1))  # noqa: B023
            assert node.node.counters.fast_answers < REQUESTS
            assert bodies_of(client) == [value(number) for number in range(REQUESTS)]
