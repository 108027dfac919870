"""Provide a node that hostile and foreign clients call over real sockets.

`node` is a real node (stores, event loop, protocol, port) in a thread of the test's process. The node has the 1 000 rows
`key-000000` → `{"n":0}` to `key-000999`, in two partitions, and takes records over HTTP; there is no Kafka behind it. The
tests of a file share it, and leave it as it was.
A test with other settings makes its own node with `tests.support.served.served`. A test that takes a process's descriptors
or memory starts its own process. Raw bytes go through `tests.support.wire.wire(node.port)`.

`node_still_serves` checks after each test that a well-behaved client still gets its answers.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.served import Served, served

ROWS = 1000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node"), read={"ingest": True}) as running:
        running.fill(ROWS)
        yield running


@pytest.fixture(autouse=True)
def node_still_serves(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that the node still serves another client after the test, and has logged no defect."""
    if "node" not in request.fixturenames:
        yield
        return
    node: Served = request.getfixturevalue("node")
    yield
    with node.client() as client:
        assert client.get("/v1/keys/key-000007").json() == {"n": 7}
        assert client.get("/v1/count").json()["count"] == ROWS
    assert not node.node.counters.failures["internal"]
