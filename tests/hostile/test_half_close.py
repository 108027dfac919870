"""Test clients that close their sending side after the last request, and read their answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.conftest import ROWS
from tests.support.served import Served
from tests.support.wire import request, wire

MULTI_GET = request(b"POST", b"/v1/multi-get", body=b'{"keys":["key-000001"]}')
REQUESTS = {
    "a point read": request(b"GET", b"/v1/keys/key-000001"),
    "a point read with an option": request(b"GET", b"/v1/keys/key-000001?consistency=any"),
    "a count": request(b"GET", b"/v1/count"),
    "status": request(b"GET", b"/v1/status"),
    "a probe": request(b"GET", b"/livez"),
    "a multi-get": MULTI_GET,
    "a multi-get that offers an upgrade": MULTI_GET.replace(
        b"\r\n", b"\r\nConnection: upgrade\r\nUpgrade: h2c\r\n", 1
    ),
    "a write": request(b"POST", b"/v1/records", body=b'{"key":"key-000001","value":1}'),
    "a page": request(b"GET", b"/v1/scan?limit=10"),
    "what is not there": request(b"GET", b"/v1/nothing"),
}


@pytest.mark.parametrize("raw", REQUESTS.values(), ids=REQUESTS.keys())
def test_request_before_a_half_close_is_answered(
    node: Served, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    """A node answers a complete request though the client sends no more, and then closes the connection."""

    async def send(key: bytes, value: bytes | None, partition: int, deadline_seconds: float) -> int:
        return 7

    monkeypatch.setattr(node.node.producer, "send", send)
    with wire(node.port) as connection:
        connection.send(raw)
        connection.half_close()
        (answer,) = connection.answers()
    assert answer.status == (404 if b"nothing" in raw else 200)


def test_stream_before_a_half_close_is_complete(node: Served) -> None:
    """A node streams all rows to a client that sends no more."""
    with wire(node.port) as connection:
        connection.send(request(b"GET", b"/v1/scan", b"Accept: application/x-ndjson"))
        connection.half_close()
        (answer,) = connection.answers()
    assert len(answer.body.splitlines()) == ROWS


def test_all_requests_before_a_half_close_are_answered(node: Served) -> None:
    """A node answers pipelined requests of both lanes in their order before it closes."""
    with wire(node.port) as connection:
        connection.send(REQUESTS["a count"] + MULTI_GET + REQUESTS["a point read"] + REQUESTS["a page"])
        connection.half_close()
        answers = connection.answers()
    assert [answer.status for answer in answers] == [200] * 4
    assert answers[2].json() == {"n": 1}


def test_half_a_head_is_refused(node: Served) -> None:
    """A node refuses a request whose head ends with the connection, after it has answered the one before."""
    with wire(node.port) as connection:
        connection.send(REQUESTS["a count"] + REQUESTS["a page"][:20])
        connection.half_close()
        first, refusal = connection.answers()
    assert (first.status, refusal.status, refusal.reason) == (200, 400, "invalid_request")


def test_half_closed_connection_without_requests_is_closed(node: Served, tmp_path: Path) -> None:
    """A node closes a connection without open requests as soon as the client sends no more."""
    with wire(node.port, timeout=10) as connection:
        connection.half_close()
        assert connection.answers() == []
