"""Send plain point reads to one other node, pipelined on two connections.

Strategy: reads of one turn of the event loop go out in one write, on the connection with the fewest unanswered reads. The peer
may have closed a connection unnoticed: reads that are lost with it are sent once more. A stuck connection is closed, and its
reads fail. The node's health gets the latency of each response, each failure, and each read that takes too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Final, Protocol, TypeAlias

from queryable_app.policy.failure_detector import PeerHealth
from queryable_app.serve.base.background import watch
from queryable_app.serve.peers.connection import PeerConnection, TlsOf

_CONNECTIONS: Final = 2
_UNANSWERED_MAX: Final = 2048
_CONNECT_SECONDS: Final = 1.0
_RECONNECT_DELAY_SECONDS: Final = 0.05  # after a connection that was refused, or lost without a response
_STUCK_SECONDS: Final = 5.0  # no plain read has a longer deadline


class ResponseHandler(Protocol):
    """Receives the outcome of a read, also when it no longer matters."""

    def on_response(self, ordinal: int, status: int, head: bytes, body: bytes) -> None:
        """`head` ends with the empty line and has no Connection header."""

    def on_failure(self, ordinal: int) -> None: ...


class PlainRead(ResponseHandler, Protocol):
    """One request, which receives its own outcome."""

    content: bytes
    sent_at: float
    is_late: bool  # and the node's health was told so
    is_resent: bool


class _ReadOf:
    """A request of a handler that may send several."""

    __slots__ = ("content", "is_late", "is_resent", "on_failure", "on_response", "sent_at")

    def __init__(self, content: bytes, handler: ResponseHandler, sent_at: float) -> None:
        self.content = content
        self.on_response = handler.on_response
        self.on_failure = handler.on_failure
        self.sent_at = sent_at
        self.is_late = self.is_resent = False


_Connection: TypeAlias = PeerConnection[PlainRead]


class ReadPipeline:
    """Plain reads to one node, from one event loop."""

    def __init__(self, ordinal: int, address: str, health: PeerHealth, tls: TlsOf | None = None) -> None:
        self._address = address
        self._tls = tls
        self._ordinal = ordinal
        self._health = health
        self._connections: list[_Connection] = []
        self._connecting: asyncio.Task[None] | None = None
        self._connect_at = 0.0
        self._connected_at = -inf
        self._unsent: list[PlainRead] = []
        self._unfinished = 0  # sent or not
        self._flush_scheduled = False
        self._closed = False
        self._last_response_at = 0.0
        self._time = asyncio.get_running_loop().time

    def send(self, content: bytes, handler: ResponseHandler, now: float) -> bool:
        """Send a request, or return False if too many are unanswered already."""
        if not self.has_room(1):
            return False
        self._unfinished += 1
        self._unsent.append(_ReadOf(content, handler, now))
        if not self._flush_scheduled:
            self._flush_soon()
        return True

    def has_room(self, reads: int) -> bool:
        return not self._closed and self._unfinished + reads <= _UNANSWERED_MAX

    def send_now(self, reads: Sequence[PlainRead]) -> None:
        """Send requests for which there is room, with one write."""
        self._unfinished += len(reads)
        self._unsent += reads
        self._flush()

    def check(self, now: float) -> None:
        """Report late reads to the node's health, and close stuck connections. The caller calls it periodically."""
        late_before = now - self._health.timeout_after
        for connection in list(self._connections):
            if connection.unanswered and connection.unanswered[0].sent_at < now - _STUCK_SECONDS:
                connection.close()
                continue
            for read in connection.unanswered:
                if read.sent_at > late_before:
                    break
                if not read.is_late and self._last_response_at < read.sent_at:
                    read.is_late = True
                    self._health.failed(now)

    def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._connections):
            connection.close()
        self._fail_unsent()

    def _flush_soon(self) -> None:
        self._flush_scheduled = True
        asyncio.get_running_loop().call_soon(self._flush_scheduled_reads)

    def _flush_scheduled_reads(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        if not self._unsent:
            return
        usable = [connection for connection in self._connections if connection.usable]
        if len(usable) < _CONNECTIONS and self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            watch("ReadPipeline.connect", self._connecting)
        if usable:
            reads, self._unsent = self._unsent, []
            least_loaded = min(usable, key=lambda connection: len(connection.unanswered))
            least_loaded.send(b"".join([read.content for read in reads]), reads)

    async def _connect(self) -> None:
        if (delay := self._connect_at - self._time()) > 0:
            # Reads that arrive meanwhile wait too: the node may be back by then, and be the only one with the partition.
            await asyncio.sleep(delay)
        began = self._time()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                connection = await PeerConnection.open(
                    self._address, self._on_response, self._on_lost, self._tls
                )
            self._connections.append(connection)
            self._connected_at = self._time()
        except TimeoutError:
            # The node may be back by now: reads that arrived during this attempt get another one.
            self._fail_unsent(began)
        except OSError:
            self._health.connection_lost()
            self._connect_at = self._time() + _RECONNECT_DELAY_SECONDS
            self._fail_unsent()
        finally:
            self._connecting = None
        self._flush()

    def _on_response(self, read: PlainRead, status: int, head: bytes, body: bytes) -> None:
        self._unfinished -= 1
        now = self._time()
        if (
            now != self._last_response_at
        ):  # one that arrived together with others tells no more about the node
            self._last_response_at = now
            self._health.answered(now - read.sent_at)
        read.on_response(self._ordinal, status, head, body)

    def _on_lost(self, connection: _Connection, _: str) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
        now = self._time()
        # The loss of an older connection says nothing about the next attempt.
        if not connection.has_answered and now - self._connected_at < _RECONNECT_DELAY_SECONDS:
            self._connect_at = now + _RECONNECT_DELAY_SECONDS
        reads = list(connection.unanswered)
        connection.unanswered.clear()
        for read in reads:
            if connection.has_answered and not (read.is_resent or read.is_late or self._closed):
                read.is_resent = True
                self._unsent.append(read)
            else:
                self._fail(read)
        if self._unsent and not self._flush_scheduled:
            self._flush_soon()

    def _fail_unsent(self, arrived_until: float = inf) -> None:
        """Fail the reads that arrived until then, unless a usable connection takes them."""
        if any(connection.usable for connection in self._connections):
            return
        reads, self._unsent = self._unsent, []
        for read in reads:
            if read.sent_at <= arrived_until:
                self._fail(read)
            else:
                self._unsent.append(read)

    def _fail(self, read: PlainRead) -> None:
        self._unfinished -= 1
        self._health.failed(self._time())
        read.on_failure(self._ordinal)
