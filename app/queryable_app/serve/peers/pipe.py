"""One HTTP/1.1 connection to another node's fast lane, with as many requests on it as there are.

Strategy: requests are written one behind the other and answers come in their order, each with its length, so that one read
brings many answers. This is not for any server: what another node of this version says is known to the byte, and what
is said otherwise ends the connection. Whoever asked is told at once, without a task or a future in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol, cast

_HEAD_BYTES_MAX: Final = 16 * 1024
_BODY_BYTES_MAX: Final = 256 << 20
_VERSION: Final = b"HTTP/1.1 "
_LENGTH: Final = b"\r\ncontent-length: "
_CLOSE: Final = b"\r\nconnection: close\r\n"


class Asker(Protocol):
    """Who waits for an answer. It may have lost interest, but is told all the same."""

    def answered(self, ordinal: int, status: int, head: bytes, body: bytes) -> None:
        """`head` ends with the empty line, and does not speak of the connection."""

    def failed(self, ordinal: int) -> None: ...


class Call:
    """One request."""

    __slots__ = ("asked_at", "asker", "late", "request", "resent")

    def __init__(self, request: bytes, asker: Asker, asked_at: float) -> None:
        self.request = request
        self.asker = asker
        self.asked_at = asked_at
        self.late = False  # that it takes long has been noted
        self.resent = False


class Pipe(asyncio.Protocol):
    """`answered` is told of every answer before the one who asked."""

    def __init__(self, ordinal: int, answered: Callable[[Call], None], lost: Callable[[Pipe], None]) -> None:
        self._ordinal = ordinal
        self._answered = answered
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        self._received = 0
        self._needed = 0  # bytes without which there is nothing to do
        self.calls: deque[Call] = deque()
        """Not answered yet, in their order."""
        self.used = False
        """It has brought an answer. If it ends now, it may have ended before the last requests were sent."""
        self.usable = True

    def send(self, calls: Iterable[Call]) -> None:
        assert self._transport is not None
        requests = []
        for call in calls:
            self.calls.append(call)
            requests.append(call.request)
        self._transport.write(b"".join(requests))

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._chunks:
            self._chunks.append(data)
            if self._received < self._needed:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
        try:
            rest = data[self._take(data) :]
        except ValueError:
            self.close()  # whoever waits hears of it when the connection is gone
            return
        if rest:
            self._chunks.append(rest)
        self._received = len(rest)

    def _take(self, data: bytes) -> int:
        """Hands out whole answers; where the first begins that is not whole. Raises ValueError for what is none."""
        at = 0
        while at < len(data):
            if not data.startswith(_VERSION, at) and not _VERSION.startswith(data[at:]):
                raise ValueError("not HTTP/1.1")
            head_end = data.find(b"\r\n\r\n", at) + 4
            if head_end < 4:
                if len(data) - at > _HEAD_BYTES_MAX:
                    raise ValueError("a head without end")
                self._needed = 0
                return at
            status = int(data[at + 9 : at + 12])
            end = head_end
            if status != 304:
                length_at = data.index(_LENGTH, at, head_end) + len(_LENGTH)
                length = int(data[length_at : data.index(b"\r\n", length_at)])
                if not 0 <= length <= _BODY_BYTES_MAX:
                    raise ValueError("no length of an answer")
                end += length
                if end > len(data):
                    self._needed = end - at
                    return at
            if not self.calls:
                raise ValueError("an answer to nothing")
            head = data[at:head_end]
            if _CLOSE in head:
                head = head.replace(_CLOSE, b"\r\n")
                self.usable = False  # the other side ends it; what it has not answered fails then
            call = self.calls.popleft()
            self.used = True
            self._answered(call)
            call.asker.answered(self._ordinal, status, head, data[head_end:end])
            at = end
        return at
