"""Test that both lanes give the same answers, and the limits on connections."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queryable_app.serve.http.head_cache import HeadKind, classify_head
from tests.support.served import Served, exchange, now_ms, parsed, read_answers, served
from tests.support.waiting import eventually
from tests.support.wire import request, wire

KEYS = [
    b"",
    b"a",
    b"a/b",
    b"..",
    b"%2F",
    b"?",
    b"#",
    b"a b",
    "🦊".encode(),
    b"\xff\x00",
    b"ALL",
    b"\n",
    b"+",
    b"//",
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("fast"), partitions=3) as running:
        for number, key in enumerate(KEYS):
            running.put(key, b'{"n":%d}' % number)
        running.put(b"expired", b"1", expiry_ms=1)
        running.put(b"deleted", None)
        yield running


def get(target: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"GET " + target + b" HTTP/1.1", b"Host: node", *headers, b"", b""])


def fast_answers(node: Served) -> int:
    return node.node.counters.fast_answers


def both(node: Served, target: bytes, *headers: bytes) -> tuple[bytes, bytes]:
    """Send the same request down both lanes: the fast lane does not take a pipelined request."""
    request = get(target, *headers)
    before = fast_answers(node)
    fast = exchange(node.port, request)
    after = fast_answers(node)
    with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
        # Pipelined behind another request: the bytes never are exactly one message.
        connection.sendall(get(b"/livez") + request)
        slow = read_answers(connection, 2)
    assert fast_answers(node) == after
    return (fast if after > before else b""), slow[slow.index(b"HTTP/1.1", 9) :]


def comparable(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    status, headers, body = parsed(answer)
    headers.pop("qt-lag-ms", None)
    headers.pop("date", None)
    return status, headers, body


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(
    key=st.sampled_from([*KEYS, b"expired", b"deleted", b"missing"]) | st.binary(max_size=40),
    safe=st.sampled_from(["", "/", "!$&'()*+,;=:@"]),
    headers=st.lists(
        st.sampled_from(
            [
                b"Accept: */*",
                b"accept:application/json",
                b"User-Agent: x/1",
                b"Connection: keep-alive",
                b"X-A:  b ",
            ]
        ),
        unique=True,
    ),
)
def test_both_lanes_give_the_same_answer(node: Served, key: bytes, safe: str, headers: list[bytes]) -> None:
    """Status, headers and body of a point read are the same in the fast lane as through FastAPI."""
    fast, slow = both(node, b"/v1/keys/" + quote_from_bytes(key, safe).encode(), *headers)

    assert fast
    assert comparable(fast) == comparable(slow)


@pytest.mark.parametrize(
    "header",
    [
        b"Authorization: Bearer x",
        b"Expect: 100-continue",
        b"Upgrade: h2c",
        b"Connection: close",
        b"Connection: keep-alive, upgrade",
        b"Proxy-Connection: close",
        b"Content-Length: 0",
        b"Transfer-Encoding: chunked",
        b"Qt-Consistency: any",
        b"If-None-Match: *",
        b"Accept: application/octet-stream",
        b"Accept: text/html",
        b"Content-Encoding: gzip",
        b"No colon",
        b"Folded: a\r\n b",
        b"Bad name: a",
        b"Latin: \xe9",
    ],
    ids=repr,
)
def test_header_that_may_matter_is_not_plain(header: bytes) -> None:
    """The fast lane leaves to uvicorn a header that may change the answer or that the parser must judge."""
    block = b"\r\nHost: node\r\n" + header + b"\r\n\r\n"

    assert classify_head(block, lambda token: True) is HeadKind.OTHER


def test_pipelined_requests_are_answered_in_order(node: Served) -> None:
    """A node answers requests that arrive in one packet in their order."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
        connection.sendall(get(b"/v1/keys/a") + get(b"/v1/keys/missing") + get(b"/v1/keys/a"))
        answers = read_answers(connection, 3)

    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"404", b"200"]


def test_lanes_alternate_on_one_connection(node: Served) -> None:
    """A connection may use both lanes, and a request may be split at any byte."""
    request = get(b"/v1/keys/a")
    with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
        for cut in range(1, len(request)):
            connection.sendall(request)
            assert parsed(read_answers(connection, 1))[0] == 200
            connection.sendall(request[:cut])
            eventually(
                "the first piece is there", lambda: any(c.head_since is not None for c in node.protocol.open)
            )
            connection.sendall(request[cut:])
            assert parsed(read_answers(connection, 1))[0] == 200


