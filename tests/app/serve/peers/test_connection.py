"""A connection to a peer hands every response to its request, wherever the bytes are cut."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.serve.peers.connection import PeerConnection
from tests.support.peer_responses import response


class RecordingTransport(asyncio.Transport):
    """Drop written bytes, and record whether the connection was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


class Recorded:
    """Combine a connection with unanswered requests, numbered from 0, and the responses that it delivered."""

    def __init__(self, requests: int) -> None:
        self.responses: list[tuple[int, int, bytes]] = []
        self.connection: PeerConnection[int] = PeerConnection(
            self._on_response, lambda connection, reason: None
        )
        self.transport = RecordingTransport()
        self.connection.connection_made(self.transport)
        self.connection.send(b"", range(requests))

    def _on_response(self, request: int, status: int, head: bytes, body: bytes) -> None:
        assert head.endswith(b"\r\n\r\n")
        self.responses.append((request, status, body))


@given(
    st.lists(st.tuples(st.sampled_from([200, 304, 404, 503]), st.binary(max_size=60)), max_size=8),
    st.lists(st.integers(0, 1500), max_size=12),
)
def test_responses_may_be_cut_anywhere(responses: list[tuple[int, bytes]], cuts: list[int]) -> None:
    """Each is handed to its request, in order and whole."""
    expected = [
        (number, status, b"" if status == 304 else body) for number, (status, body) in enumerate(responses)
    ]
    raw = b"".join(response(*each) for each in responses)
    recorded = Recorded(len(responses))
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    for start, end in itertools.pairwise(edges):
        recorded.connection.data_received(raw[start:end])

    assert recorded.responses == expected
    assert not recorded.transport.aborted


@pytest.mark.parametrize(
    "raw",
    [
        b"220 mail.example ESMTP\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 xxx OK\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 9999,
    ],
    ids=[
        "not HTTP",
        "HTTP/1.0",
        "no length",
        "no status",
        "a negative length",
        "a huge length",
        "a head without end",
    ],
)
def test_malformed_response_ends_the_connection(raw: bytes) -> None:
    """No request gets it."""
    recorded = Recorded(1)
    recorded.connection.data_received(raw)
    assert (recorded.transport.aborted, recorded.connection.usable, recorded.responses) == (True, False, [])


def test_response_without_a_request_ends_the_connection() -> None:
    """A response without a request ends the connection, since the next request would get it."""
    recorded = Recorded(0)
    recorded.connection.data_received(response(200, b"x"))
    assert recorded.transport.aborted


def test_connection_that_the_peer_will_close_takes_no_more_requests() -> None:
    """The response loses its Connection header, which is not for the client."""
    recorded = Recorded(1)
    recorded.connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx")
    assert (recorded.responses, recorded.connection.usable) == ([(0, 200, b"x")], False)
