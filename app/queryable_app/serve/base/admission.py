"""Reads take turns: those that take a task begin one at a time, long ones go on one at a time, and in between the event
loop gets to its sockets.

Strategy: without turns whatever has arrived begins at once, and everything else, probes and heartbeats too, waits until it is
done. With them what waits, waits here: it can be told that there is too much of it before anything was done for it, and
one whose client has gone is never begun. Long reads pause after every few milliseconds of work, and have their own queue, so
that short ones do not wait behind many of them. Connections bound how many can wait: each has one read at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from queryable_app.errors import Failure, Reason
from queryable_app.policy.overload import Backlog, admits_long_read

_REFUSALS_AT_ONCE: Final = 8  # half a millisecond
_BEGINNINGS_PER_PAUSE: Final = 3  # while both wait; a few milliseconds each

YieldSlot = Callable[[], Awaitable[None]]


class QueuedRead(Protocol):
    """A request."""

    def is_abandoned(self) -> bool:
        """Nobody waits for the answer any more."""

    def begin(self) -> None: ...

    def refuse(self) -> None:
        """There is too much to do."""


class ReadAdmission:
    """Of one node. Use it from one event loop."""

    def __init__(self) -> None:
        self._backlog = Backlog()
        self._waiting: deque[tuple[float, QueuedRead]] = deque()
        self._pausing: deque[tuple[float, asyncio.Future[None]]] = deque()
        self._paused_seconds = 0.0  # the read that last went on
        self._begun = 0  # since a long read has gone on
        self._coming = False

    def wait(self, waiter: QueuedRead) -> None:
        loop = asyncio.get_running_loop()
        self._waiting.append((loop.time(), waiter))
        self._come(loop)

    async def yield_slot(self) -> None:
        """Of a read that is not done yet."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._pausing.append((loop.time(), turn))
        self._come(loop)
        await turn

    def require_slot_for_long_read(self) -> None:
        """For one more long read. Raises Failure."""
        if not admits_long_read(len(self._pausing), self._paused_seconds):
            raise overloaded("more long reads are being answered than can go on soon")

    def _come(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._coming and (self._waiting or self._pausing):
            self._coming = True
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._coming = False
        begins = self._begin_one(loop)
        self._begun += begins
        if not begins or self._begun >= _BEGINNINGS_PER_PAUSE:
            self._begun = 0
            self._go_on(loop.time())
        self._come(loop)

    def _begin_one(self, loop: asyncio.AbstractEventLoop) -> bool:
        waiting = self._waiting
        for _ in range(min(_REFUSALS_AT_ONCE, len(waiting))):
            since, waiter = waiting.popleft()
            if waiter.is_abandoned():
                continue
            now = loop.time()
            if self._backlog.admits(now - since, len(waiting), now):
                waiter.begin()
                return True
            waiter.refuse()
        return False

    def _go_on(self, now: float) -> None:
        while self._pausing:
            since, turn = self._pausing.popleft()
            if not turn.done():  # its read was given up
                self._paused_seconds = now - since
                turn.set_result(None)
                return


def overloaded(why: str) -> Failure:
    return Failure(
        Reason.OVERLOADED,
        why,
        "retry in a while, with fewer at once",
        retry_after_ms=1000,
    )
