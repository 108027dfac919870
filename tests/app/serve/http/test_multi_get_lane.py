"""Test that multi-gets without a task have the answers of the route, and that all others still reach the route."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queryable_app.config.topic_spec import KeyFormat
from queryable_app.errors import Failure, Reason
from queryable_app.policy.overload import Backlog
from queryable_app.serve.http.multi_get_lane import MultiGetHeads
from queryable_app.serve.node import Node
from queryable_app.wire.http_text import Answer
from tests.support.served import Served, served
from tests.support.waiting import eventually
from tests.support.wire import WireAnswer, request, wire

PLAIN = b"/v1/multi-get"
OTHER = b"/v1/multi-get?deadline-ms=30000"  # the same request with a parameter needs a task


def keys_body(*keys: object) -> bytes:
    return json.dumps({"keys": keys}).encode()


def ask(node: Served, target: bytes, body: bytes, *headers: bytes) -> WireAnswer:
    with wire(node.port) as connection:
        connection.send(request(b"POST", target, *headers, body=body))
        return connection.answer()


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch, node: Served) -> list[Answer | None]:
    """Return what the lane had for each request that it took."""
    found: list[Answer | None] = []
    original = node.protocol.multi_gets.answer

    def noted(body: bytes) -> Answer | None:
        found.append(original(body))
        return found[-1]

    monkeypatch.setattr(node.protocol.multi_gets, "answer", noted)
    return found


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a node with a few rows in three partitions."""
    with served(tmp_path_factory.mktemp("lane"), partitions=3) as running:
        running.fill(100)
        running.put(b"gone", b"1")
        running.put(b"gone", None)
        running.put(b"expired", b"1", expiry_ms=1)
        running.put('"é'.encode(), b'{"a": "\xc3\xa9"}')
        running.put(b"large", b'"%b"' % (b"v" * 60_000))
        yield running


def same(plain: WireAnswer, other: WireAnswer) -> None:
    def shown(answer: WireAnswer) -> object:
        headers = {name: value for name, value in answer.headers.items() if name not in ("date", "qt-lag-ms")}
        return answer.status, list(headers.items()), answer.body

    assert shown(plain) == shown(other)


@pytest.mark.parametrize(
    "keys",
    [
        [f"key-{n:06d}" for n in range(0, 200, 3)],
        ["key-000001", "gone", "key-000001", "expired", "missing"],
        ['"é', "key-000002", "\x00"],
    ],
    ids=["found and not", "dead and repeated", "not plain"],
)
def test_answer_is_the_one_of_the_route(node: Served, answered: list[Answer | None], keys: list[str]) -> None:
    """A multi-get without a task has the status, the headers and the body of the route."""
    plain = ask(node, PLAIN, keys_body(*keys))
    assert answered[0] is not None
    same(plain, ask(node, OTHER, keys_body(*keys)))
    assert len(answered) == 1


@pytest.mark.parametrize(
    ("key_format", "value_format", "keys", "stored"),
    [
        ("long", "string", [1, "-7", 5], b"a\n\xc3\xa9"),
        ("double", "long", [2.5, "NaN"], b"\x00" * 7 + b"\x07"),
        ("json", "bytes", ['{"id":1}'], b"\xff\x00"),
        ("bytes", "json", ["a"], b"[1]"),
        ("avro", "json", ["a" * 20, "b", "\x00"], b"[1]"),
    ],
)
def test_every_format_is_answered(
    tmp_path: Path, key_format: KeyFormat, value_format: str, keys: list[object], stored: bytes
) -> None:
    """Keys and values of every format have the items of the route."""
    key_spec: dict[str, Any] = {"format": key_format}
    if key_format == "avro":
        key_spec["schemaFrom"] = {"inline": '"string"', "schemaId": 7}
    formats: dict[str, Any] = {"key": key_spec, "value": {"format": value_format}}
    with served(tmp_path, partitions=3, **formats) as node:
        for key in keys[:-1] or keys:
            node.put(node.node.codec.from_json(key), stored)
        same(ask(node, PLAIN, keys_body(*keys)), ask(node, OTHER, keys_body(*keys)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        keys_body(),
        keys_body(1),
        keys_body(None, "a"),
        b'{"keys":["a"],"keys":["a"]}',
        b'{"keys":["\\ud800"]}',
        b'{"keys":["a"],"b":1}',
        b"\xff",
        keys_body("large", "large"),
        keys_body(*map(str, range(600))),
    ],
    ids=["empty", "truncated", "list", "no keys", "number", "null", "twice", "surrogate", "field", "bytes", "large", "many"],
)  # fmt: skip
def test_request_that_needs_more_is_answered_by_the_route(
    node: Served, answered: list[Answer | None], body: bytes
) -> None:
    """A wrong body, a large answer and a long read have the route's answer, and the lane has none."""
    plain = ask(node, PLAIN, body)
    assert answered == [None]
    same(plain, ask(node, OTHER, body))


