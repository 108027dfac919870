"""Test that a Kafka client connects when it is needed."""

from __future__ import annotations

import asyncio

import pytest

from queryable_app.serve.base.kafka_client import LazyKafkaClient


class Client:
    """Count starts and stops. A start fails while `refuse` is set."""

    refuse = False
    started = stopped = 0

    async def start(self) -> None:
        if Client.refuse:
            raise OSError("away")
        Client.started += 1

    async def stop(self) -> None:
        Client.stopped += 1


def test_client_that_fails_to_start_is_stopped_and_replaced() -> None:
    """After a failed start the next call connects a new client. Concurrent calls share one client until it is dropped."""

    async def scenario() -> None:
        lazy = LazyKafkaClient(Client)
        Client.refuse = True
        with pytest.raises(OSError, match="away"):
            await lazy.connected()
        Client.refuse = False
        first, second = await asyncio.gather(lazy.connected(), lazy.connected())
        assert first is second
        assert (Client.started, Client.stopped) == (1, 1)
        await lazy.drop()
        await lazy.drop()
        assert (Client.started, Client.stopped) == (1, 2)

    asyncio.run(scenario())


class SlowClient:
    """Start once `answer` is set; count the starts that end and those that are cancelled."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.started = self.cancelled = self.stopped = 0

    async def start(self) -> None:
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.started += 1

    async def stop(self) -> None:
        self.stopped += 1


@pytest.mark.parametrize("answers", [True, False])
def test_start_ends_before_a_cancelled_caller_does(answers: bool) -> None:
    """A caller that is cancelled lets the client's start end; a start that does not end soon is cancelled too. The client is
    stopped either way."""

    async def scenario() -> None:
        client = SlowClient()
        caller = asyncio.create_task(LazyKafkaClient(lambda: client).connected())
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(0)
        if answers:
            client.answer.set()
        await asyncio.wait([caller])
        assert caller.cancelled()
        assert (client.started, client.cancelled, client.stopped) == (answers, not answers, 1)

    asyncio.run(scenario())


def test_caller_that_is_cancelled_twice_leaves_no_start_behind() -> None:
    """A second cancellation ends the wait for the start, and cancels the start."""

    async def scenario() -> None:
        client = SlowClient()
        caller = asyncio.create_task(LazyKafkaClient(lambda: client).connected())
        for _ in range(2):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            caller.cancel()
        await asyncio.wait([caller])
        assert (client.started, client.cancelled, client.stopped) == (0, 1, 1)

    asyncio.run(scenario())
