"""Test how signals end a run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from queryable_app.local.stopping import Stopped, StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_signal_raises_stopped(number: signal.Signals) -> None:
    """A signal raises an exception that no `except Exception` swallows."""
    with StopRequest.on_signals(), pytest.raises(Stopped):
        os.kill(os.getpid(), number)

    assert not issubclass(Stopped, Exception)


def test_second_signal_does_not_interrupt_the_cleanup() -> None:
    """The first signal raises, and a second one does not interrupt the cleanup."""
    with StopRequest.on_signals():
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGINT)

        os.kill(os.getpid(), signal.SIGINT)


def test_deferred_block_is_finished_first() -> None:
    """A process that is being started is recorded before the exception is raised, so that it is stopped."""
    recorded = []

    def start(stop_request: StopRequest) -> None:
        with stop_request.deferred():
            os.kill(os.getpid(), signal.SIGINT)
            recorded.append("a process")

    with StopRequest.on_signals() as stop_request, pytest.raises(Stopped):
        start(stop_request)

    assert recorded == ["a process"]


def test_lost_exception_is_raised_at_the_next_check() -> None:
    """The interpreter drops exceptions inside its callbacks; the stop request outlives them."""
    with StopRequest.on_signals() as stop_request:
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(Stopped):
            stop_request.check()


def test_signal_handlers_are_restored() -> None:
    """After the block, the handlers are those of before."""
    before = signal.getsignal(signal.SIGINT)
    with StopRequest.on_signals():
        pass

    assert signal.getsignal(signal.SIGINT) is before


def test_signal_during_a_deferred_block_outlives_its_failure() -> None:
    """A block that fails after the signal, perhaps because of it, ends the run as requested."""

    def lose_the_broker(stop_request: StopRequest) -> None:
        with stop_request.deferred():
            os.kill(os.getpid(), signal.SIGINT)
            raise ConnectionError("the broker has got the signal too")

    with StopRequest.on_signals() as stop_request, pytest.raises(Stopped):
        lose_the_broker(stop_request)


def test_coroutine_returns_its_result() -> None:
    """Without a signal, the event loop returns what the coroutine returns."""

    async def answer() -> int:
        return 42

    with StopRequest.on_signals() as stop_request:
        assert stop_request.run(answer()) == 42


def test_signal_ends_an_event_loop_whatever_it_interrupts() -> None:
    """A client's callback that takes every exception for a broken connection does not swallow the stop request."""

    async def call_kafka() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except BaseException as e:
            raise ConnectionError("the socket is broken") from e
        await asyncio.Event().wait()

    with StopRequest.on_signals() as stop_request, pytest.raises(Stopped):
        stop_request.run(call_kafka())


def test_signal_wakes_an_event_loop_that_waits() -> None:
    """A stop request that arrives while nothing happens in the event loop ends it at once."""

    async def wait() -> None:
        asyncio.get_running_loop().run_in_executor(None, os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    with StopRequest.on_signals() as stop_request, pytest.raises(Stopped):
        stop_request.run(wait())


# Before there is a loop the coroutine is never awaited, and Python drops what a signal raises inside its callbacks.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signal_before_any_line_of_an_event_loop_ends_in_stopped() -> None:
    """While the loop is created, runs, closes, or has been left: at each of its lines the signal has the same effect."""
    cleaned: list[int] = []

    async def call_kafka() -> None:
        try:
            await asyncio.sleep(0.001)
        finally:
            await asyncio.sleep(0)
            cleaned.append(1)

    def run_with_signal_before(number: int) -> bool:
        """Return whether there was a line with this number."""
        with StopRequest.on_signals() as stop_request:
            with contextlib.suppress(Stopped), _signal_before_line(number) as lines:
                stop_request.run(call_kafka())
            if lines.passed < number:
                return False
            with pytest.raises(Stopped):
                stop_request.check()
        return True

    past_the_last = next(number for number in range(1, 5000) if not run_with_signal_before(number))

    assert past_the_last > 500
    assert len(cleaned) > 100


class _Lines:
    passed = 0


@contextlib.contextmanager
def _signal_before_line(number: int) -> Iterator[_Lines]:
    """Send SIGINT before this line of Python that is executed inside the block; the first has the number 1."""
    lines = _Lines()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            lines.passed += 1
            if lines.passed == number:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(None)