def test_body_that_looks_like_a_request_is_a_body(node: Served) -> None:
    """The fast lane takes no bytes of a body as a request."""
    inner = get(b"/v1/keys/a")
    head = b"POST /v1/multi-get HTTP/1.1\r\nHost: node\r\nContent-Length: %d\r\n\r\n" % len(inner)
    before = fast_answers(node)
    with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
        connection.sendall(head)
        eventually("the head is there", lambda: any(c.body_since is not None for c in node.protocol.open))
        connection.sendall(inner)
        status, _, body = parsed(read_answers(connection, 1))

    assert (status, fast_answers(node)) == (400, before)
    assert b"is not JSON" in body


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /v1/keys/a b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/keys/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/keys/a HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /v1/keys/a HTTP/1.1\r\nBad name: x\r\n\r\n",
        b"FROBNICATE /v1/keys/a HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/multi-get HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/multi-get HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/multi-get HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=repr,
)
def test_malformed_http_gets_a_problem_document(node: Served, raw: bytes) -> None:
    """Bytes that the parser refuses get 400 invalid_request, and the connection ends."""
    status, headers, body = parsed(exchange(node.port, raw))

    assert (status, headers["content-type"], headers["connection"]) == (
        400,
        "application/problem+json",
        "close",
    )
    assert b'"invalid_request"' in body


def test_request_before_garbage_is_answered(node: Served) -> None:
    """A node answers the request before the bad bytes, then refuses those, and closes the connection."""
    with wire(node.port) as connection:
        connection.send(get(b"/v1/keys/a?consistency=any") + b"\x00garbage\r\n\r\n")
        first, refusal = connection.answers()

    assert (first.status, refusal.status, refusal.headers["connection"]) == (200, 400, "close")


def test_fast_answer_has_a_date(node: Served) -> None:
    """Answers of the fast lane have the Date header that uvicorn updates."""
    assert "date" in parsed(exchange(node.port, get(b"/v1/keys/a")))[1]


def test_upgrade_offer_is_answered_as_http_1_1(node: Served) -> None:
    """A client that offers h2c gets HTTP/1.1, on a connection that stays open."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
        connection.sendall(get(b"/v1/keys/a", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"))
        assert parsed(read_answers(connection, 1))[0] == 200
        connection.sendall(get(b"/v1/keys/a"))
        assert parsed(read_answers(connection, 1))[0] == 200


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a node with limits that a test can reach."""
    bounds = {
        "connections_max": 8,
        "head_bytes_max": 4096,
        "head_seconds_max": 1,
        "body_bytes_max": 10_000,
        "body_seconds_max": 1,
        "idle_seconds_max": 2,
    }
    with served(tmp_path_factory.mktemp("strict"), settings=bounds) as running:
        running.put(b"a", b"1")
        running.put(b"large", b'"%b"' % (b"x" * 5_000_000))
        yield running


def closed_after(connection: socket.socket) -> tuple[bytes, float]:
    started, answer = time.monotonic(), b""
    while chunk := connection.recv(65536):
        answer += chunk
    return answer, time.monotonic() - started


@pytest.mark.parametrize(
    "flood",
    [
        b"GET /v1/keys/" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/keys/a HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(1000)) + b"\r\n",
        b"GET /v1/keys/a HTTP/1.1\r\nX: " + b"a" * 3_000_000,
    ],
    ids=["long target", "many headers", "a header without end"],
)
def test_head_over_the_limit_gets_413(strict: Served, flood: bytes) -> None:
    """A client can read the 413 too_large for a request line and headers over the limit; then the connection ends."""
    with socket.create_connection(("127.0.0.1", strict.port), timeout=10) as connection:
        connection.sendall(flood)
        answer, _ = closed_after(connection)

    status, headers, body = parsed(answer)
    assert (status, headers["connection"]) == (413, "close")
    assert b'"too_large"' in body


def test_slow_head_is_refused(strict: Served) -> None:
    """A head that is not complete in time gets 400, and the connection ends."""
    with socket.create_connection(("127.0.0.1", strict.port), timeout=10) as connection:
        connection.sendall(b"GET /v1/keys/a HTTP/1.1\r\nHos")
        answer, _ = closed_after(connection)

    assert (parsed(answer)[0], b"did not arrive within 1 s" in answer) == (400, True)


