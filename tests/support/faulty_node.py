"""Start nodes beside a faulty one, which answers heartbeats correctly, and reads by the test's choice."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from queryable_app.placement.assignment import Placement
from queryable_app.serve.base.peer_frames import encode_rows
from queryable_app.wire.partitioners import partition_for
from tests.support.node_cluster import APPLICATION_ID, address_of, listen, token_settings
from tests.support.served import Served, served
from tests.support.socket_server import SocketServer
from tests.support.waiting import eventually

KEY = next(f"key-{n}" for n in range(99) if partition_for(b"key-%d" % n, "murmur2", 2) == 1)
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: closing resets the connection

_HEARTBEAT_BODY = b'{"epoch":1,"mismatches":[0,0,0],"copies":{"1":[1,0,true]}}'
_COVERED = encode_rows({"standings": [[1, 1, "active", 0, 0, True]], "refused": []})
_COUNTED = encode_rows({"count": 1})
_MALFORMED_COVER = encode_rows(
    {"standings": [[1, None]], "refused": [{"partition": 1, "reason": "INTERNAL"}]}
)
_COVERS_AT_FIRST = ("hangs later", "falls silent", "returns no fields later")


def http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


_RESPONSES = {
    "wrong owner": http(421, b'{"reason":"wrong_owner"}'),
    "not available": http(503, b'{"reason":"not_available"}'),
    "defect": http(500, b'{"reason":"internal"}'),
    "forbidden": http(403, b'{"reason":"forbidden"}'),
    "overloaded": http(429, b'{"reason":"overloaded"}'),
    "garbage": b"220 mail.example ESMTP\r\n\r\n",
    "no length": b"HTTP/1.1 200 OK\r\n\r\n",
    "half an answer": http(200, b"x" * 1000)[:200],
    "returns no fields": http(200, encode_rows({})),
    "returns no fields later": http(200, encode_rows({})),
    "returns malformed fields": http(200, _MALFORMED_COVER),
}
"""What the node sends to a read, by behaviour. Other behaviours send nothing, or are in `_answer`. One that is "silent" does
not answer heartbeats either."""


class FaultyNode:
    """Answer heartbeats as a node does, and reads by `behaviour`."""

    def __init__(self, listener: socket.socket, behaviour: str) -> None:
        self.behaviour = behaviour
        self.asked: list[bytes] = []
        """What it received as reads."""
        self.recovered = threading.Event()
        """Set it to end the silence of a node that "falls silent"."""
        self._silent = False
        self._server = SocketServer(listener, self._serve)

    @property
    def reads(self) -> int:
        """Return the number of reads that it received."""
        return sum(data.count(b"GET /v1/keys/") + data.count(b"POST /internal/") for data in self.asked)

    def _serve(self, connection: socket.socket) -> None:
        while data := connection.recv(65536):
            if b"/internal/v1/heartbeat" in data:
                if not (self._silent or self.behaviour == "silent"):
                    connection.sendall(http(200, _HEARTBEAT_BODY))
            elif b"/internal/v1/cover" in data and self.behaviour in _COVERS_AT_FIRST:
                connection.sendall(http(200, _COVERED))
            else:
                self.asked.append(data)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        match self.behaviour:
            case "closes":
                connection.close()
            case "resets":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.close()
            case "resets in the middle":
                connection.sendall(http(200, b"x" * 1000)[:200])
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.close()
            case "falls silent":  # its heartbeats stop with the first read
                self._silent = True
                self.recovered.wait(60)
                self._silent = False
                connection.sendall(http(200, _COUNTED))
            case behaviour:
                connection.sendall(_RESPONSES.get(behaviour, b""))

    def stop(self) -> None:
        self.recovered.set()
        self._server.close()


def placement_of(*addresses: str) -> Placement:
    """Assign partition 0 to node 0, and partition 1 to the others in their order."""
    return Placement(1, APPLICATION_ID, addresses, ((0,), tuple(range(1, len(addresses)))), ((), ()))


@contextmanager
def requesting_node(
    directory: Path, *others: str, settings: dict[str, object] | None = None
) -> Iterator[Served]:
    """Start node 0, which has to send reads of the key to the nodes at the other addresses."""
    (listener,) = listen(1)
    placement = placement_of(address_of(listener), *others)
    own_settings = token_settings(directory) | (settings or {})
    with served(directory / "node-0", placement=placement, listener=listener, settings=own_settings) as node:
        yield node


@contextmanager
def standby_node(directory: Path, listener: socket.socket, placement: Placement) -> Iterator[Served]:
    """Start node 2, which has the key."""
    settings = token_settings(directory)
    with served(
        directory / "node-2", ordinal=2, placement=placement, listener=listener, settings=settings
    ) as node:
        node.put(KEY.encode(), b"7", partition=1)
        yield node


@contextmanager
def with_faulty_node(directory: Path, behaviour: str) -> Iterator[tuple[Served, FaultyNode, Served]]:
    """Start node 0, which requests; node 1, which is tried first and faulty; and node 2, which has the key."""
    listeners = listen(2)
    faulty = FaultyNode(listeners[0], behaviour)
    try:
        with (
            requesting_node(directory, *map(address_of, listeners)) as node,
            standby_node(directory, listeners[1], node.node.placement) as standby,
        ):
            eventually("heartbeats of both arrived", lambda: len(node.node.peers.last_heartbeats) == 2)
            eventually("none is suspected", lambda: not node.node.peers.suspected)
            yield node, faulty, standby
    finally:
        faulty.stop()


@contextmanager
def with_only_faulty_node(
    directory: Path, behaviour: str, settings: dict[str, object] | None = None
) -> Iterator[tuple[Served, FaultyNode]]:
    """Start node 0, which requests, and a faulty node as the only one with the key."""
    (listener,) = listen(1)
    faulty = FaultyNode(listener, behaviour)
    try:
        with requesting_node(directory, address_of(listener), settings=settings) as node:
            yield node, faulty
    finally:
        faulty.stop()
