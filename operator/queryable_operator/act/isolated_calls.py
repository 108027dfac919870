"""Run calls that a resource's settings may block, each in a thread with its own event loop.

The operator's event loop only waits, with a time limit. At the limit the call is cancelled. A call that does not end then (a
silent name server, a certificate that takes hours) keeps its thread, and no further call starts until it ends. A resource
therefore costs at most one blocked thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

_CANCEL_SECONDS: Final = 1.0  # closing connections takes this long


class IsolatedCalls:
    def __init__(self, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop_factory = loop_factory
        self._overdue: threading.Thread | None = None

    @property
    def is_blocked(self) -> bool:
        """Return whether a call that passed its limit still runs."""
        return self._overdue is not None and self._overdue.is_alive()

    async def run(self, call: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Return the call's result. Raises TimeoutError at the limit, and while an earlier call has not ended."""
        if self.is_blocked:
            raise TimeoutError
        promise: Future[T] = Future()
        running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []
        given_up = threading.Event()

        async def called() -> T:
            me = asyncio.current_task()
            assert me is not None
            running.append((asyncio.get_running_loop(), me))
            if given_up.is_set():  # the thread started after the limit
                raise TimeoutError
            return await call()

        def work() -> None:
            promise.set_running_or_notify_cancel()
            try:
                with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                    result = runner.run(called())
            except BaseException as error:
                promise.set_exception(error)
            else:
                promise.set_result(result)

        thread = threading.Thread(target=work, name="kafka call", daemon=True)
        thread.start()
        outcome = asyncio.wrap_future(promise)
        try:
            await asyncio.wait((outcome,), timeout=seconds)
            if outcome.done():
                return outcome.result()
        finally:
            if not outcome.done():
                self._overdue = thread
                given_up.set()
                outcome.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
                for loop, task in running:
                    with suppress(RuntimeError):  # the loop has closed meanwhile
                        loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait((outcome,), timeout=_CANCEL_SECONDS)
        raise TimeoutError
