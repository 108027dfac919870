"""Test the client of query nodes against a real node over real stores, and against other servers."""

from __future__ import annotations

import asyncio
import gzip
import socket
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from queryable_app.placement.assignment import Placement
from queryable_app.wire.ingest_failures import IngestFailure
from queryable_operator.act.nodes import Node, NodeKey, NodeRefused, Nodes, parse_node_status
from queryable_operator.spec.observed import NodeStatus
from tests.support.certificates import CertificateAuthority, mount
from tests.support.served import Served, served
from tests.support.socket_server import SocketServer

T = TypeVar("T")
TOKEN = "a-token"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "token").write_text(TOKEN)
    with served(tmp_path / "node", settings={"internal_token_path": str(tmp_path / "token")}) as running:
        yield running


def _node(port: int, epoch: int | None = 1, uid: str = "it") -> Node:
    return Node(1, 0, uid, "127.0.0.1", epoch, port)


def _with_nodes(use: Callable[[Nodes], Coroutine[Any, Any, T]]) -> T:
    async def used() -> T:
        nodes = Nodes()
        try:
            return await use(nodes)
        finally:
            await nodes.close()

    return asyncio.run(used())


def _status_of(
    node: Node, token: str = TOKEN, before: dict[NodeKey, NodeStatus] | None = None
) -> NodeStatus | None:
    node_status = _with_nodes(lambda nodes: nodes.statuses({node: token}, before or {}))
    return node_status.get(1, {}).get(0)


@pytest.mark.parametrize(
    ("job", "error"),
    [
        ({"state": "failed", "detail": "records 3 to 9\nare gone"}, "records 3 to 9 are gone"),
        (
            {"state": "waiting-for-executors", "detail": "the executors have 0 slots"},
            "the executors have 0 slots",
        ),
        ({"state": "streaming", "detail": ""}, None),
        ({"state": "absent", "detail": "an old one"}, None),
        (None, None),
        ("rubbish", None),
    ],
)
def test_failure_of_a_rekey_job_is_parsed(job: object, error: str | None) -> None:
    """A node of a rekeyed view reports what its job said last. Only a failure is a problem, or that no
    executor runs."""
    status: dict[str, Any] = {
        "node": {"ordinal": 0},
        "epoch": 1,
        "ready": True,
        "partitions": [],
        "ingest": {"state": "streaming", "detail": ""},
        "topicPartitions": 1,
        "partitioner": {"inUse": "murmur2", "declared": "murmur2", "mismatches": {"murmur2": 0}},
        "disk": {"paused": "none"},
        "rekey": job,
    }

    assert parse_node_status(status, 0.0).rekey_error == error


def test_node_reports_its_replicas(running: Served) -> None:
    """A node with two complete replicas of an empty topic is ready and caught up, without lag."""
    node_status = _status_of(_node(running.port))
    assert node_status is not None
    assert (node_status.ready, node_status.replicas, node_status.complete, node_status.lag_records) == (
        True,
        2,
        2,
        0,
    )
    assert node_status.seen.epoch == 1
    assert node_status.seen.caught_up == {0, 1}
    assert (
        node_status.disk_paused,
        node_status.failed,
        node_status.ingest_error,
        node_status.mismatches,
    ) == (False, {}, None, 0)


def test_failed_replica_has_a_reason(running: Served) -> None:
    """A failed replica is reported by partition with its reason, and is not caught up."""
    running.on_loop(lambda: running.node.replicas.by_partition[1].fail("the topic was made again"))
    node_status = _status_of(_node(running.port))
    assert node_status is not None
    assert node_status.failed == {1: "the topic was made again"}
    assert node_status.seen.caught_up == {0}


