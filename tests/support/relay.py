"""Relay connections to a server, and count the bytes that it sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Relay:
    """Relay connections to one server; `responded` is the number of bytes from it."""

    def __init__(self, listener: socket.socket, target: tuple[str, int]) -> None:
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.responded = 0
        self._listener, self._target = listener, target
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start_thread(self._accept)

    def _start_thread(self, target: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                self._open.append(caller)
                server = socket.create_connection(self._target)
                self._open.append(server)
                self._start_thread(self._pass, caller, server, False)
                self._start_thread(self._pass, server, caller, True)

    def _pass(self, source: socket.socket, sink: socket.socket, from_server: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(1 << 16):
                if from_server:
                    self.responded += len(chunk)
                sink.sendall(chunk)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in (self._listener, *self._open):
            connection.close()


@contextmanager
def relay(target: tuple[str, int]) -> Iterator[Relay]:
    running = Relay(socket.create_server(("127.0.0.1", 0)), target)
    try:
        yield running
    finally:
        running.close()