def test_slow_body_is_refused(strict: Served) -> None:
    """A body that is not complete in time gets 400, and the connection ends."""
    with socket.create_connection(("127.0.0.1", strict.port), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/multi-get?deadline-ms=60000 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        )
        answer, _ = closed_after(connection)

    assert (parsed(answer)[0], b"its body did not arrive within 1 s" in answer) == (400, True)


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"]
)
def test_half_a_body_is_refused(node: Served, framing: bytes) -> None:
    """A client that closes its sending side in the middle of a body gets 400, and the connection ends."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
        connection.sendall(b"POST /v1/multi-get HTTP/1.1\r\nHost: x\r\n" + framing)
        connection.shutdown(socket.SHUT_WR)
        status, headers, body = parsed(closed_after(connection)[0])

    assert (status, headers["connection"]) == (400, "close")
    assert b"body: ends before its time" in body


def test_refusal_of_half_a_body_comes_after_earlier_answers(node: Served) -> None:
    """A node sends the answer of an earlier request before a refusal."""
    waiting = request(
        b"POST", b"/v1/multi-get?min-position=0:99,1:99,2:99&consistency=at-least", body=b'{"keys":["a"]}'
    )
    with wire(node.port) as connection:
        connection.send(waiting + b"POST /v1/multi-get HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        connection.half_close()
        first, refusal = connection.answers()

    assert (first.reason, refusal.reason) == ("not_fresh_enough", "invalid_request")


@pytest.mark.parametrize("lane", ["none", "fast", "slow"])
def test_idle_connection_is_closed(strict: Served, lane: str) -> None:
    """A node closes an idle connection after its time, whichever lane it used, and not before."""
    with socket.create_connection(("127.0.0.1", strict.port), timeout=10) as connection:
        if lane != "none":
            connection.sendall(get(b"/v1/keys/a" if lane == "fast" else b"/livez"))
            assert parsed(read_answers(connection, 1))[0] == 200
        answer, seconds = closed_after(connection)

    assert answer == b""
    assert 1.5 < seconds < 30


def test_busy_connection_stays_open(strict: Served) -> None:
    """A connection with requests stays open beyond the idle time, also after uvicorn's own timer was set."""
    with socket.create_connection(("127.0.0.1", strict.port), timeout=10) as connection:
        connection.sendall(get(b"/livez"))
        assert parsed(read_answers(connection, 1))[0] == 200

        def answered_for_five_sweeps() -> bool:
            connection.sendall(get(b"/v1/keys/a"))
            assert parsed(read_answers(connection, 1))[0] == 200
            return strict.protocol.sweeps >= last_sweep

        last_sweep = strict.protocol.sweeps + 5
        eventually("five seconds pass", answered_for_five_sweeps)


def test_client_that_does_not_read_is_disconnected(strict: Served) -> None:
    """A node closes a connection whose client does not read its answers."""
    with socket.create_connection(("127.0.0.1", strict.port), timeout=20) as connection:
        for _ in range(4):
            connection.sendall(get(b"/v1/keys/large"))
        eventually(
            "the node waits for it",
            lambda: any(c.write_paused_since is not None for c in strict.protocol.open),
        )
        eventually("it is cut off", lambda: not strict.protocol.open, 10)


def test_expired_row_is_absent_in_both_lanes(node: Served) -> None:
    """A row is key_not_found once it has expired."""
    node.put(b"soon", b"1", expiry_ms=now_ms() + 200)
    assert parsed(exchange(node.port, get(b"/v1/keys/soon")))[0] == 200

    eventually("it expires", lambda: parsed(exchange(node.port, get(b"/v1/keys/soon")))[0] == 404)
    assert {parsed(a)[0] for a in both(node, b"/v1/keys/soon")} == {404}


def test_read_of_an_incomplete_replica_is_refused_without_a_task(tmp_path: Path) -> None:
    """While it hydrates, the only node with a partition refuses reads in the fast lane as it does through FastAPI."""
    with served(tmp_path, partitions=1, complete=False) as hydrating:
        hydrating.put(b"a", b"1")
        fast, slow = both(hydrating, b"/v1/keys/a")

        assert fast
        assert comparable(fast) == comparable(slow)
        assert parsed(fast)[0] == 503


def test_draining_node_refuses_a_read_and_closes_the_connection(tmp_path: Path) -> None:
    """The refusal of a node that is about to stop is the last answer on its connection."""
    with served(tmp_path, partitions=1, complete=False) as hydrating:
        hydrating.on_loop(hydrating.node.drain)
        with socket.create_connection(("127.0.0.1", hydrating.port), timeout=10) as connection:
            connection.sendall(get(b"/v1/keys/a"))
            status, headers, _ = parsed(read_answers(connection, 1))

            assert (status, headers["connection"]) == (503, "close")
            assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("complete", "query", "leaves_room"),
    [
        (True, b"", True),
        (False, b"", False),
        (False, b"?consistency=any", True),
        (False, b"?max-lag-ms=9", False),
    ],
)
def test_only_answered_reads_take_time_from_ingest(
    tmp_path: Path, complete: bool, query: bytes, leaves_room: bool
) -> None:
    """Ingest leaves room for reads that are answered. For one that is refused it does not: the sooner the replica is complete,
    the better."""
    with served(tmp_path, partitions=1, complete=complete) as node:
        node.put(b"a", b"1")
        status = parsed(exchange(node.port, get(b"/v1/keys/a" + query)))[0]

        assert (status == 200) == leaves_room
        assert (node.node.last_read_ms > 0) == leaves_room
