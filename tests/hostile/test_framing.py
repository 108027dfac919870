"""Test how messages are framed: what is refused, what is bounded, and how long one connection may block the event loop."""

from __future__ import annotations

import gc
import json
import socket
import struct
import time

import pytest

from queryable_app.serve.http.fast_lane import FastLane
from queryable_app.wire.json_text import parse_text
from tests.support.served import Served
from tests.support.waiting import eventually
from tests.support.wire import request, wire

GOOD = b'{"keys":["key-000001"]}'
CHUNKED = request(b"POST", b"/v1/multi-get", b"Transfer-Encoding: chunked", body=b"")


def get(*lines: bytes, target: bytes = b"/v1/keys/key-000001", version: bytes = b" HTTP/1.1") -> bytes:
    return b"\r\n".join([b"GET " + target + version, *lines, b"", b""])


def post(*lines: bytes, body: bytes = GOOD, version: bytes = b"HTTP/1.1") -> bytes:
    return b"\r\n".join([b"POST /v1/multi-get " + version, b"Host: x", *lines, b"", body])


REFUSED = {
    "HTTP/0.9": get(version=b""),
    "HTTP/0.9 with its name": get(version=b" HTTP/0.9"),
    "HTTP/2.0": get(b"Host: x", version=b" HTTP/2.0"),
    "no Host": get(),
    "no Host, other lane": get(target=b"/v1/count"),
    "two Hosts": get(b"Host: x", b"Host: x"),
    "two Hosts, other lane": get(b"Host: x", b"Host: y", target=b"/v1/count"),
    "two Hosts in HTTP/1.0": get(b"Host: x", b"Host: y", version=b" HTTP/1.0"),
    "gzip and chunked": post(b"Transfer-Encoding: gzip, chunked", body=b"1\r\na\r\n0\r\n\r\n"),
    "gzip, then chunked": post(
        b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked", body=b"1\r\na\r\n0\r\n\r\n"
    ),
    "chunked twice": post(
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"1\r\na\r\n0\r\n\r\n"
    ),
    "identity": post(b"Transfer-Encoding: identity", b"Content-Length: %d" % len(GOOD)),
    "chunked in HTTP/1.0": post(
        b"Transfer-Encoding: chunked", body=b"1\r\na\r\n0\r\n\r\n", version=b"HTTP/1.0"
    ),
    "length and chunked": post(
        b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"1\r\na\r\n0\r\n\r\n"
    ),
    "two lengths": post(b"Content-Length: 1", b"Content-Length: 2"),
    "the same length twice": post(b"Content-Length: %d" % len(GOOD), b"Content-Length: %d" % len(GOOD)),
    "a list of lengths": post(b"Content-Length: %d, %d" % (len(GOOD), len(GOOD))),
    "a negative length": post(b"Content-Length: -1"),
    "a length with a sign": post(b"Content-Length: +%d" % len(GOOD)),
    "no length in the header": post(b"Content-Length:"),
    "a length beyond 64 bits": post(b"Content-Length: 18446744073709551616"),
    "a folded line": get(b"Host: x", b"X: a", b" b"),
    "a bare line feed": get(b"Host: x", b"X: a\nY: b"),
    "a bare carriage return": get(b"Host: x", b"X: a\rY: b"),
    "line feeds alone": get(b"Host: x").replace(b"\r", b""),
    "a space before the colon": get(b"Host: x", b"X : a"),
    "a space before the first header": get(b" Host: x"),
    "NUL in a header": get(b"Host: x", b"X: a\0b"),
    "a control character in a header": get(b"Host: x", b"X: a\x01b"),
    "a header without a name": get(b"Host: x", b": a"),
    "a chunk size with a space": CHUNKED + b"1 \r\na\r\n0\r\n\r\n",
    "a negative chunk": CHUNKED + b"-1\r\na\r\n0\r\n\r\n",
    "a chunk beyond 64 bits": CHUNKED + b"fffffffffffffffff\r\na\r\n0\r\n\r\n",
    "a chunk that ends in a line feed": CHUNKED + b"1\na\n0\n\n",
    "chunk extensions of 1 MB": CHUNKED + b"1;" + b"x" * 1_000_000 + b"\r\na\r\n0\r\n\r\n",
    "many chunk extensions": CHUNKED + (b"1;" + b"x" * 1000 + b"\r\n \r\n") * 1000 + b"0\r\n\r\n",
    "a trailer of 1 MB": CHUNKED + b"1\r\na\r\n0\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n",
    "many trailers": CHUNKED + b"1\r\na\r\n0\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
}


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED.keys())
def test_ambiguous_framing_is_refused(node: Served, raw: bytes) -> None:
    """A node answers 400 to a message that another server could read in another way, and closes the connection."""
    with wire(node.port) as connection:
        connection.send(raw)
        (answer,) = connection.answers()
    assert (answer.status, answer.reason, answer.headers["connection"]) == (400, "invalid_request", "close")