def test_permanent_ingest_failure_is_reported(running: Served) -> None:
    """A permanent failure of ingest is reported with its reason; a node of an earlier version sends none."""
    failure = IngestFailure("TransformRefused", "no such column")

    def fail() -> None:
        running.node.ingest_status.enter("failed", failure.message)
        running.node.ingest_status.failure = failure

    running.on_loop(fail)
    node_status = _status_of(_node(running.port))
    assert node_status is not None
    assert (node_status.failure, node_status.ingest_error) == (failure, "no such column")


def test_sent_placement_is_followed(running: Served) -> None:
    """The node then reports the epoch of the placement."""
    newer = replace(running.node.placement, epoch=7)

    async def tell(nodes: Nodes) -> None:
        await nodes.send_placement(_node(running.port), TOKEN, newer)

    _with_nodes(tell)
    node_status = _status_of(_node(running.port))
    assert node_status is not None
    assert node_status.seen.epoch == 7


def test_sent_read_settings_are_followed(running: Served) -> None:
    """The node then reports these settings."""

    async def tell(nodes: Nodes) -> None:
        read = {"consistency": "any", "ingest": False, "maxConcurrent": 7}
        await nodes.send_read_settings(_node(running.port), TOKEN, read)

    _with_nodes(tell)
    node_status = _status_of(_node(running.port))
    assert node_status is not None
    assert (node_status.read["consistency"], node_status.read["maxConcurrent"]) == ("any", 7)


def test_placement_is_requested_if_its_record_is_lost(running: Served) -> None:
    """The placement is requested if the ConfigMap has none, or one with another epoch."""
    here = running.node.placement
    known, lost = _status_of(_node(running.port, here.epoch)), _status_of(_node(running.port, None))
    assert known is not None
    assert known.placement is None
    assert lost is not None
    assert lost.placement == here


def test_refused_placement_has_a_reason(running: Served) -> None:
    """A node refuses a placement of another application."""
    strange = replace(running.node.placement, epoch=9, application_id="another.view.r1")
    with pytest.raises(NodeRefused, match=r"it answers 400: .*another\.view\.r1"):
        _with_nodes(lambda nodes: nodes.send_placement(_node(running.port), TOKEN, strange))


def test_wrong_token_is_refused(running: Served) -> None:
    """The error contains the node's response."""
    with pytest.raises(NodeRefused, match="it answers 403"):
        _with_nodes(lambda nodes: nodes.send_read_settings(_node(running.port), "another", {}))


def test_unreachable_node_has_no_status() -> None:
    """The call does not wait."""
    assert _status_of(_node(1)) is None


def test_hanging_node_keeps_its_last_status(running: Served) -> None:
    """After a second its last status counts, without caught-up replicas."""
    before = _status_of(_node(running.port))
    assert before is not None
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # it takes connections and answers nothing
        node_status = _status_of(_node(hanging.getsockname()[1]), before={("it", 0): before})
    assert node_status == replace(before, seen=replace(before.seen, caught_up=frozenset()))


def test_new_pod_does_not_inherit_a_status(running: Served) -> None:
    """The status of an earlier pod with the same name is ignored."""
    before = _status_of(_node(running.port))
    assert before is not None
    assert _status_of(_node(1, uid="another"), before={("it", 0): before}) is None


@contextmanager
def another_server(respond: Callable[[socket.socket], None]) -> Iterator[Node]:
    """Yield the address of a server that reads a request and then calls `respond`."""

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        respond(connection)

    listener = socket.create_server(("127.0.0.1", 0))
    with SocketServer(listener, serve):
        yield _node(listener.getsockname()[1])


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"partitions": 7}', b"\xff\xfe", b'"a"', b"null"])
def test_response_of_another_server_is_ignored(body: bytes) -> None:
    """A response of any other server at a pod's address gives no status and raises nothing."""
    response = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    with another_server(lambda connection: connection.sendall(response)) as node:
        assert _status_of(node) is None


def test_endless_response_is_cut_off() -> None:
    """The client reads at most some megabytes, or for a second."""

    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b" " * 65536)

    with another_server(endless) as node:
        assert _status_of(node) is None


