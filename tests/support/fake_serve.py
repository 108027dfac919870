"""Provide the other end of ingest's two sockets for tests: it keeps what it receives and answers as serve does."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from queryable_app.contract import CONTROL_SOCKET, ROW_SOCKET
from queryable_app.wire import row_frames
from queryable_app.wire.row_frames import Hello, SliceHeader, SliceRow


class RowSink:
    """Accept writers' connections on a row socket, collect slices, and acknowledge every end."""

    def __init__(self, path: Path, keep: bool = True) -> None:
        self.path = path
        self.hellos: list[Hello] = []
        self.slices: list[tuple[SliceHeader, list[SliceRow]]] = []
        self.ends = 0
        self.count = 0
        self.records = 0
        self.generation: int | None = None  # None: accept any
        self.acknowledges = True  # False: hangs up where an acknowledgement is waited for
        self._keep = keep
        self._connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def rows(self, partition: int | None = None) -> list[SliceRow]:
        return [row for header, rows in self.slices if partition in (None, header.partition) for row in rows]

    def cut(self) -> None:
        """Close every connection, as a killed serve does."""
        for connection in self._connections:
            with contextlib.suppress(OSError):  # the writer has closed it
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self.cut()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> RowSink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb", buffering=1 << 20) as stream:
                while prefix := stream.read(4):
                    payload = stream.read(row_frames.payload_length(prefix))
                    if payload[0] == row_frames.HELLO:
                        hello = row_frames.decode_hello(payload)
                        if self.generation not in (None, hello.generation):
                            return
                        self.hellos.append(hello)
                    elif payload[0] == row_frames.SLICE:
                        header = row_frames.decode_slice_header(payload)
                        self.count += header.rows
                        self.records += header.last_offset - header.first_offset + 1
                        if self._keep:
                            self.slices.append((header, row_frames.rows(payload, header)))
                    else:
                        row_frames.decode_end(payload)
                        if not self.acknowledges:
                            return
                        self.ends += 1
                        connection.sendall(row_frames.ACK)
        except (OSError, ValueError):
            return  # another thread closed the connection


class FakeServe:
    """Provide both sockets of a node's run directory; `received` has ingest's messages on the control socket."""

    def __init__(self, run_dir: Path) -> None:
        self.rows = RowSink(run_dir / ROW_SOCKET)
        self.received: list[dict[str, Any]] = []
        self._path = run_dir / CONTROL_SOCKET
        self._connection: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(4)
        threading.Thread(target=self._accept, daemon=True).start()

    def say(self, message: dict[str, Any]) -> None:
        assert self._connection is not None
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def wait_for(
        self, predicate: Callable[[dict[str, Any]], bool], seconds: float = 30, skip: int = 0
    ) -> dict[str, Any]:
        """Return the first message from the `skip`th on that satisfies the predicate."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for message in self.received[skip:]:
                if predicate(message):
                    return message
            time.sleep(0.01)
        raise AssertionError(f"ingest did not send the expected message; it sent {self.received[skip:]}")

    def wait_for_type(self, type_: str, seconds: float = 30, skip: int = 0) -> dict[str, Any]:
        return self.wait_for(lambda message: message["type"] == type_, seconds, skip)

    def wait_for_state(self, state: str, seconds: float = 30, skip: int = 0) -> dict[str, Any]:
        return self.wait_for(lambda m: m["type"] == "state" and m["state"] == state, seconds, skip)

    def hang_up(self) -> None:
        """Close the control connection; ingest may open another one."""
        assert self._connection is not None
        self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        self._path.unlink(missing_ok=True)
        self.rows.close()

    def __enter__(self) -> FakeServe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connection = connection
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as stream:
                for line in stream:
                    self.received.append(json.loads(line))
        except (OSError, ValueError):
            return
