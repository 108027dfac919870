"""Test calls beside the operator's event loop: results, errors and time limits."""

from __future__ import annotations

import asyncio
import threading

import pytest

from queryable_operator.act import isolated_calls
from queryable_operator.act.isolated_calls import IsolatedCalls
from tests.support.waiting import until


def test_call_returns_its_result_or_error() -> None:
    """A call runs in another thread with its own event loop."""

    async def thread() -> int:
        return threading.get_ident()

    async def fails() -> int:
        raise ValueError("of its own")

    async def run() -> int:
        calls = IsolatedCalls(asyncio.SelectorEventLoop)
        with pytest.raises(ValueError, match="of its own"):
            await calls.run(fails, 60)
        return await calls.run(thread, 60)

    assert asyncio.run(run()) != threading.get_ident()


def test_call_that_waits_is_cancelled_at_its_limit() -> None:
    """A waiting call ends at its limit, and the next one runs."""
    cancelled = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def answers() -> int:
        return 7

    async def run() -> int:
        calls = IsolatedCalls(asyncio.SelectorEventLoop)
        with pytest.raises(TimeoutError):
            await calls.run(waits, 0.2)
        await asyncio.to_thread(cancelled.wait, 60)
        await until("the call has ended", lambda: not calls.is_blocked)
        return await calls.run(answers, 60)

    assert asyncio.run(run()) == 7


def test_call_that_does_not_end_blocks_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further call starts while it runs; afterwards one does."""
    monkeypatch.setattr(isolated_calls, "_CANCEL_SECONDS", 0.1)
    goes_on, calls_made = threading.Event(), []

    async def blocks() -> None:
        calls_made.append(1)
        goes_on.wait(60)

    async def run() -> None:
        calls = IsolatedCalls(asyncio.SelectorEventLoop)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await calls.run(blocks, 0.2)
        blocked = calls.is_blocked
        assert blocked
        assert len(calls_made) <= 1
        goes_on.set()
        await until("the call has ended", lambda: not calls.is_blocked)
        await calls.run(blocks, 60)

    try:
        asyncio.run(run())
    finally:
        goes_on.set()
    assert calls_made