def test_input_behind_a_request_waits_for_its_answer(node: Served, answered: list[Answer | None]) -> None:
    """Requests behind a multi-get are answered after it, with the lane and without."""
    small, wrong = (request(b"POST", PLAIN, body=body) for body in (keys_body("key-000001"), b"["))
    for first, status in ((small, 200), (wrong, 400)):
        with wire(node.port) as connection:
            connection.send(first, request(b"GET", b"/v1/keys/key-000002"), small, first + small)
            connection.half_close()
            statuses = [answer.status for answer in connection.answers()]
        assert statuses == [status, 200, 200, status, 200]


def split(body: bytes) -> tuple[bytes, bytes]:
    """Return a request's head and its body."""
    whole = request(b"POST", PLAIN, body=body)
    return whole[: len(whole) - len(body)], body


def held(node: Served) -> bool:
    """Return whether a head waits for its body."""
    connections: Any = node.protocol.open
    return any(connection.head for connection in connections)


def test_body_may_arrive_after_the_head(node: Served, answered: list[Answer | None]) -> None:
    """A multi-get whose body arrives by itself is answered without a task too, on a connection that stays usable."""
    head, body = split(keys_body("key-000001"))
    with wire(node.port) as connection:
        for _ in range(2):
            connection.send(head)
            eventually("the head waits", lambda: held(node) or any(each.cycle for each in node.protocol.open))
            connection.send(body)
            assert connection.answer().json()["items"][0]["found"] is True
        connection.send(request(b"GET", b"/v1/keys/key-000002"))
        assert connection.answer().status == 200


def test_head_whose_body_arrives_in_parts_goes_to_uvicorn(
    node: Served, answered: list[Answer | None]
) -> None:
    """A body in parts, and one that comes late, have the answer of the route."""
    head, body = split(keys_body("key-000001", "key-000002"))
    with wire(node.port) as connection:
        connection.send(head, body[:5])
        eventually("uvicorn has the head", lambda: any(each.cycle for each in node.protocol.open))
        connection.send(body[5:])
        assert connection.answer().status == 200
        connection.send(head)
        eventually("the wait is over", lambda: not held(node))
        connection.send(body)
        assert connection.answer().status == 200


def test_input_that_ends_before_the_body_is_refused(node: Served) -> None:
    """A client that closes its sending side after the head is told that the body is missing."""
    head, _ = split(keys_body("key-000001"))
    with wire(node.port) as connection:
        connection.send(head)
        connection.half_close()
        refused = connection.answer()
    assert (refused.status, refused.json()["detail"].partition(":")[0]) == (400, "body")


def test_connection_passes_the_lane_by_after_a_request_that_needs_more(
    node: Served, answered: list[Answer | None]
) -> None:
    """A connection whose answers are large does not read its rows twice each time."""
    with wire(node.port) as connection:
        for _ in range(3):
            connection.send(request(b"POST", PLAIN, body=keys_body("large", "large")))
            assert connection.answer().status == 200
    assert answered == [None]


