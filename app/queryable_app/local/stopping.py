"""Turn Ctrl-C and termination signals into an exception, at any moment of a run."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Stopped(BaseException):
    """The run was requested to end. No Exception, so that no handler swallows it on the way out."""


class StopRequest:
    """Record whether the run was requested to end."""

    def __init__(self) -> None:
        self._requested = False
        self._deferred = False
        self._cancel: Callable[[], object] | None = None

    @staticmethod
    @contextmanager
    def on_signals() -> Iterator[StopRequest]:
        """Raise Stopped at the first SIGINT, SIGTERM or SIGHUP inside the block."""
        stop_request = StopRequest()
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = [signal.signal(number, stop_request._on_signal) for number in signals]
        try:
            yield stop_request
        finally:
            for number, handler in zip(signals, before, strict=True):
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._requested:  # only once: no signal interrupts the way out
            self._requested = True
            if self._cancel:
                self._cancel()
            elif not self._deferred:
                raise Stopped

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Raise Stopped only after the block: a process that is started inside is also recorded inside."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
            self.check()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run the coroutine in an event loop. A signal cancels it, and raises Stopped once the loop is closed.

        An exception that a signal raises inside the loop could be taken by a client for a broken connection, or leave the
        loop in a state in which it cannot be closed.
        """

        async def cancellable() -> _Result:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            try:
                if self._requested:  # while the loop was created
                    self._cancel()
                return await work
            finally:
                self._cancel = None

        with self.deferred():
            return asyncio.run(cancellable())

    def check(self) -> None:
        """Raise Stopped again if it was lost: the interpreter drops exceptions that a signal raises inside its callbacks."""
        if self._requested:
            raise Stopped
