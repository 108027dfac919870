"""Connect an aiokafka client when it is first used, and replace it after an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

Client = TypeVar("Client")

_START_GRACE_SECONDS: Final = 0.25  # a broker that answers does so in milliseconds


class LazyKafkaClient(Generic[Client]):
    """Keep one connected client. `prepare` is called on each new one."""

    def __init__(self, make: Callable[[], Client], prepare: Callable[[Client], None] | None = None) -> None:
        self._make, self._prepare = make, prepare
        self._client: Any = None
        self._connecting = asyncio.Lock()

    async def connected(self) -> Client:
        """Return the client, connected. Raise what the client raises if Kafka is unreachable; the next call tries again."""
        async with self._connecting:
            if self._client is None:
                client: Any = self._make()
                try:
                    await start_client(client)
                    if self._prepare is not None:
                        self._prepare(client)
                except BaseException:
                    await client.stop()
                    raise
                self._client = client
            connected: Client = self._client
            return connected

    async def drop(self) -> None:
        """Stop the client. The next call of `connected` makes a new one."""
        client, self._client = self._client, None
        if client is not None:
            await client.stop()


async def start_client(client: Any) -> None:
    """Start an aiokafka client, which the caller then stops, also after a failure. If the caller is cancelled, let the start end
    first: cancelled while it asks for the brokers, aiokafka leaves that connection open."""
    start = asyncio.ensure_future(client.start())
    try:
        await asyncio.shield(start)
    except asyncio.CancelledError:
        with suppress(Exception):  # however it ends, the client is stopped
            async with asyncio.timeout(_START_GRACE_SECONDS):
                await start
        raise
