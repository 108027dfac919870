"""Loops that go on by themselves, and the clients that they keep."""

from __future__ import annotations

import asyncio

import pytest

from queryable_app.serve.base.background import FAILURES, Background, LazyKafkaClient, supervise, watch


class Failing(Background):
    """Fails in its first round, and waits in its second."""

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


def test_a_defect_is_logged_and_the_loop_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected error neither ends the loop nor is it silent: it is logged and counted."""

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


class Client:
    """Counts what is done to it; refuses to start while `refuse` is set."""

    refuse = False
    started = stopped = 0

    async def start(self) -> None:
        if Client.refuse:
            raise OSError("away")
        Client.started += 1

    async def stop(self) -> None:
        Client.stopped += 1


def test_a_client_that_could_not_start_is_closed_and_tried_again() -> None:
    """The next call connects a new one; one that is connected is kept until it is dropped."""

    async def scenario() -> None:
        kept = LazyKafkaClient(Client)
        Client.refuse = True
        with pytest.raises(OSError, match="away"):
            await kept.connected()
        Client.refuse = False
        first, second = await asyncio.gather(kept.connected(), kept.connected())
        assert first is second
        assert (Client.started, Client.stopped) == (1, 1)
        await kept.drop()
        await kept.drop()
        assert (Client.started, Client.stopped) == (1, 2)

    asyncio.run(scenario())


def test_work_that_ends_is_not_run_again() -> None:
    """A supervised task runs again after a failure, and no more once it has ended well."""
    runs: list[int] = []

    async def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise OSError("no descriptors")

    asyncio.run(asyncio.wait_for(supervise("work", work), 10))

    assert len(runs) == 2


def test_the_failure_of_a_task_that_nothing_awaits_is_counted() -> None:
    """It is counted by its part; a task that is cancelled is no failure."""

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