def test_overloaded_node_refuses(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A multi-get without a task waits for its admission, and is refused like any other."""
    monkeypatch.setattr(Backlog, "admits", lambda *_: False)
    refused = ask(node, PLAIN, keys_body("key-000001"))
    monkeypatch.undo()
    assert (refused.status, refused.reason) == (429, Reason.OVERLOADED.slug)
    assert ask(node, PLAIN, keys_body("key-000001")).status == 200


def test_guard_refuses_beyond_its_limits(node: Served, answered: list[Answer | None]) -> None:
    """When as many requests are in flight as the node allows, a multi-get goes to the guard, which refuses it."""
    node.on_loop(lambda: setattr(node.node.counters, "in_flight", node.node.counters.in_flight + 10_000))
    try:
        assert ask(node, PLAIN, keys_body("key-000001")).status == 200  # the guard counts for itself
    finally:
        node.on_loop(lambda: setattr(node.node.counters, "in_flight", node.node.counters.in_flight - 10_000))
    assert answered == []


def test_unreadable_replica_is_left_to_the_route(
    node: Served, monkeypatch: pytest.MonkeyPatch, answered: list[Answer | None]
) -> None:
    """A failure of a store reaches the route, which may read another replica, and never the connection."""
    store = type(node.node.replicas.by_partition[0].store)

    def unreadable(*_: Any) -> Any:
        raise Failure(Reason.NOT_AVAILABLE, "a part cannot be read", "ask another node")

    monkeypatch.setattr(store, "multi_get", unreadable)
    assert ask(node, PLAIN, keys_body("key-000001")).status == 503
    assert answered == [None]


def test_client_that_leaves_has_no_work_done_for_it(
    node: Served, monkeypatch: pytest.MonkeyPatch, answered: list[Answer | None]
) -> None:
    """A queued multi-get whose client has disconnected is not begun."""
    waiting: list[Any] = []
    admission = node.node.read_admission
    monkeypatch.setattr(admission, "enqueue", waiting.append)
    with wire(node.port) as connection:
        connection.send(request(b"POST", PLAIN, body=keys_body("key-000001")))
        eventually("the request is queued", lambda: waiting)
        assert not waiting[0].is_abandoned()
        connection.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually("the node has noticed", lambda: waiting[0].is_abandoned())
    assert answered == []


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        ([b"Host: a", b"Content-Length: 7"], 7),
        ([b"content-length:\t12 ", b"Host: a", b"Content-Type: application/json", b"Accept: */*"], 12),
        ([b"Host: a"], -1),
        ([b"Host: a", b"Content-Length: 7", b"Content-Length: 7"], -1),
        ([b"Host: a", b"Content-Length: 7x"], -1),
        ([b"Host: a", b"Content-Length: +7"], -1),
        ([b"Host: a", b"Content-Length: 7", b"Transfer-Encoding: chunked"], -1),
        ([b"Host: a", b"Content-Length: 7", b"Content-Encoding: gzip"], -1),
        ([b"Host: a", b"Content-Length: 7", b"Expect: 100-continue"], -1),
        ([b"Host: a", b"Content-Length: 7", b"Qt-Max-Lag-Ms: 1"], -1),
        ([b"Host: a", b"Content-Length: 7", b"Authorization: x"], -1),
        ([b"Host: a", b"Content-Length: 7", b"Accept: application/x-ndjson"], -1),
        ([b"Host: a", b"Content-Length: 7", b"Connection: close"], -1),
        ([b"Content-Length: 7"], -1),
    ],
)
def test_header_lines_that_change_nothing(node: Served, lines: list[bytes], length: int) -> None:
    """Only a head whose lines change nothing has a body's length for the lane."""
    heads = MultiGetHeads(node.protocol.heads)
    assert heads[b"\r\n" + b"\r\n".join([*lines, b"", b""])] == length


def test_large_head_is_not_remembered(node: Served, answered: list[Answer | None]) -> None:
    """A head that is larger than those of ordinary clients goes to uvicorn, and takes no memory here."""
    before = len(node.protocol.multi_get_heads)
    assert ask(node, PLAIN, keys_body("key-000001"), b"X-Large: " + b"x" * 9000).status == 200
    assert (len(node.protocol.multi_get_heads), answered) == (before, [])


def test_answers_are_counted(node: Served) -> None:
    """The answers without a task count towards the route's."""

    def count(node: Node) -> int:
        return node.counters.answers["/v1/multi-get", 200]

    before = count(node.node)
    assert ask(node, PLAIN, keys_body("key-000001")).status == 200
    assert count(node.node) == before + 1