TAKEN = {
    "leading zeros in a length": post(b"Content-Length: " + b"0" * 5000 + b"%d" % len(GOOD)),
    "blanks around a length": post(b"Content-Length: \t %d \t" % len(GOOD)),
    "HTTP/1.0 without a Host": get(version=b" HTTP/1.0"),
    "HTTP/1.0 without a Host, other lane": get(version=b" HTTP/1.0", target=b"/v1/count"),
    "an absolute target": get(b"Host: x", target=b"http://x/v1/keys/key-000001"),
    "an empty Host": get(b"Host:"),
    "blank lines before the request": b"\r\n\r\n" + get(b"Host: x"),
    "bytes of another character set": get(b"Host: x", b"X: \xe4"),
    "CHUNKED": post(b"Transfer-Encoding: CHUNKED ", body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)),
    "small chunk extensions": CHUNKED + b"%x;a=b;c\r\n%b\r\n0;d\r\n\r\n" % (len(GOOD), GOOD),
    "trailers that mean nothing": CHUNKED
    + b"%x\r\n%b\r\n0\r\nX: y\r\nQt-Consistency: no\r\n\r\n" % (len(GOOD), GOOD),
    "chunks of one byte": CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in GOOD) + b"0\r\n\r\n",
    "a large body in chunks of one byte": CHUNKED
    + b"".join(b"1\r\n%c\r\n" % byte for byte in GOOD)
    + b"1\r\n \r\n" * 100_000
    + b"0\r\n\r\n",
}


@pytest.mark.parametrize("raw", TAKEN.values(), ids=TAKEN.keys())
def test_unusual_but_unambiguous_message_is_answered(node: Served, raw: bytes) -> None:
    """A node answers a message that is unusual and has one meaning."""
    with wire(node.port) as connection:
        connection.send(raw)
        assert connection.answer().status == 200


def test_large_body_and_a_head_in_one_packet(node: Served) -> None:
    """A node does not count a body in the same packet as part of the next request's head."""
    body = b'{"keys":["key-000001"]%b}' % (b" " * 100_000)
    sent = request(b"POST", b"/v1/multi-get", body=body) + request(b"GET", b"/v1/count")
    with wire(node.port) as connection:
        connection.send(sent[:-10])
        first = connection.answer()
        connection.send(sent[-10:])
        assert (first.status, connection.answer().status) == (200, 200)


def test_a_thousand_pipelined_requests_are_answered(node: Served) -> None:
    """A node answers a thousand requests that arrive at once in their order."""
    with wire(node.port, timeout=60) as connection:
        connection.send(b"".join(request(b"GET", b"/v1/keys/key-%06d" % n) for n in range(1000)))
        connection.half_close()
        assert [answer.json()["n"] for answer in connection.answers()] == list(range(1000))


FLOODS = {
    "requests": b"GET /x HTTP/1.1\r\nHost:\r\n\r\n",
    "upgrades": b"GET /x HTTP/1.1\r\nHost:\r\nUpgrade:a\r\nConnection:upgrade\r\n\r\n",
    "chunks": b"1\r\nx\r\n",
    "trailers": b"a:\r\n",
    "headers": b"a:\r\n",
    "blank lines": b"\r\n",
}
BEFORE = {"chunks": CHUNKED, "trailers": CHUNKED + b"0\r\n", "headers": b"GET / HTTP/1.1\r\n"}


@pytest.mark.parametrize("flood", FLOODS)
def test_no_input_blocks_the_event_loop(node: Served, monkeypatch: pytest.MonkeyPatch, flood: str) -> None:
    """No input of one connection blocks the event loop for more than some 10 ms."""
    protocol = node.protocol
    held_seconds: list[float] = []
    original = protocol.data_received

    def timed(self: FastLane, data: bytes) -> None:
        started = time.thread_time()
        original(self, data)
        held_seconds.append(time.thread_time() - started)

    monkeypatch.setattr(protocol, "data_received", timed)
    gc.collect()
    gc.freeze()  # as a node does when it starts; the tests' own objects are not what is measured
    try:
        with wire(node.port) as connection:
            connection.send(BEFORE.get(flood, b"") + FLOODS[flood] * (262_144 // len(FLOODS[flood])))
            connection.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            eventually("the node has begun with it", lambda: held_seconds)
            eventually(
                "the node has parsed it or refuses it",
                lambda: all(c.refusal or c.pipeline or not c.unparsed for c in protocol.open),
            )
    finally:
        gc.unfreeze()
    print(f"{flood}: {max(held_seconds) * 1000:.2f} ms")
    assert max(held_seconds) < 0.02  # 5 ms; the rest is for a busy machine


@pytest.mark.parametrize(
    ("element", "count", "few"),
    [(b'"a"', 500_000, False), (b"0", 150_000, False), (b"{}", 15_000, True), (b"[0,0]", 300_000, False)],
)
def test_flood_of_values_in_a_body_is_not_parsed(
    node: Served, monkeypatch: pytest.MonkeyPatch, element: bytes, count: int, few: bool
) -> None:
    """A node refuses a multi-get of very many small values before it parses them."""
    parsed: list[int] = []
    original = parse_text

    def counted(text: str, unique_names: bool = False) -> object:
        parsed.append(len(text))
        return original(text, unique_names)

    monkeypatch.setattr("queryable_app.serve.api.request.parse_text", counted)
    body = b'{"keys":[%b]}' % b",".join([element] * count)
    with wire(node.port) as connection:
        connection.send(request(b"POST", b"/v1/multi-get?deadline-ms=60000", body=body))
        assert connection.answer().status == 413
    assert len(parsed) == few


def test_commas_inside_keys_are_allowed(node: Served) -> None:
    """A node answers a multi-get whose keys have more commas than there may be keys."""
    body = json.dumps({"keys": ["," * 9000, "key-000001", "," * 9000, 'a"\\,']}).encode()
    with wire(node.port) as connection:
        connection.send(request(b"POST", b"/v1/multi-get", body=body))
        assert [item["found"] for item in connection.answer().json()["items"]] == [False, True, False, False]
