"""Provide serve's end of ingest's two sockets: store each message, and answer as serve does."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from queryable_app.contract import CONTROL_SOCKET, ROW_SOCKET
from queryable_app.wire import row_frames
from queryable_app.wire.row_frames import Hello, SliceHeader, SliceRow
from tests.support.socket_server import SocketServer, listen_at
from tests.support.waiting import eventually


class RowSink:
    """Accept writers' connections on a row socket, collect slices, and acknowledge every end."""

    def __init__(self, path: Path, keep: bool = True) -> None:
        self.path = path
        self.hellos: list[Hello] = []
        self.slices: list[tuple[SliceHeader, list[SliceRow]]] = []
        self.frames: list[tuple[int, SliceHeader | None]] = []
        """The task of each frame, with the header of a slice, or None for an end."""
        self.ends = 0
        self.count = 0
        self.records = 0
        self.generation: int | None = None  # None: accept any
        self.refused_task: int | None = None  # its next slice is lost, and its connection is closed
        self.acknowledges = True  # False: close instead of an acknowledgement
        self._keep = keep
        self._server = SocketServer(listen_at(path), self._read)

    def rows(self, partition: int | None = None) -> list[SliceRow]:
        return [row for header, rows in self.slices if partition in (None, header.partition) for row in rows]

    def cut(self) -> None:
        """Close every connection, as a killed serve does."""
        self._server.cut()

    def close(self) -> None:
        self._server.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> RowSink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, connection: socket.socket) -> None:
        task = -1
        with connection.makefile("rb", buffering=1 << 20) as stream:
            while prefix := stream.read(4):
                payload = stream.read(row_frames.payload_length(prefix))
                if payload[0] == row_frames.HELLO:
                    hello = row_frames.decode_hello(payload)
                    if self.generation not in (None, hello.generation):
                        return
                    self.hellos.append(hello)
                    task = hello.task
                elif payload[0] == row_frames.SLICE:
                    if task == self.refused_task:
                        return
                    header = row_frames.decode_slice_header(payload)
                    self.count += header.rows
                    self.records += header.last_offset - header.first_offset + 1
                    if self._keep:
                        self.frames.append((task, header))
                        self.slices.append((header, row_frames.rows(payload, header)))
                else:
                    row_frames.decode_end(payload)
                    if not self.acknowledges:
                        return
                    self.ends += 1
                    self.frames.append((task, None))
                    connection.sendall(row_frames.ACK)


class FakeServe:
    """Provide both sockets of a node's run directory; `received` has ingest's messages on the control socket."""

    def __init__(self, run_dir: Path) -> None:
        self.rows = RowSink(run_dir / ROW_SOCKET)
        self.received: list[dict[str, Any]] = []
        self._path = run_dir / CONTROL_SOCKET
        self._server = SocketServer(listen_at(self._path), self._read)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message on the latest control connection."""
        self._server.connections[-1].sendall(json.dumps(message).encode() + b"\n")

    def wait_for(
        self, predicate: Callable[[dict[str, Any]], bool], seconds: float = 30, skip: int = 0
    ) -> dict[str, Any]:
        """Return the first message from the `skip`th on that satisfies the predicate."""
        return eventually(
            "ingest has sent the message",
            lambda: next(filter(predicate, self.received[skip:]), None),
            seconds,
            story=lambda: f"it has sent {self.received[skip:]}",
        )

    def wait_for_type(self, type_: str, seconds: float = 30, skip: int = 0) -> dict[str, Any]:
        return self.wait_for(lambda message: message["type"] == type_, seconds, skip)

    def wait_for_state(self, state: str, seconds: float = 30, skip: int = 0) -> dict[str, Any]:
        return self.wait_for(lambda m: m["type"] == "state" and m["state"] == state, seconds, skip)

    def close_connection(self) -> None:
        """Close the control connection; ingest may open another one."""
        self._server.connections[-1].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()
        self._path.unlink(missing_ok=True)
        self.rows.close()

    def __enter__(self) -> FakeServe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            for line in stream:
                self.received.append(json.loads(line))
