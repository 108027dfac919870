"""Turn Ctrl-C and termination signals into an exception, at any moment of a run."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """The run was requested to end. No Exception, so that no handler swallows it on the way out.

    asyncio lets KeyboardInterrupt alone out of its callbacks; it would log any other and go on.
    """


class StopRequest:
    """Record whether the run was requested to end."""

    def __init__(self) -> None:
        self._requested = False
        self._deferred = False

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
            if not self._deferred:
                _raise_stopped_outside_of_callbacks()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Raise Stopped only after the block: a process that is started inside is also recorded inside."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        self.check()

    def check(self) -> None:
        """Raise Stopped again if it was lost: the interpreter drops exceptions that a signal raises inside its callbacks."""
        if self._requested:
            raise Stopped


def _raise_stopped_outside_of_callbacks() -> None:
    """Raise Stopped, in a running event loop as its next callback: the callback that it interrupts could swallow it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise Stopped from None
    loop.call_soon_threadsafe(_raise_stopped)


def _raise_stopped() -> None:
    raise Stopped
