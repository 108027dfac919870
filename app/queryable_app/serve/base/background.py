"""Supervise what a node does besides answering: loops that run from `start` to `stop`, and the Kafka clients that they keep.

Strategy: a part handles the failures that it expects. `supervise` handles all others: it logs and counts the failure and starts
the part again after a pause that grows, so that one part neither ends the node nor falls silent. `watch` is for a task that is
not started again, because its failure has a consequence of its own; `guarded` is for a step that must not end the loop around
it. What still escapes reaches the event loop, whose handler counts it as well (`serve/__main__.py`).
"""

from __future__ import annotations

import asyncio
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, Unpack

from queryable_app.platform.log import event
from queryable_app.policy.retries import next_retry

FAILURES: Final[Counter[str]] = Counter()
"""Unexpected failures of this process, by part."""


def note_failure(part: str, error: BaseException) -> None:
    FAILURES[part] += 1
    trace = "".join(traceback.format_exception(error))
    event("internal-error", part=part, error=repr(error), trace=trace)


async def supervise(part: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run it until it returns. After a failure it runs again, soon at first, and later if it fails again and again."""
    retry = None
    while True:
        began = time.monotonic()
        try:
            await run()
        except Exception as error:
            note_failure(part, error)
            retry = next_retry(retry, repr(error), time.monotonic(), 0.0, succeeded_at=began)
            await asyncio.sleep(retry.next_at - time.monotonic())
        else:
            return


def watch(part: str, task: asyncio.Task[Any]) -> None:
    """Log and count the failure of a task that nothing awaits."""

    def ended(done: asyncio.Task[Any]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            note_failure(part, error)

    task.add_done_callback(ended)


@contextmanager
def guarded(part: str) -> Iterator[None]:
    """Log and count a failure inside, and go on behind it: one replica or connection does not stop the others."""
    try:
        yield
    except Exception as error:
        note_failure(part, error)


def note_unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log and count what a callback, or a task that nothing awaits, has raised: the event loop's exception handler."""
    error = context.get("exception")
    note_failure("event-loop", error or RuntimeError(str(context.get("message"))))


class Background(ABC):
    """Something that goes on by itself."""

    _running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._running = asyncio.create_task(supervise(type(self).__name__, self._run))

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            self._running = None
        await self._close()

    @abstractmethod
    async def _run(self) -> None:
        """Does not return."""

    async def _close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Called once it no longer runs."""


A = TypeVarTuple("A")
T = TypeVar("T")


async def in_thread(function: Callable[[Unpack[A]], T], *args: *A) -> T:
    """A thread cannot be cancelled: it is waited for, so that nobody writes into a directory that is given up."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


Client = TypeVar("Client")


class LazyKafkaClient(Generic[Client]):
    """An aiokafka client: connected when it is first asked for, dropped when it is of no more use."""

    def __init__(self, make: Callable[[], Client], prepare: Callable[[Client], None] | None = None) -> None:
        self._make, self._prepare = make, prepare
        self._client: Any = None
        self._connecting = asyncio.Lock()

    async def connected(self) -> Client:
        """Raises what the client raises when Kafka is away; the next call tries again."""
        async with self._connecting:
            if self._client is None:
                client: Any = self._make()
                try:
                    await client.start()
                    if self._prepare is not None:
                        self._prepare(client)
                except BaseException:
                    await client.stop()
                    raise
                self._client = client
            kept: Client = self._client
            return kept

    async def drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.stop()
