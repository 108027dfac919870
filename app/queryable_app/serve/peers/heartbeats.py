"""Send heartbeats to one other node, on a connection of their own, so that no large response delays them.

Strategy: if the last heartbeat is still unanswered, the next one counts as missed and sends nothing. If the connection is refused
or lost, the node is suspected at once. `Peers` has one timer for all nodes, and calls `beat` at each tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from queryable_app.policy.failure_detector import PeerHealth
from queryable_app.serve.base.background import watch
from queryable_app.serve.base.peer_frames import PeerFrameError
from queryable_app.serve.peers.connection import PeerConnection, TlsOf

_CONNECT_SECONDS: Final = 1.0
_RECONNECT_DELAY_SECONDS: Final = 0.3
_STUCK_SECONDS: Final = 2.0  # then the connection may be at fault, and not the node


class Heartbeats:
    """`on_heartbeat` gets the body of each response, and may raise PeerFrameError. `on_change` gets the reason for which the
    node may be suspected, or no longer be."""

    def __init__(
        self,
        ordinal: int,
        address: str,
        request: bytes,
        health: PeerHealth,
        on_heartbeat: Callable[[int, bytes], None],
        on_change: Callable[[int, str], None],
        tls: TlsOf | None = None,
    ) -> None:
        self._ordinal = ordinal
        self._address = address
        self._request = request
        self._health = health
        self._on_heartbeat = on_heartbeat
        self._on_change = on_change
        self._tls = tls
        self._connection: PeerConnection[float] | None = None  # with the time at which each request was sent
        self._connecting: asyncio.Task[None] | None = None
        self._connect_at = 0.0
        self._refused = False  # the last attempt to connect has failed

    def beat(self, now: float, in_turn: bool) -> None:
        """Send a heartbeat if it is the node's turn or a request to it has failed. Count an unanswered one as missed, always."""
        if self._connection is not None:
            if not self._connection.unanswered:
                if in_turn or self._health.heartbeat_due:
                    self._connection.send(self._request, (now,))
                return
            self._note_missed()
            if now - self._connection.unanswered[0] > _STUCK_SECONDS:
                self._connection.close()
        elif self._connecting is not None:
            self._note_missed()
        elif now >= self._connect_at and (in_turn or not self._refused):
            self._connect_at = now + _RECONNECT_DELAY_SECONDS
            self._connecting = asyncio.create_task(self._connect())
            watch("Heartbeats.connect", self._connecting)

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                self._connection = await PeerConnection.open(
                    self._address, self._on_response, self._on_lost, self._tls
                )
        except TimeoutError:
            self._note_unreachable("the connection attempt timed out")
        except OSError as error:
            self._note_unreachable(str(error))
        finally:
            self._connecting = None
            self._refused = self._connection is None
        if self._connection is not None:
            self.beat(asyncio.get_running_loop().time(), in_turn=True)

    def _on_response(self, sent_at: float, status: int, head: bytes, body: bytes) -> None:
        try:
            if status != 200:
                raise PeerFrameError(f"it answers {status} to a heartbeat")
            self._on_heartbeat(self._ordinal, body)
        except PeerFrameError as error:
            self._note_unreachable(str(error))
            return
        self._health.heartbeat_answered(asyncio.get_running_loop().time())
        self._on_change(self._ordinal, "it answers")

    def _on_lost(self, connection: PeerConnection[float], _: str) -> None:
        if connection is self._connection:
            self._connection = None
            self._note_unreachable("the connection was lost")

    def _note_missed(self) -> None:
        self._health.heartbeat_missed()
        self._on_change(self._ordinal, "it is silent")

    def _note_unreachable(self, reason: str) -> None:
        self._health.connection_lost()
        self._on_change(self._ordinal, reason)