def test_compressed_refusal_is_not_decompressed() -> None:
    """A refusal that decompresses to a hundred megabytes costs only its compressed size."""
    bomb = gzip.compress(bytes(100 * 1024 * 1024), 1)
    head = b"HTTP/1.1 400 No\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb)
    with another_server(lambda connection: connection.sendall(head + bomb)) as node:
        tracemalloc.start()
        with pytest.raises(NodeRefused):
            _with_nodes(lambda nodes: nodes.send_read_settings(node, TOKEN, {}))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 20 * 1024 * 1024


def test_ipv6_address_is_in_brackets() -> None:
    """URLs need brackets around an IPv6 address."""
    assert replace(_node(8080), ip="fd00::1").url == "http://[fd00::1]:8080"


@pytest.mark.parametrize(("declared", "mismatches"), [("murmur2", 3), ("auto", 1), ("scatter", 0)])
def test_mismatches_are_of_the_declared_partitioner(running: Served, declared: str, mismatches: int) -> None:
    """With `auto` the best fitting partitioner counts; with `scatter` there are no mismatches."""
    with running.client() as client:
        status = client.get("/v1/status").json()
    status["partitioner"] |= {"declared": declared, "mismatches": {"murmur2": 3, "crc32": 1, "fnv1a": 2}}
    assert parse_node_status(status, 0.0).mismatches == mismatches


def test_placement_is_read_as_it_was_written(running: Served) -> None:
    """The placement of a node equals the one that was sent."""
    assert Placement.from_json(running.node.placement.to_json()) == running.node.placement


TLS_NAME = "nodes.v.a.example"


@contextmanager
def _tls_node(tmp_path: Path) -> Iterator[tuple[Node, CertificateAuthority]]:
    """Run a node with one certificate for clients and another one between nodes. Yield it as the operator knows it."""
    users, between = CertificateAuthority("users"), CertificateAuthority("between")
    (tmp_path / "token").write_text(TOKEN)
    settings = {
        "internal_token_path": str(tmp_path / "token"),
        "tls_dir": str(mount(tmp_path / "users", users.pem, *users.sign(("v.a.svc",)))),
        "node_tls_dir": str(mount(tmp_path / "nodes", between.pem, *between.sign((TLS_NAME,)))),
        "node_tls_name": TLS_NAME,
    }
    with served(tmp_path / "node", settings=settings, tls={"secretRef": {"name": "users"}}) as running:
        yield replace(_node(running.port), tls_name=TLS_NAME, ca=between.pem), users


def test_node_is_verified_by_the_certificate_between_nodes(tmp_path: Path) -> None:
    """The operator reads a status and sends settings over TLS; another CA, another name, no CA and plain HTTP get nothing, and
    nothing is sent to a node that is not verified."""
    with _tls_node(tmp_path) as (node, users):
        status = _status_of(node)
        assert status is not None
        _with_nodes(lambda nodes: nodes.send_read_settings(node, TOKEN, status.read))

        for wrong in (
            replace(node, ca=users.pem),
            replace(node, ca=CertificateAuthority().pem),
            replace(node, tls_name="nodes.w.a.example"),
            replace(node, ca=b""),
        ):
            assert _status_of(wrong) is None
            with pytest.raises(NodeRefused, match="it does not answer"):
                _with_nodes(
                    lambda nodes, to=wrong: nodes.send_read_settings(to, TOKEN, {})  # type: ignore[misc]
                )
        assert _status_of(replace(node, tls_name="")) is None


def test_another_ca_is_used_at_once(tmp_path: Path) -> None:
    """A client with the CA of before is not used for a node with another one."""
    with _tls_node(tmp_path) as (node, users):

        async def calls(nodes: Nodes) -> list[bool]:
            orders = (node, replace(node, ca=users.pem), node)
            return [bool(await nodes.statuses({each: TOKEN}, {})) for each in orders]

        assert _with_nodes(calls) == [True, False, True]
