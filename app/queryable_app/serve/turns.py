"""Requests take turns: those that take a task begin one at a time, with the event loop free in between.

Strategy: without turns whatever has arrived begins at once, and everything else, probes and heartbeats too, waits until it is
done. With them the loop gets to its sockets after each request, and what waits, waits here: it can be told that there
is too much of it before anything was done for it, and one whose client has gone is never begun. Connections bound how many
can wait: each has one here at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from queryable_app.overload import Backlog

_REFUSALS_AT_ONCE: Final = 16  # a millisecond at most


class Waiter(Protocol):
    """A request."""

    def gone(self) -> bool:
        """Nobody waits for the answer any more."""

    def begin(self) -> None: ...

    def refuse(self) -> None:
        """There is too much to do."""


class Turns:
    """Of one node. Use it from one event loop."""

    def __init__(self) -> None:
        self.backlog = Backlog()
        self._waiting: deque[tuple[float, Waiter]] = deque()
        self._coming = False

    def wait(self, waiter: Waiter) -> None:
        loop = asyncio.get_running_loop()
        self._waiting.append((loop.time(), waiter))
        self._come(loop)

    def _come(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting and not self._coming:
            self._coming = True
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._coming = False
        waiting, now = self._waiting, loop.time()
        for _ in range(min(_REFUSALS_AT_ONCE, len(waiting))):
            since, waiter = waiting.popleft()
            if waiter.gone():
                continue
            if self.backlog.accepts(now - since, len(waiting), now):
                waiter.begin()
                break
            waiter.refuse()
        self._come(loop)
