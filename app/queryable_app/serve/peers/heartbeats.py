"""The heartbeats to one other node, on a connection of their own, so that no large answer delays them.

Strategy: a beat that finds the one before unanswered counts as missed, and asks nothing. A connection that is refused or
ends is news at once. The tick belongs to `Peers`, which has one for all nodes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from queryable_app.policy.failure_detector import PeerHealth
from queryable_app.serve.base.background import watch
from queryable_app.serve.base.peer_frames import PeerFrameError
from queryable_app.serve.peers.pipe import Call, Pipe

_CONNECT_SECONDS: Final = 1.0
_CONNECT_AGAIN_SECONDS: Final = 0.3  # to a node that is not there
_STUCK_SECONDS: Final = 2.0  # then it may be the connection and not the node


class Heartbeats:
    """`heard` gets what the node says, and may raise PeerFrameError; `changed` gets why the node is thought to be there or
    not."""

    def __init__(
        self,
        ordinal: int,
        url: str,
        request: bytes,
        health: PeerHealth,
        heard: Callable[[int, bytes], None],
        changed: Callable[[int, str], None],
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._ordinal = ordinal
        self._request = request
        self._health = health
        self._heard = heard
        self._changed = changed
        self._pipe: Pipe | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connect_at = 0.0

    def beat(self, now: float) -> None:
        if self._pipe is not None:
            if not self._pipe.calls:
                self._pipe.send([Call(self._request, self, now)])
                return
            self._missed()
            if now - self._pipe.calls[0].asked_at > _STUCK_SECONDS:
                self._pipe.close()
        elif self._connecting is not None:
            self._missed()
        elif now >= self._connect_at:
            self._connect_at = now + _CONNECT_AGAIN_SECONDS
            self._connecting = asyncio.create_task(self._connect())
            watch("Heartbeats.connect", self._connecting)

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._pipe is not None:
            pipe, self._pipe = self._pipe, None
            pipe.close()

    def answered(self, ordinal: int, status: int, head: bytes, body: bytes) -> None:
        try:
            if status != 200:
                raise PeerFrameError(f"it answers {status} to a heartbeat")
            self._heard(ordinal, body)
        except PeerFrameError as error:
            self._gone(str(error))
            return
        self._health.heartbeat_answered(asyncio.get_running_loop().time())
        self._changed(ordinal, "it answers")

    def failed(self, ordinal: int) -> None:
        """The connection says more."""

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, self._pipe = await loop.create_connection(
                    lambda: Pipe(self._ordinal, lambda call: None, self._lost), self._host, self._port
                )
        except TimeoutError:
            self._gone("it cannot be connected to in time")
        except OSError as error:
            self._gone(str(error))
        finally:
            self._connecting = None
        if self._pipe is not None:
            self.beat(loop.time())

    def _lost(self, pipe: Pipe) -> None:
        pipe.calls = deque()
        if pipe is self._pipe:
            self._pipe = None
            self._gone("the connection ended")

    def _missed(self) -> None:
        self._health.heartbeat_missed()
        self._changed(self._ordinal, "it is silent")

    def _gone(self, why: str) -> None:
        self._health.gone()
        self._changed(self._ordinal, why)
