"""HTTP to the other nodes: small requests on kept-alive connections.

Strategy: one request at a time on a connection, a pool of idle ones for each address, and a bound on how many there are,
since each is a descriptor of both nodes; httptools for the answer. It does
what nodes need of one another and no more, since a general client costs several times as much as the read it carries.
A kept-alive connection may have been closed by the other side meanwhile: a request that got not a byte back on one is
sent once more, on a new one. All requests here are reads.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

CONNECTIONS_MAX: Final = 512  # as many as a node answers requests at once
_IDLE_MAX: Final = 64  # connections kept for each address
ANSWER_BYTES_MAX: Final = 256 << 20


class PeerUnavailable(Exception):
    """The node could not be reached, or did not answer as one."""


class PeerTimeout(PeerUnavailable):
    """It did not answer in time. It may be busy, or have been given little time."""


class PeerResponse(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]  # names in lower case
    body: bytes


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[PeerResponse] | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = bytearray()
        self.heard = False  # a byte of the present answer
        self.usable = True

    async def ask(self, request: bytes) -> PeerResponse:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._headers, self._body, self.heard = [], bytearray(), False
        taken = False
        try:
            self._transport.write(request)
            answer = await self._answer
            taken = True
            return answer
        finally:
            if not taken:
                self.close()  # an answer that no request takes, even a whole one, would be taken for the next one

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        try:
            self._parser.feed_data(data)
            if len(self._body) > ANSWER_BYTES_MAX:
                raise PeerUnavailable("the answer is too large")
        except (httptools.HttpParserError, PeerUnavailable) as error:
            self._fail(str(error))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        self._fail(str(error) if error else "the connection was closed")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.usable = self._parser.should_keep_alive()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(
                PeerResponse(self._parser.get_status_code(), self._headers, bytes(self._body))
            )

    def _fail(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(PeerUnavailable(why))


class PeerClient:
    """To one node. Use it from one event loop."""

    def __init__(self, url: str, connections_max: int = CONNECTIONS_MAX) -> None:
        parts = urlsplit(url)
        self._room = asyncio.Semaphore(connections_max)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self.host_line = b"Host: %b\r\n" % parts.netloc.encode()
        self._idle: list[_Connection] = []

    async def ask(
        self, method: bytes, target: bytes, headers: bytes, body: bytes, deadline: float
    ) -> PeerResponse:
        """`headers` are whole lines; the deadline is loop time. Raises PeerAway, also when the deadline passes."""
        length = b"Content-Length: %d\r\n" % len(body) if body else b""
        request = b"%b %b HTTP/1.1\r\n%b%b%b\r\n%b" % (method, target, self.host_line, headers, length, body)
        try:
            async with asyncio.timeout_at(deadline), self._room:
                while self._idle:
                    connection = self._idle.pop()
                    if not connection.usable:
                        continue
                    try:
                        return await self._ask(connection, request)
                    except PeerUnavailable:
                        if connection.heard:
                            raise
                return await self._ask(await self._connect(), request)
        except TimeoutError:
            raise PeerTimeout("no answer in time") from None
        except OSError as error:
            raise PeerUnavailable(str(error)) from None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(_Connection, self._host, self._port))[1]

    async def _ask(self, connection: _Connection, request: bytes) -> PeerResponse:
        answer = await connection.ask(request)
        if connection.usable and len(self._idle) < _IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
