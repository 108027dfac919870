"""Serve connections in threads until a test closes the server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self


def listen_at(path: Path) -> socket.socket:
    """Return a listener on a Unix socket."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    return listener


class SocketServer:
    """Call `serve` with each connection, in a thread of its own; the connection is closed when it returns."""

    def __init__(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        self.connections: list[socket.socket] = []
        self._listener, self._serve = listener, serve
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections.append(connection)
                self._threads.append(threading.Thread(target=self._run, args=(connection,), daemon=True))
                self._threads[-1].start()

    def _run(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError):  # a test may end the connection at any moment
            self._serve(connection)

    def cut(self) -> None:
        """End every connection, as a killed process does."""
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not end `accept`
        self._accepting.join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
