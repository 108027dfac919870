"""Accept TLS connections, and bound what a client costs before its handshake is over.

Strategy: a connection waits here, without a task, for its first byte. A TLS handshake begins with 0x16; anything else is plain
HTTP and gets a sentence. One handshake begins in each turn of the event loop, so that a flood of them leaves room for requests.
If too many connections are in progress, the one that has waited longest is closed: a client that means it is quick.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from queryable_app.errors import invalid
from queryable_app.policy.descriptor_plan import HANDSHAKES_MAX
from queryable_app.serve.base.background import watch
from queryable_app.serve.base.counters import Counters
from queryable_app.serve.base.node_tls import NodeTls
from queryable_app.serve.base.tls_connection import TlsConnection
from queryable_app.wire.http_text import problem_answer

_HANDSHAKE_BYTE: Final = b"\x16"
_ACCEPTS_PER_TURN: Final = 16
_RETRY_ACCEPT_SECONDS: Final = 0.1  # without a free descriptor
_SWEEP_SECONDS: Final = 0.5
_LINGER_SECONDS: Final = (
    2.0  # closing on unread bytes would reset the connection before the client has read the answer
)
_UNREAD_BYTES_MAX: Final = 1 << 16

_PLAIN_HTTP: Final = problem_answer(
    invalid("request", "it is plain HTTP, and this port speaks TLS", "write https:// in place of http://")
)
_PLAIN_HTTP_ANSWER: Final = b"%b%bconnection: close\r\n\r\n%b" % (
    STATUS_LINE[_PLAIN_HTTP.status],
    _PLAIN_HTTP.headers,
    _PLAIN_HTTP.body,
)


class TlsListener:
    """Accept connections of one listening socket. It closes as an `asyncio.Server` does."""

    def __init__(
        self,
        listening: socket.socket,
        create_protocol: Callable[[], asyncio.Protocol],
        tls: NodeTls,
        counters: Counters,
        handshake_seconds_max: float,
    ) -> None:
        self._listening = listening
        self._create_protocol = create_protocol
        self._tls = tls
        self._counters = counters
        self._seconds_max = handshake_seconds_max
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, float] = {}  # with the time until which the first byte may arrive
        self._ready: deque[tuple[socket.socket, float]] = deque()
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._refused: dict[socket.socket, float] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for connection in [*self._silent, *self._refused]:
            self._drop(connection)
        for connection, _ in self._ready:
            connection.close()
        self._ready.clear()
        for handshake in self._handshakes:
            handshake.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def wait_closed(self) -> None:
        if self._handshakes:
            await asyncio.wait(list(self._handshakes))

    @property
    def in_progress(self) -> int:
        """Return how many connections are not open to requests yet."""
        return len(self._silent) + len(self._ready) + len(self._handshakes) + len(self._refused)

    # Accepting.

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening, self._on_connections)

    def _on_connections(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:  # no descriptor is free
                self._loop.remove_reader(self._listening)
                self._loop.call_later(_RETRY_ACCEPT_SECONDS, self._resume)
                return
            connection.setblocking(False)
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.in_progress >= HANDSHAKES_MAX:
                self._drop_oldest()
            self._silent[connection] = self._loop.time() + self._seconds_max
            self._loop.add_reader(connection, self._on_first_bytes, connection)
            self._sweep_later()

    def _drop_oldest(self) -> None:
        self._counters.handshakes_failed += 1
        if self._refused:
            self._drop(next(iter(self._refused)))
        elif self._silent:
            self._drop(next(iter(self._silent)))
        elif self._handshakes:
            next(iter(self._handshakes)).cancel()

    def _drop(self, connection: socket.socket) -> None:
        self._silent.pop(connection, None)
        self._refused.pop(connection, None)
        self._loop.remove_reader(connection)
        connection.close()

    def _on_first_bytes(self, connection: socket.socket) -> None:
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        until = self._silent.pop(connection)
        self._loop.remove_reader(connection)
        if not first:
            connection.close()
        elif first == _HANDSHAKE_BYTE:
            self._ready.append((connection, until))
            if len(self._ready) == 1:
                self._loop.call_soon(self._begin_handshake)
        else:
            self._refuse_plain_http(connection)

    # Handshakes.

    def _begin_handshake(self) -> None:
        if not self._ready:  # closed
            return
        connection, until = self._ready.popleft()
        if self._ready:
            self._loop.call_soon(self._begin_handshake)
        task = self._loop.create_task(self._handshake(connection, until - self._loop.time()))
        self._handshakes[task] = None
        task.add_done_callback(lambda done: self._handshakes.pop(done, None))
        watch("TlsListener.handshake", task)

    async def _handshake(self, connection: socket.socket, seconds: float) -> None:
        try:
            await TlsConnection(self._tls.server, self._create_protocol).open(
                lambda protocol: self._loop.connect_accepted_socket(protocol, connection), max(0.001, seconds)
            )
        except OSError:  # the client's mistake, or its end
            self._counters.handshakes_failed += 1
        else:
            self._counters.handshakes += 1

    # Plain HTTP.

    def _refuse_plain_http(self, connection: socket.socket) -> None:
        self._counters.handshakes_failed += 1
        with suppress(OSError):
            connection.send(_PLAIN_HTTP_ANSWER)
            connection.shutdown(socket.SHUT_WR)
        self._refused[connection] = self._loop.time() + _LINGER_SECONDS
        self._loop.add_reader(connection, self._on_more_plain_http, connection)
        self._sweep_later()

    def _on_more_plain_http(self, connection: socket.socket) -> None:
        try:
            received = connection.recv(_UNREAD_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._drop(connection)

    # Times.

    def _sweep_later(self) -> None:
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweeping, now = None, self._loop.time()
        for waiting in (self._silent, self._refused):
            for connection in [connection for connection, until in waiting.items() if until <= now]:
                self._counters.handshakes_failed += waiting is self._silent
                self._drop(connection)
        if self._silent or self._refused:
            self._sweep_later()


class TlsServer(uvicorn.Server):
    """Serve the sockets over TLS if the node has a certificate, and as uvicorn does otherwise."""

    def __init__(
        self, config: uvicorn.Config, tls: NodeTls | None, counters: Counters, seconds: float
    ) -> None:
        super().__init__(config)
        self._tls, self._counters, self._seconds = tls, counters, seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None:
            await super().startup(sockets)
            return
        await super().startup([])
        listeners = [
            TlsListener(listening, self._new_protocol, self._tls, self._counters, self._seconds)
            for listening in sockets or ()
        ]
        self.servers.extend(listeners)  # type: ignore[arg-type]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop. A connection that is accepted in this turn of the event loop opens in the next one. uvicorn would miss it,
        and then wait for its client."""
        for server in self.servers:
            server.close()
        await asyncio.sleep(0)
        await super().shutdown(sockets)

    def _new_protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
