"""Plain point reads to one other node: a few connections, requests of one turn of the event loop in one write.

Strategy: what is asked within a turn goes out together at its end, on the connection that has the least to answer. A
connection may have ended while nobody looked: requests that were lost with it, and had not begun to be answered, are sent
once more. All of them are reads. A connection that was waited for in vain fails those that have waited for all of it. How
long answers take, and that they fail, is told to the node's health.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import Final
from urllib.parse import urlsplit

from queryable_app.policy.failure_detector import PeerHealth
from queryable_app.serve.base.background import watch
from queryable_app.serve.peers.pipe import Asker, Call, Pipe

_PIPES: Final = 2
_CALLS_MAX: Final = 2048  # not answered yet; more would only wait
_CONNECT_SECONDS: Final = 1.0
_CONNECT_AGAIN_SECONDS: Final = 0.05  # after a connection that came to nothing
_STUCK_SECONDS: Final = 5.0  # nobody waits that long for a plain read


class PeerLink:
    """Use it from one event loop."""

    def __init__(self, ordinal: int, url: str, health: PeerHealth) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._ordinal = ordinal
        self._health = health
        self._pipes: list[Pipe] = []
        self._connecting: asyncio.Task[None] | None = None
        self._connect_at = 0.0
        self._connected_at = -inf
        self._unsent: list[Call] = []
        self._flushing = False
        self._closed = False
        self._heard_at = 0.0
        self._time = asyncio.get_running_loop().time

    def ask(self, request: bytes, asker: Asker, now: float) -> bool:
        """False when so much waits for this node already that it is not asked."""
        waiting = len(self._unsent)
        for pipe in self._pipes:
            waiting += len(pipe.calls)
        if self._closed or waiting >= _CALLS_MAX:
            return False
        self._health.asked(now)
        self._unsent.append(Call(request, asker, now))
        self._flush_soon()
        return True

    def check(self, now: float) -> None:
        """To be called at intervals: notes what takes long, and ends connections that are stuck."""
        late_before = now - self._health.timeout_after
        for pipe in list(self._pipes):
            if pipe.calls and pipe.calls[0].asked_at < now - _STUCK_SECONDS:
                pipe.close()
                continue
            for call in pipe.calls:
                if call.asked_at > late_before:
                    break
                if not call.late and self._heard_at < call.asked_at:
                    call.late = True
                    self._health.failed(now)

    def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for pipe in list(self._pipes):
            pipe.close()
        self._fail_unsent()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._unsent:
            return
        usable = [pipe for pipe in self._pipes if pipe.usable]
        if len(usable) < _PIPES and self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            watch("PeerLink.connect", self._connecting)
        if usable:
            calls, self._unsent = self._unsent, []
            min(usable, key=lambda pipe: len(pipe.calls)).send(calls)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        if (pause := self._connect_at - self._time()) > 0:
            # Who comes meanwhile waits too: the node may be there again, and be the only one to ask.
            await asyncio.sleep(pause)
        began = self._time()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, pipe = await loop.create_connection(
                    lambda: Pipe(self._ordinal, self._answered, self._lost), self._host, self._port
                )
            self._pipes.append(pipe)
            self._connected_at = self._time()
        except TimeoutError:
            # That says nothing of the node as it is now, so who has come since gets another attempt.
            self._fail_unsent(began)
        except OSError:
            self._health.gone()
            self._connect_at = self._time() + _CONNECT_AGAIN_SECONDS
            self._fail_unsent()
        finally:
            self._connecting = None
        self._flush()

    def _answered(self, call: Call) -> None:
        now = self._heard_at = self._time()
        self._health.answered(now - call.asked_at)

    def _lost(self, pipe: Pipe) -> None:
        if pipe in self._pipes:
            self._pipes.remove(pipe)
        now = self._time()
        # One that was made long ago says nothing of another that would be made now.
        if not pipe.used and now - self._connected_at < _CONNECT_AGAIN_SECONDS:
            self._connect_at = now + _CONNECT_AGAIN_SECONDS
        calls, pipe.calls = pipe.calls, deque()
        for call in calls:
            if pipe.used and not (call.resent or call.late or self._closed):
                call.resent = True
                self._unsent.append(call)
            else:
                self._fail(call)
        if self._unsent:
            self._flush_soon()

    def _fail_unsent(self, asked_until: float = inf) -> None:
        """Unless there is a connection that takes them."""
        if any(pipe.usable for pipe in self._pipes):
            return
        calls, self._unsent = self._unsent, []
        for call in calls:
            if call.asked_at <= asked_until:
                self._fail(call)
            else:
                self._unsent.append(call)

    def _fail(self, call: Call) -> None:
        self._health.failed(self._time())
        call.asker.failed(self._ordinal)
