"""Test more connections than a node accepts: idle ones, busy ones, and ones that never finish a head."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from queryable_app.contract import NODE_HEADER
from queryable_app.policy.descriptor_plan import CONNECTIONS_RESERVE
from queryable_app.wire.partitioners import partition_for
from tests.support.served import Served, served
from tests.support.waiting import eventually
from tests.support.wire import WireAnswer, request, wire

BOUND = 8
TOKEN = b"the-token-of-the-nodes"
WAITING_READ = request(
    b"GET",
    b"/v1/keys/a?consistency=at-least&min-position=%d:2&deadline-ms=60000"
    % partition_for(b"a", "murmur2", 2),
)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Served]:
    """Yield a node with room for eight connections, which authenticates other nodes by a token."""
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    settings = {"connections_max": BOUND, "internal_token_path": str(token)}
    with served(tmp_path / "node", settings=settings) as running:
        running.put(b"a", b"1")
        yield running
        running.put(b"a", b"2")  # the waiting reads end


def response_to(node: Served, target: bytes, *header_lines: bytes) -> WireAnswer:
    """Send one request on a connection of its own."""
    with wire(node.port) as connection:
        connection.send(request(b"GET", target, *header_lines))
        return connection.answer()


def opened(stack: ExitStack, node: Served, count: int, first_bytes: bytes = b"") -> list[socket.socket]:
    """Open connections, and wait until the node has received what they send."""
    before = len(node.protocol.open)
    made = [
        stack.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=30))
        for _ in range(count)
    ]
    for connection in made:
        connection.sendall(first_bytes)
    eventually("the node has all of them", lambda: len(node.protocol.open) == before + count)
    return made


def two_sweeps(node: Served) -> None:
    now = node.protocol.sweeps
    eventually("time has passed", lambda: node.protocol.sweeps >= now + 2)


def test_idle_connection_makes_room_for_a_new_one(small: Served) -> None:
    """At the limit a node closes the connection that has been idle for longest, and answers the new one."""
    with ExitStack() as stack:
        (oldest,) = opened(stack, small, 1)
        two_sweeps(small)
        others = opened(stack, small, BOUND - 1)

        assert response_to(small, b"/v1/keys/a").json() == 1

        assert oldest.recv(1) == b""
        others[0].sendall(request(b"GET", b"/v1/keys/a"))
        assert others[0].recv(12) == b"HTTP/1.1 200"


def test_unfinished_head_makes_room_for_a_new_connection(small: Served) -> None:
    """Connections that send half a head and stop do not block other clients."""
    with ExitStack() as stack:
        opened(stack, small, BOUND, b"GET /v1/keys/a HTTP/1.1\r\nHos")
        two_sweeps(small)

        for _ in range(2 * BOUND):
            assert response_to(small, b"/v1/keys/a").status == 200


def test_busy_connections_are_not_closed_for_a_new_one(small: Served) -> None:
    """If all connections are busy, a new one gets 429 with Retry-After by its first request."""
    with ExitStack() as stack:
        busy = opened(stack, small, BOUND, WAITING_READ)
        two_sweeps(small)

        refused = response_to(small, b"/v1/keys/a")

        assert (refused.status, refused.reason, refused.headers["retry-after"]) == (429, "overloaded", "1")
        assert refused.headers["connection"] == "close"
        assert small.node.counters.failures["overloaded"] == 1
        still_open = small.on_loop(lambda: [c for c in small.protocol.open if c.refused_since is None])
        assert len(still_open) == len(busy)


@pytest.mark.parametrize("bytes_sent", [b"", b"GET /v1/keys/a HTTP/1.1\r\nHos", WAITING_READ])
def test_probes_and_other_nodes_bypass_the_limit(small: Served, bytes_sent: bytes) -> None:
    """Whatever the connections at the limit do, a node answers probes, metrics and nodes with the token."""
    with ExitStack() as stack:
        opened(stack, small, BOUND, bytes_sent)

        for target in (b"/livez", b"/readyz", b"/metrics"):
            assert response_to(small, target).status == 200
        beat = response_to(small, b"/internal/v1/heartbeat", NODE_HEADER.encode() + b": " + TOKEN)
        assert beat.status == 200


def test_wrong_token_does_not_bypass_the_limit(small: Served) -> None:
    """A client with a guessed token is refused like others at the limit."""
    with ExitStack() as stack:
        opened(stack, small, BOUND, WAITING_READ)

        assert (
            response_to(small, b"/internal/v1/heartbeat", NODE_HEADER.encode() + b": guessed").status == 429
        )


def test_probes_bypass_a_full_reserve(small: Served) -> None:
    """Silent connections over the limit make room for a probe, and the node never has more than its reserve."""
    with ExitStack() as stack:
        opened(stack, small, BOUND, WAITING_READ)
        for _ in range(3 * CONNECTIONS_RESERVE):
            stack.enter_context(socket.create_connection(("127.0.0.1", small.port), timeout=30))

        for _ in range(20):
            assert response_to(small, b"/livez").status == 200

        assert len(small.protocol.open) <= BOUND + CONNECTIONS_RESERVE
