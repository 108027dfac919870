"""Send requests to one node, one at a time on each connection, and await the responses.

Strategy: idle connections are kept and used again. The number of connections is bounded, since each is a descriptor of both
nodes. The peer may have closed an idle connection meanwhile: if no byte of the response arrives on such a connection, the
request is sent again on another one. Requests between nodes can be repeated safely.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, TypeAlias

from queryable_app.serve.peers.connection import PeerConnection, TlsOf, host_line

CONNECTIONS_MAX: Final = 512  # as many as a node answers requests at once
_IDLE_MAX: Final = 64


class PeerUnavailable(Exception):
    """The node is unreachable, or its response is not one of a node."""


class PeerTimeout(PeerUnavailable):
    """The node did not respond before the deadline. The node may be busy, or the deadline short."""


class PeerResponse(NamedTuple):
    status: int
    head: bytes
    """The status line and the header lines, with the empty line."""
    body: bytes

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Names in lower case, and values."""
        lines = (line.partition(b":") for line in self.head.split(b"\r\n")[1:-2])
        return [(name.lower(), value.strip()) for name, _, value in lines]


_Connection: TypeAlias = PeerConnection[asyncio.Future[PeerResponse]]


class PeerClient:
    """Requests to one node, from one event loop."""

    def __init__(
        self, address: str, connections_max: int = CONNECTIONS_MAX, tls: TlsOf | None = None
    ) -> None:
        self._address = address
        self._tls = tls
        self._host_line = host_line(address)
        self._permits = asyncio.Semaphore(connections_max)
        self._idle: list[_Connection] = []

    async def request(
        self, method: bytes, target: bytes, headers: bytes, body: bytes, deadline: float
    ) -> PeerResponse:
        """Return the response. `headers` are whole lines; the deadline is loop time. Raises PeerUnavailable."""
        length = b"Content-Length: %d\r\n" % len(body) if body else b""
        content = b"%b %b HTTP/1.1\r\n%b%b%b\r\n%b" % (
            method, target, self._host_line, headers, length, body)  # fmt: skip
        try:
            async with asyncio.timeout_at(deadline), self._permits:
                while self._idle:
                    connection = self._idle.pop()
                    if not connection.usable:
                        continue
                    try:
                        return await self._send(connection, content)
                    except PeerUnavailable:
                        if connection.has_partial_response:
                            raise
                connection = await PeerConnection.open(self._address, _resolve, _fail, self._tls)
                return await self._send(connection, content)
        except TimeoutError:
            raise PeerTimeout("no response before the deadline") from None
        except OSError as error:
            raise PeerUnavailable(str(error)) from None

    async def _send(self, connection: _Connection, content: bytes) -> PeerResponse:
        waiting: asyncio.Future[PeerResponse] = asyncio.get_running_loop().create_future()
        connection.send(content, (waiting,))
        try:
            response = await waiting
        except BaseException:
            connection.close()  # a late response would be taken for the next request's
            raise
        if connection.usable and len(self._idle) < _IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()
        return response

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def _resolve(waiting: asyncio.Future[PeerResponse], status: int, head: bytes, body: bytes) -> None:
    if not waiting.done():
        waiting.set_result(PeerResponse(status, head, body))


def _fail(connection: _Connection, reason: str) -> None:
    for waiting in connection.unanswered:
        if not waiting.done():
            waiting.set_exception(PeerUnavailable(reason))
