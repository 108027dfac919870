"""Test that a body belongs to its request, whatever the headers say, and wherever packets end."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.served import Served
from tests.support.waiting import eventually
from tests.support.wire import request, wire

# The headers with which Java's HttpClient offers HTTP/2.
H2C = (b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAEAAEAAAAIAAAAB", b"Upgrade: h2c")
DELETE = request(b"DELETE", b"/v1/records/key-000001")


@pytest.fixture(autouse=True)
def nothing_is_deleted(node: Served, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Note every record that would have been sent to Kafka."""
    sent: list[bytes] = []

    async def send(key: bytes, value: bytes | None, partition: int, deadline_seconds: float) -> int:
        sent.append(key)
        return 0

    monkeypatch.setattr(node.node.producer, "send", send)
    return sent


def multi_get(*keys: str, chunked: bool = False, lines: tuple[bytes, ...] = H2C) -> bytes:
    body = json.dumps({"keys": keys}).encode()
    if not chunked:
        return request(b"POST", b"/v1/multi-get", *lines, body=body)
    in_chunks = b"1\r\n%b\r\n%x;a=b\r\n%b\r\n0\r\n\r\n" % (body[:1], len(body) - 1, body[1:])
    return request(b"POST", b"/v1/multi-get", *lines, b"Transfer-Encoding: chunked", body=in_chunks)


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_post_that_offers_an_upgrade_is_answered_with_its_body(node: Served, chunked: bool) -> None:
    """A node answers a POST that offers h2c as HTTP/1.1, and goes on with the connection."""
    with wire(node.port) as connection:
        for _ in range(2):
            connection.send(multi_get("key-000005", chunked=chunked))
            answer = connection.answer()
            assert (answer.status, answer.json()["items"][0]["value"]) == (200, {"n": 5})


def test_body_in_its_own_packet_is_not_a_request(node: Served, nothing_is_deleted: list[bytes]) -> None:
    """A node does not execute a body that looks like a request, when the head offers an upgrade."""
    head, _, _ = request(b"POST", b"/v1/multi-get", *H2C, body=DELETE).partition(b"\r\n\r\n")
    with wire(node.port) as connection:
        connection.send(head + b"\r\n\r\n")
        eventually("the node has the head", lambda: any(c.body_since is not None for c in node.protocol.open))
        connection.send(DELETE, request(b"GET", b"/v1/keys/key-000002"))
        refused, behind = connection.answer(), connection.answer()

    assert (refused.status, behind.json(), nothing_is_deleted) == (400, {"n": 2}, [])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_sequence_of_upgrades_gets_its_own_answers(
    node: Served, nothing_is_deleted: list[bytes], data: st.DataObject
) -> None:
    """Requests with any upgrade headers and bodies, in any packets, get their own answers in their order."""
    upgrade = st.sampled_from(
        [
            (),
            H2C,
            (b"Upgrade: websocket", b"Connection: upgrade"),
            (b"connection: keep-alive, UPGRADE", b"upgrade: x", b"upgrade: y"),
            (b"Connection: upgrade",),
            (b"Upgrade: h2c",),
        ]
    )
    wanted: list[tuple[int, object]] = []
    sent = b""
    for _ in range(data.draw(st.integers(1, 5))):
        lines = data.draw(upgrade)
        number = data.draw(st.integers(0, 999))
        match data.draw(st.sampled_from(["get", "post", "chunked", "smuggled", "get with a body"])):
            case "get":
                sent += request(b"GET", b"/v1/keys/key-%06d" % number, *lines)
                wanted.append((200, {"n": number}))
            case "get with a body":
                sent += request(b"GET", b"/v1/keys/key-%06d" % number, *lines, body=DELETE)
                wanted.append((200, {"n": number}))
            case "smuggled":
                sent += request(b"POST", b"/v1/multi-get", *lines, body=DELETE * data.draw(st.integers(1, 2)))
                wanted.append((400, None))
            case kind:
                sent += multi_get(f"key-{number:06}", chunked=kind == "chunked", lines=lines)
                wanted.append((200, {"n": number}))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(sent) - 1), max_size=6)))
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    with wire(node.port) as connection:
        connection.send(*pieces)
        answers = [connection.answer() for _ in wanted]
        connection.half_close()
        assert connection.answers() == []
    for answer, (status, value) in zip(answers, wanted, strict=True):
        assert answer.status == status
        if status == 200:
            body = answer.json()
            assert (body["items"][0]["value"] if "items" in body else body) == value
    assert nothing_is_deleted == []


def test_requests_in_packets_of_one_byte_are_answered(node: Served, nothing_is_deleted: list[bytes]) -> None:
    """A node answers requests that offer an upgrade when every byte is a packet of its own."""
    sent = (
        multi_get("key-000001")
        + multi_get("key-000002", chunked=True)
        + request(b"GET", b"/v1/keys/key-000003", *H2C)
    )
    with wire(node.port) as connection:
        connection.send(*(sent[at : at + 1] for at in range(len(sent))))
        assert [connection.answer().status for _ in range(3)] == [200, 200, 200]
    assert nothing_is_deleted == []


@pytest.mark.parametrize(
    "raw",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        b"CONNECT kafka:9092 HTTP/1.1\r\nHost: kafka:9092\r\n\r\n" + DELETE,
        b"CONNECT kafka:9092 HTTP/1.1\r\nHost: kafka:9092\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
        + DELETE,
    ],
    ids=["HTTP/2 by prior knowledge", "CONNECT", "CONNECT with an upgrade"],
)
def test_other_protocols_are_refused(node: Served, nothing_is_deleted: list[bytes], raw: bytes) -> None:
    """A node answers 400 to the preface of HTTP/2 and to CONNECT, executes nothing behind it, and closes."""
    with wire(node.port) as connection:
        connection.send(raw)
        (answer,) = connection.answers()
    assert (answer.status, answer.reason, nothing_is_deleted) == (400, "invalid_request", [])
    assert "HTTP/2" in answer.json()["detail"] or "CONNECT" in answer.json()["detail"]
