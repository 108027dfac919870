"""Loops that go on by themselves, and the clients that they keep."""

from __future__ import annotations

import asyncio

import pytest

from queryable_app.serve.background import Background, KeptClient


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
    """An unexpected error neither ends the loop nor is it silent."""

    async def scenario() -> None:
        loop = Failing()
        await loop.start()
        async with asyncio.timeout(10):
            await loop.second.wait()
        await loop.stop()
        assert (loop.rounds, loop.closed) == (2, True)

    asyncio.run(scenario())

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
        kept = KeptClient(Client)
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
