"""What a node does besides answering: loops that run from `start` to `stop`, and the Kafka clients that they keep.

Strategy: whatever a loop expects to go wrong it handles itself. Anything else is a defect: it is logged and the loop
begins anew, so that one part of a node neither ends it nor falls silent.
"""

from __future__ import annotations

import asyncio
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, Unpack

from queryable_app.log import event

_DEFECT_SECONDS: Final = 1.0


class Background(ABC):
    """Something that goes on by itself."""

    _running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._running = asyncio.create_task(self._for_ever())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            self._running = None
        await self._close()

    @abstractmethod
    async def _run(self) -> None:
        """Does not return."""

    async def _close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Called once it no longer runs."""

    async def _for_ever(self) -> None:
        while True:
            try:
                await self._run()
            except Exception as error:
                trace = "".join(traceback.format_exception(error))
                event("internal-error", part=type(self).__name__, error=repr(error), trace=trace)
                await asyncio.sleep(_DEFECT_SECONDS)


A = TypeVarTuple("A")
T = TypeVar("T")


async def in_thread(function: Callable[[Unpack[A]], T], *args: *A) -> T:
    """A thread cannot be cancelled: it is waited for, so that nobody writes into a directory that is given up."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


Client = TypeVar("Client")


class KeptClient(Generic[Client]):
    """An aiokafka client: connected when it is first asked for, dropped when it is of no more use."""

    def __init__(self, make: Callable[[], Client], prepare: Callable[[Client], None] | None = None) -> None:
        self._make, self._prepare = make, prepare
        self._client: Any = None
        self._connecting = asyncio.Lock()

    async def connected(self) -> Client:
        """Raises what the client raises when Kafka is away; the next call tries again."""
        async with self._connecting:
            if self._client is None:
                client: Any = self._make()
                try:
                    await client.start()
                    if self._prepare is not None:
                        self._prepare(client)
                except BaseException:
                    await client.stop()
                    raise
                self._client = client
            kept: Client = self._client
            return kept

    async def drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.stop()
