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
