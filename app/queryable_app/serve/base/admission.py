"""Admit reads one at a time, so that the event loop serves its sockets in between.

Strategy: a read that needs a task waits in a queue, and each pass of the event loop begins one. Without the queue every read
that has arrived would begin at once and delay probes and heartbeats. A queued read can be refused before any work is done for
it, and one whose client has disconnected never begins. A long read yields its slot every few milliseconds and waits in a second
queue, so that short reads do not wait behind many long ones. The number of connections bounds both queues, because a connection
has at most one read.

A read that waits because the machine gives this process no core is not refused for it: waits are measured without that time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from queryable_app.errors import Failure, Reason
from queryable_app.platform.running_time import running_seconds
from queryable_app.policy.overload import Backlog, admits_long_read

_REFUSALS_PER_PASS: Final = 8  # half a millisecond
_BEGINNINGS_PER_CONTINUATION: Final = 3  # while both queues wait; a few milliseconds each

YieldSlot = Callable[[], Awaitable[None]]


class QueuedRead(Protocol):
    """A request that waits for admission."""

    def is_abandoned(self) -> bool:
        """Return whether the client has disconnected."""

    def begin(self) -> None:
        """Start to answer."""

    def refuse(self) -> None:
        """Answer that the node is overloaded."""


class ReadAdmission:
    """Schedule the reads of one node. Use it from one event loop."""

    def __init__(self) -> None:
        self._backlog = Backlog()
        self._queued: deque[tuple[float, QueuedRead]] = deque()
        self._yielded: deque[tuple[float, asyncio.Future[None]]] = deque()
        self._last_yield_seconds = 0.0  # of the long read that continued last
        self._begun = 0  # since a long read continued
        self._scheduled = False

    def enqueue(self, read: QueuedRead) -> None:
        """Begin or refuse the read in a later pass of the event loop."""
        loop = asyncio.get_running_loop()
        self._queued.append((running_seconds(), read))
        self._schedule(loop)

    async def yield_slot(self) -> None:
        """Pause a long read until its next scheduling slot."""
        loop = asyncio.get_running_loop()
        slot = loop.create_future()
        self._yielded.append((running_seconds(), slot))
        self._schedule(loop)
        await slot

    def require_slot_for_long_read(self) -> None:
        """Raise a Failure if the node has no capacity for one more long read."""
        if not admits_long_read(len(self._yielded), self._last_yield_seconds):
            raise overloaded("more long reads are being answered than can go on soon")

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._scheduled and (self._queued or self._yielded):
            self._scheduled = True
            loop.call_soon(self._run_next, loop)

    def _run_next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        begins = self._begin_one()
        self._begun += begins
        if not begins or self._begun >= _BEGINNINGS_PER_CONTINUATION:
            self._begun = 0
            self._continue_one(running_seconds())
        self._schedule(loop)

    def _begin_one(self) -> bool:
        queued = self._queued
        for _ in range(min(_REFUSALS_PER_PASS, len(queued))):
            since, read = queued.popleft()
            if read.is_abandoned():
                continue
            now = running_seconds()
            if self._backlog.admits(now - since, len(queued), now):
                read.begin()
                return True
            read.refuse()
        return False

    def _continue_one(self, now: float) -> None:
        while self._yielded:
            since, slot = self._yielded.popleft()
            if not slot.done():  # done: the read was cancelled
                self._last_yield_seconds = now - since
                slot.set_result(None)
                return


def overloaded(why: str) -> Failure:
    return Failure(
        Reason.OVERLOADED,
        why,
        "retry in a while, with fewer at once",
        retry_after_ms=1000,
    )
