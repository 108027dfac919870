"""Carry pipelined HTTP/1.1 requests to another node on one connection.

Strategy: requests are written one behind the other, and responses arrive in the same order, each with its length. One read of
the socket therefore brings many responses. Only nodes of this product are expected at the other end: a response of any other
form ends the connection. A response goes to the owner at once, without a task or a future in between.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar, cast
from urllib.parse import urlsplit

from queryable_app.serve.base.tls_connection import TlsConnection

RESPONSE_BYTES_MAX: Final = 256 << 20

_HANDSHAKE_SECONDS_MAX: Final = 10.0
_HEAD_BYTES_MAX: Final = 16 * 1024
_VERSION: Final = b"HTTP/1.1 "
_OK: Final = _VERSION + b"200 "
_LENGTH: Final = b"\r\ncontent-length: "
_LENGTH_BYTES: Final = len(_LENGTH)
_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_CLOSE: Final = b"\r\nconnection: close\r\n"

Request = TypeVar("Request")
"""What the owner keeps about a request until the response arrives."""

TlsOf = Callable[[str], tuple[ssl.SSLContext, str]]
"""Returns the context of a TLS connection to a host, and the name that the host's certificate must have."""

OnResponse = Callable[[Request, int, bytes, bytes], None]
"""Called with the request, status, head and body. The head ends with the empty line and has no Connection header."""


class PeerConnection(asyncio.Protocol, Generic[Request]):
    """One connection. After `on_lost` was called with the reason, no response arrives."""

    def __init__(
        self, on_response: OnResponse[Request], on_lost: Callable[[PeerConnection[Request], str], None]
    ) -> None:
        self._on_response = on_response
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        self._received = 0
        self._needed = 0  # bytes that complete the next response
        self._protocol_error: str | None = None
        self.unanswered: deque[Request] = deque()
        self.has_answered = False
        """If such a connection is lost, the peer may have closed it before the last requests arrived."""
        self.usable = True

    @classmethod
    async def open(
        cls,
        address: str,
        on_response: OnResponse[Request],
        on_lost: Callable[[PeerConnection[Request], str], None],
        tls: TlsOf | None = None,
    ) -> PeerConnection[Request]:
        """Connect to an address. One of https needs `tls`; a failed verification raises OSError, as an unreachable node."""
        parts = urlsplit(address)
        loop, host = asyncio.get_running_loop(), parts.hostname or ""
        connection = cls(on_response, on_lost)
        if parts.scheme != "https":
            await loop.create_connection(lambda: connection, host, parts.port or 80)
            return connection
        if tls is None:
            raise OSError(f"{address} speaks TLS, and this node has no certificate")
        context, name = tls(host)
        await TlsConnection(context, lambda: connection, name).open(
            lambda protocol: loop.create_connection(protocol, host, parts.port or 443), _HANDSHAKE_SECONDS_MAX
        )
        return connection

    @property
    def has_partial_response(self) -> bool:
        return self._received > 0

    def send(self, content: bytes, requests: Sequence[Request]) -> None:
        """Write the bytes of these requests."""
        assert self._transport is not None
        self.unanswered.extend(requests)
        self._transport.write(content)

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        self._on_lost(self, self._protocol_error or str(error or "the connection was closed"))

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._chunks:
            self._chunks.append(data)
            if self._received < self._needed:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
        try:
            rest = data[self._hand_over(data) :]
        except ValueError as error:
            self._protocol_error = str(error)
            self.close()  # the unanswered requests fail when the connection is lost
            return
        if rest:
            self._chunks.append(rest)
        self._received = len(rest)

    def _hand_over(self, data: bytes) -> int:
        """Hand the complete responses to the owner, and return where the first incomplete one begins. Raises ValueError."""
        at, until, find, index = 0, len(data), data.find, data.index
        while at < until:
            ok = data.startswith(_OK, at)
            if not ok and not data.startswith(_VERSION, at) and not _VERSION.startswith(data[at:]):
                raise ValueError("the response is not HTTP/1.1")
            head_end = find(_HEAD_END, at) + 4
            if head_end < 4:
                if len(data) - at > _HEAD_BYTES_MAX:
                    raise ValueError("the head of the response is too large")
                self._needed = 0
                return at
            status = 200 if ok else int(data[at + 9 : at + 12])
            end = head_end
            if status != 304:
                length_at = index(_LENGTH, at, head_end) + _LENGTH_BYTES
                length = int(data[length_at : index(_LINE_END, length_at)])
                if not 0 <= length <= RESPONSE_BYTES_MAX:
                    raise ValueError(f"a response of {length} bytes is out of bounds")
                end += length
                if end > until:
                    self._needed = end - at
                    return at
            if not self.unanswered:
                raise ValueError("a response came without a request")
            head = data[at:head_end]
            if _CLOSE in head:
                head = head.replace(_CLOSE, b"\r\n")
                self.usable = False  # the peer closes it; requests without a response fail then
            request = self.unanswered.popleft()
            self.has_answered = True
            self._on_response(request, status, head, data[head_end:end])
            at = end
        return at


def host_line(address: str) -> bytes:
    return b"Host: %b\r\n" % urlsplit(address).netloc.encode()
