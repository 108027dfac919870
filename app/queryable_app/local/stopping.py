"""Being asked to end, by Ctrl-C or a signal, at any moment."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """Someone asked the run to end. No Exception, so that nobody handles it on the way out."""


class StopRequest:
    """Whether the run was asked to end."""

    def __init__(self) -> None:
        self._asked = False
        self._held = False

    @staticmethod
    @contextmanager
    def on_signals() -> Iterator[StopRequest]:
        stopping = StopRequest()
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = [signal.signal(number, stopping._on_signal) for number in signals]
        try:
            yield stopping
        finally:
            for number, handler in zip(signals, before, strict=True):
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._asked:  # only once: the way out must not be interrupted
            self._asked = True
            if not self._held:
                raise Stopped

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is raised inside the block, only after it: what is started inside is also noted inside."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self.check()

    def check(self) -> None:
        """An exception that a signal raised inside a callback of the interpreter gets lost; this one does not."""
        if self._asked:
            raise Stopped
