"""Test that background tasks restart after failures, and that failures are counted."""

from __future__ import annotations

import asyncio

import pytest

from queryable_app.serve.base.background import FAILURES, Background, supervise, watch


class Failing(Background):
    """Fail in the first round, and wait in the second."""

    def __init__(self) -> None:
        self.rounds, self.second, self.closed = 0, asyncio.Event(), False

    async def _run(self) -> None:
        self.rounds += 1
        if self.rounds == 1:
            raise ZeroDivisionError("a defect")
        self.second.set()
        await asyncio.Event().wait()

    async def _close(self) -> None:
        self.closed = True


def test_task_restarts_after_an_unexpected_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected error is logged and counted, and the task runs again."""

    async def scenario() -> None:
        loop = Failing()
        await loop.start()
        async with asyncio.timeout(10):
            await loop.second.wait()
        await loop.stop()
        assert (loop.rounds, loop.closed) == (2, True)

    before = FAILURES["Failing"]
    asyncio.run(scenario())

    assert FAILURES["Failing"] == before + 1
    assert "a defect" in capsys.readouterr().err


def test_task_that_returns_is_not_restarted() -> None:
    """A supervised task runs again after a failure, and never again after it returns."""
    runs: list[int] = []

    async def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise OSError("no descriptors")

    asyncio.run(asyncio.wait_for(supervise("work", work), 10))

    assert len(runs) == 2


def test_failure_of_an_unawaited_task_is_counted() -> None:
    """The failure is counted under the name of its part. A cancelled task counts as no failure."""

    async def fails() -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        for work in (fails(), asyncio.sleep(10)):
            task: asyncio.Task[None] = asyncio.create_task(work)
            watch("unawaited", task)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

    before = FAILURES["unawaited"]
    asyncio.run(scenario())

    assert FAILURES["unawaited"] == before + 1
