"""Supervise a node's background tasks: log and count unexpected failures, and restart what must keep running.

Strategy: a part handles the failures that it expects. `supervise` handles all others: it restarts the part after a growing
pause, so that one part neither ends the node nor stops silently. `watch` is for a task that is not restarted, because its
failure has a consequence of its own. `guarded` is for a step that must not end the loop around it. What still escapes reaches
the event loop's exception handler, which counts it too (`serve/process.py`).
"""

from __future__ import annotations

import asyncio
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from queryable_app.platform.log import event
from queryable_app.policy.retries import next_retry

FAILURES: Final[Counter[str]] = Counter()
"""Unexpected failures of this process, by part."""


def note_failure(part: str, error: BaseException) -> None:
    """Log and count an unexpected failure."""
    FAILURES[part] += 1
    trace = "".join(traceback.format_exception(error))
    event("internal-error", part=part, error=repr(error), trace=trace)


async def supervise(part: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run until `run` returns. After a failure, run it again with back-off."""
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
    """Log and count a failure in the block, and continue after the block: one replica or connection does not stop the others."""
    try:
        yield
    except Exception as error:
        note_failure(part, error)


def note_unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle the event loop's exceptions: log and count what a callback or an unawaited task raised."""
    error = context.get("exception")
    note_failure("event-loop", error or RuntimeError(str(context.get("message"))))


class Background(ABC):
    """Run a supervised task from `start` to `stop`."""

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
        """Run the task. It does not return."""

    async def _close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Release resources after the task has stopped."""


A = TypeVarTuple("A")
T = TypeVar("T")


async def in_thread(
    function: Callable[[Unpack[A]], T], *args: *A, on_cancel: Callable[[], None] | None = None
) -> T:
    """Run the function in a thread. A cancellation waits for the thread, which cannot be cancelled and may still write files;
    `on_cancel` makes it end sooner."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if on_cancel is not None:
            on_cancel()
        await asyncio.wait([running])
        raise
