"""A node forwards values that are larger than one piece of an answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from queryable_app.placement.assignment import Placement
from tests.support.relay import Relay, relay
from tests.support.served import Served, read_answers, served
from tests.support.waiting import eventually


@contextmanager
def through_a_relay(
    directory: Path, untaken_bytes_max: int = 128 << 20
) -> Iterator[tuple[Served, Served, Relay]]:
    """Start a node without replicas, the owner of the only partition, and a relay for all bytes between them."""
    with ExitStack() as stack:
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        between = stack.enter_context(relay(listeners[1].getsockname()))
        url = f"http://127.0.0.1:{listeners[0].getsockname()[1]}"
        placement = Placement(1, "tests.users.r1", (url, between.url), ((1,),), ((),))
        token = directory / "token"
        token.write_text("between-nodes")
        settings = {"internal_token_path": str(token), "untaken_bytes_max": untaken_bytes_max}
        caller, owner = (
            stack.enter_context(
                served(
                    directory / f"node-{ordinal}",
                    ordinal=ordinal,
                    placement=placement,
                    listener=listener,
                    settings=settings,
                )
            )
            for ordinal, listener in enumerate(listeners)
        )
        yield caller, owner, between


@pytest.mark.parametrize("size", [300_000, 8_000_000])
@pytest.mark.parametrize("options", ["", "?consistency=any"], ids=["plain", "with an option"])
def test_large_value_of_another_node_crosses_the_network_once(
    tmp_path: Path, options: str, size: int
) -> None:
    """The nodes exchange about as many bytes as one answer has."""
    value = b'"%b"' % (b"x" * size)
    with through_a_relay(tmp_path) as (caller, owner, between), caller.client() as http:
        owner.put(b"large", value)
        assert http.get("/v1/keys/small").status_code == 404  # the connection is there
        before = between.responded
        answer = http.get(f"/v1/keys/large{options}")
        crossed = between.responded - before
        assert (answer.content == value, answer.headers["qt-hops"]) == (True, "1")
        assert http.get("/v1/keys/large").content == value  # the same connection goes on
    assert size <= crossed < size + 100_000, crossed


def test_forwarded_values_that_clients_do_not_read_are_bounded(tmp_path: Path) -> None:
    """While one client leaves too many response bytes unread, another one gets 429 for a large value."""
    value = b'"%b"' % (b"x" * 8_000_000)
    with (
        through_a_relay(tmp_path, untaken_bytes_max=9_000_000) as (caller, owner, _),
        caller.client() as http,
    ):
        owner.put(b"large", value)
        with socket.create_connection(("127.0.0.1", caller.port)) as slow:
            slow.sendall(b"GET /v1/keys/large HTTP/1.1\r\nHost: x\r\n\r\n")
            eventually("it is on its way", lambda: caller.node.answer_budget.taken > 0)
            refused = http.get("/v1/keys/large")
            assert (refused.status_code, refused.json()["reason"]) == (429, "overloaded")
            assert "retry-after" in refused.headers
            assert http.get("/v1/keys/small").status_code == 404
            assert read_answers(slow, 1).endswith(value)
        eventually("it is taken", lambda: caller.node.answer_budget.taken == 0)
        assert http.get("/v1/keys/large").content == value
