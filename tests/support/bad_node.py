"""Nodes around one that behaves badly: real ones, and one that answers heartbeats as a node does and reads as it is told."""

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
from tests.support.served import Served, served
from tests.support.waiting import eventually

TOKEN = "between-nodes"
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: closing resets the connection
HEARTBEAT_BODY = b'{"epoch":1,"mismatches":[0,0,0],"copies":{"1":[1,0,true]}}'
COVERED = encode_rows({"standings": [[1, 1, "active", 0, 0, True]], "refused": []})
COUNTED = encode_rows({"count": 1})
MALFORMED_COVER = encode_rows({"standings": [[1, None]], "refused": [{"partition": 1, "reason": "INTERNAL"}]})
_GOOD_AT_FIRST = ("hangs later", "falls silent", "says nothing later")


def http(status: int, body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n%b\r\n%b" % (status, len(body), more, body)


class FaultyNode:
    """Answers heartbeats as a node does, and reads as it is told."""

    def __init__(self, listener: socket.socket, behaviour: str) -> None:
        self.behaviour = behaviour
        self.reads = 0
        self.awake = threading.Event()
        self._silent = False
        self._listener = listener
        self._connections: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(65536):
                if b"/internal/v1/heartbeat" in data:
                    if not self._silent:
                        connection.sendall(http(200, HEARTBEAT_BODY))
                elif b"/internal/v1/cover" in data and self.behaviour in _GOOD_AT_FIRST:
                    connection.sendall(http(200, COVERED))
                else:
                    self.reads += data.count(b"GET /v1/keys/") + data.count(b"POST /internal/")
                    self._answer(connection)
        except OSError:
            pass

    def _answer(self, connection: socket.socket) -> None:
        match self.behaviour:
            case "garbage":
                connection.sendall(b"220 mail.example ESMTP\r\n\r\n")
            case "no length":
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            case "closes":
                connection.close()
            case "resets":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.close()
            case "resets in the middle":
                connection.sendall(http(200, b"x" * 1000)[:200])
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.close()
            case "half an answer":
                connection.sendall(http(200, b"x" * 1000)[:200])
            case "wrong owner":
                connection.sendall(http(421, b'{"reason":"wrong_owner"}'))
            case "not available":
                connection.sendall(http(503, b'{"reason":"not_available"}'))
            case "defect":
                connection.sendall(http(500, b'{"reason":"internal"}'))
            case "forbidden":
                connection.sendall(http(403, b'{"reason":"forbidden"}'))
            case "falls silent":  # with the first read; the heartbeats too, until it is awake again
                self._silent = True
                self.awake.wait(60)
                self._silent = False
                connection.sendall(http(200, COUNTED))
            case "says nothing" | "says nothing later":
                connection.sendall(http(200, encode_rows({})))
            case "says nonsense":
                connection.sendall(http(200, MALFORMED_COVER))
            case "overloaded":
                connection.sendall(http(429, b'{"reason":"overloaded"}'))

    def stop(self) -> None:
        self.awake.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not end who waits in it
        self._accepting.join()
        self._listener.close()
        for connection in self._connections:
            connection.close()


def placement_of(*addresses: str) -> Placement:
    """Node 0 has partition 0, the others partition 1, in their order."""
    return Placement(1, "tests.users.r1", addresses, ((0,), tuple(range(1, len(addresses)))), ((), ()))


KEY = next(f"key-{n}" for n in range(99) if partition_for(b"key-%d" % n, "murmur2", 2) == 1)


@contextmanager
def requesting_node(
    directory: Path, *others: str, settings: dict[str, object] | None = None
) -> Iterator[Served]:
    """Node 0, which has to ask others for the key."""
    directory.mkdir(exist_ok=True)
    (directory / "token").write_text(TOKEN)
    listener = socket.create_server(("127.0.0.1", 0))
    placement = placement_of(f"http://127.0.0.1:{listener.getsockname()[1]}", *others)
    token = {"internal_token_path": str(directory / "token"), **(settings or {})}
    with served(directory / "node-0", placement=placement, listener=listener, settings=token) as node:
        yield node


@contextmanager
def standby_node(directory: Path, listener: socket.socket, placement: Placement) -> Iterator[Served]:
    directory.mkdir(exist_ok=True)
    (directory / "token").write_text(TOKEN)
    token = {"internal_token_path": str(directory / "token")}
    with served(
        directory / "node-2", ordinal=2, placement=placement, listener=listener, settings=token
    ) as node:
        node.put(KEY.encode(), b"7", partition=1)
        yield node


@contextmanager
def with_faulty_node(directory: Path, behaviour: str) -> Iterator[tuple[Served, FaultyNode, Served]]:
    """Node 0 asks, node 1 is first to be asked and behaves badly, node 2 is well."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    bad = FaultyNode(listeners[0], behaviour)
    try:
        with (
            requesting_node(directory, *addresses) as node,
            standby_node(directory, listeners[1], node.node.placement) as standby,
        ):
            eventually("both are heard", lambda: len(node.node.peers.last_heartbeats) == 2)
            eventually("none is a suspect", lambda: not node.node.peers.suspected)
            yield node, bad, standby
    finally:
        bad.stop()
