"""Test nodes in a network that has only IPv6."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from queryable_app.client import QueryableTopic
from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import initial_placement
from queryable_app.wire.partitioners import partition_for
from tests.support.serve_process import serve_process
from tests.support.served import served
from tests.support.waiting import eventually

KEYS = [f"key-{number}" for number in range(20)]


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_node_listens_over_both_families(tmp_path: Path, address: str) -> None:
    """By default, as in a pod, a node answers over IPv4 and over IPv6."""
    every_address = NodeSettings.__dataclass_fields__["http_host"].default
    with serve_process(tmp_path, http_host=every_address) as node:
        assert (
            httpx.get(f"http://{address}:{node.port}/livez", trust_env=False, timeout=30).status_code == 200
        )


def test_nodes_and_clients_talk_over_ipv6(tmp_path: Path) -> None:
    """Nodes with IPv6 addresses forward reads, and the Python client reads from each of them."""
    with ExitStack() as stack:
        listeners = [socket.create_server(("::1", 0), family=socket.AF_INET6) for _ in range(2)]
        addresses = [f"http://[::1]:{listener.getsockname()[1]}" for listener in listeners]
        placement = initial_placement("tests.users.r1", 2, addresses, 1)
        (tmp_path / "token").write_text("between-nodes")
        nodes = [
            stack.enter_context(
                served(
                    tmp_path / f"node-{ordinal}",
                    ordinal=ordinal,
                    placement=placement,
                    listener=listener,
                    settings={"internal_token_path": str(tmp_path / "token")},
                )
            )
            for ordinal, listener in enumerate(listeners)
        ]
        for key in KEYS:
            owner = placement.serving[partition_for(key.encode(), "murmur2", 2)][0]
            nodes[owner].put(key.encode(), b'"%b"' % key.encode())
        eventually(
            "the heartbeats arrive", lambda: all(len(n.node.peers.last_heartbeats) == 1 for n in nodes)
        )

        for address in addresses:
            with httpx.Client(base_url=address, trust_env=False, timeout=30) as http:
                answers = [http.get(f"/v1/keys/{key}") for key in KEYS]
                assert [answer.json() for answer in answers] == KEYS
                assert {answer.headers["qt-hops"] for answer in answers} == {"0", "1"}
                assert http.get("/v1/count").json()["count"] == len(KEYS)
            with QueryableTopic(address) as users:
                assert [row.value for key in KEYS if (row := users.get(key))] == KEYS
