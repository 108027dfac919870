"""The client for asyncio: carries operations out on httpx.

Strategy: each exchange is a task of its own. What is still running when an operation has its result is cancelled, and so
is everything when the caller is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar, Unpack, overload

import httpx

from queryable_app.client.attempts import Attempt, Event, Operation, Response, TransportFailure
from queryable_app.client.keys import Key
from queryable_app.client.operations import Operations
from queryable_app.client.options import Order, ReadOptions, ReadSettings, parse_options
from queryable_app.client.placement_map import checked_address
from queryable_app.client.rows import Row, Unknown, Written
from queryable_app.client.scan import PAGE_ROWS, Scan
from queryable_app.client.session import SessionPositions
from queryable_app.client.transport import RESPONSE_BYTES_MAX, headers_of, limits, lost, response_of, timeouts

T = TypeVar("T")

CONNECTIONS: Final = 100


async def run_operation(
    operation: Operation[T],
    attempt: Callable[[Attempt], Coroutine[Any, Any, Response | TransportFailure]],
    clock: Callable[[], float],
) -> T:
    """What the operation returns or raises. Of several exchanges that have ended the one that began first is told first."""
    running: dict[asyncio.Task[Response | TransportFailure], Attempt] = {}
    event: Event | None = None
    try:
        while True:
            step = operation.send(event)
            for started in step.start:
                running[asyncio.create_task(attempt(started))] = started
            seconds = max(0.0, step.until - clock())
            event = None
            if not running:
                await asyncio.sleep(seconds)
                continue
            await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            ended = next((task for task in running if task.done()), None)
            if ended is not None:  # others are found by the next wait, at once
                event = Event(running.pop(ended), ended.result())
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        operation.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class _Carrier:
    """Carries operations out."""

    def __init__(self, operations: Operations, http: httpx.AsyncClient) -> None:
        self.operations = operations
        self._http = http

    async def run_operation(self, operation: Operation[T]) -> T:
        return await run_operation(operation, self._exchange, time.monotonic)

    async def close(self) -> None:
        await self._http.aclose()

    async def _exchange(self, attempt: Attempt) -> Response | TransportFailure:
        request = attempt.request
        seconds = attempt.deadline - time.monotonic()
        try:
            async with (
                asyncio.timeout(seconds),
                self._http.stream(
                    request.method,
                    attempt.address + request.target,
                    content=request.body,
                    headers=headers_of(request),
                    timeout=timeouts(seconds),
                ) as response,
            ):
                body = bytearray()
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > RESPONSE_BYTES_MAX:
                        return lost(None)
                return response_of(response, bytes(body))
        except TimeoutError:
            return lost(None)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            return lost(error)


class AsyncRows(AsyncIterator[Row]):
    """Rows in key order, read a page at a time; no more than a page is in memory. Not for several tasks at once.

    When a page fails, it may be asked for again: it goes on where it was. So does another iterator, from `cursor`.
    """

    def __init__(self, carrier: _Carrier, scan: Scan, session: SessionPositions | None) -> None:
        self._carrier = carrier
        self._scan = scan
        self._session = session

    @property
    def cursor(self) -> str | None:
        """Where the page after the present one begins."""
        return self._scan.cursor

    @property
    def missing(self) -> frozenset[int]:
        """With `partial`: partitions whose rows may be missing from the pages so far."""
        return self._scan.missing

    async def __anext__(self) -> Row:
        while not self._scan.ready:
            if self._scan.ended:
                raise StopAsyncIteration
            await self._carrier.run_operation(self._carrier.operations.next_page(self._scan, self._session))
        return self._scan.ready.popleft()


class _Requests:
    """What a client and a session both offer."""

    _carrier: _Carrier
    _defaults: ReadSettings
    _positions: SessionPositions | None = None

    async def get(self, key: Key, *, raw: bool = False, **options: Unpack[ReadOptions]) -> Row | None:
        """The newest row of a key; None when there is none, on the word of a complete copy. `raw` leaves the value as
        the bytes that are stored.

            row = await users.get("user-1", max_lag_ms=500)
        """
        return await self._do(self._operations.get(key, raw, self._asked(options), self._positions))

    @overload
    async def multi_get(
        self, keys: Sequence[Key], *, partial: Literal[False] = False, **options: Unpack[ReadOptions]
    ) -> list[Row | None]: ...

    @overload
    async def multi_get(
        self, keys: Sequence[Key], *, partial: Literal[True], **options: Unpack[ReadOptions]
    ) -> list[Row | Unknown | None]: ...

    async def multi_get(
        self, keys: Sequence[Key], *, partial: bool = False, **options: Unpack[ReadOptions]
    ) -> Sequence[Row | Unknown | None]:
        """The rows of many keys, in the order of the keys, from all nodes at once. All of them, or an exception; with
        `partial` what there is, and UNKNOWN for keys in partitions that nobody can answer for.

        first, second = await users.multi_get(["user-1", "user-2"])
        """
        asked = self._asked(options)
        return await self._do(self._operations.multi_get(keys, asked, self._positions, partial))

    def scan(
        self,
        *,
        order: Order = "asc",
        limit: int | None = None,
        page_rows: int = PAGE_ROWS,
        cursor: str | None = None,
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AsyncRows:
        """All rows, in key order.

        async for row in users.scan(): print(row.key, row.value)
        """
        return self._rows(
            self._operations.scan(self._asked(options), order, limit, page_rows, partial), cursor
        )

    def range(
        self,
        start: Key | None = None,
        stop: Key | None = None,
        *,
        order: Order = "asc",
        limit: int | None = None,
        page_rows: int = PAGE_ROWS,
        cursor: str | None = None,
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AsyncRows:
        """The rows from `start` up to before `stop`; None is open.

        newest = [row async for row in orders.range(1000, 2000, order="desc", limit=10)]
        """
        asked = self._asked(options)
        return self._rows(
            self._operations.range(start, stop, asked, order, limit, page_rows, partial), cursor
        )

    def prefix(
        self,
        prefix: str | bytes,
        *,
        order: Order = "asc",
        limit: int | None = None,
        page_rows: int = PAGE_ROWS,
        cursor: str | None = None,
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AsyncRows:
        """The rows whose key begins with these bytes; not where keys are numbers.

        async for row in users.prefix("user-"): print(row.key)
        """
        asked = self._asked(options)
        return self._rows(self._operations.prefix(prefix, asked, order, limit, page_rows, partial), cursor)

    async def count(self, *, approximate: bool = False, **options: Unpack[ReadOptions]) -> int:
        """How many keys there are. The exact number reads every row.

        await users.count(approximate=True)
        """
        return await self._do(self._operations.count(approximate, self._asked(options), self._positions))

    async def put(self, key: Key, value: object, *, deadline_ms: int | None = None) -> Written:
        """Write a record to the topic, where the view takes records. Returns when Kafka has it.

        written = await users.put("user-1", {"name": "Ada"})
        """
        return await self._do(self._operations.put(key, value, self._within(deadline_ms), self._positions))

    async def delete(self, key: Key, *, deadline_ms: int | None = None) -> tuple[Written, ...]:
        """Write a tombstone; several, where several partitions may hold the key.

        await users.delete("user-1")
        """
        return await self._do(self._operations.delete(key, self._within(deadline_ms), self._positions))

    @property
    def _operations(self) -> Operations:
        return self._carrier.operations

    async def _do(self, operation: Operation[T]) -> T:
        return await self._carrier.run_operation(operation)

    def _rows(self, scan: Scan, cursor: str | None) -> AsyncRows:
        scan.cursor = cursor
        return AsyncRows(self._carrier, scan, self._positions)

    def _asked(self, options: ReadOptions) -> ReadSettings:
        return parse_options(options, self._defaults)

    def _within(self, deadline_ms: int | None) -> ReadSettings:
        return self._asked({} if deadline_ms is None else {"deadline_ms": deadline_ms})


class AsyncQueryableTopic(_Requests):
    """A view, read from wherever its keys are, with asyncio.

        async with AsyncQueryableTopic("http://users.example:8080") as users:
            print(await users.get("user-1"))

    One client is for the whole event loop: it keeps connections, and what it learns of the nodes. `url` is the service
    address, or any node's; several may be given. Options hold for every read that does not say otherwise. `headers` go
    with every request.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        verify: SSLContext | bool = True,
        connections: int = CONNECTIONS,
        **options: Unpack[ReadOptions],
    ) -> None:
        urls = [checked_address(each) for each in ([url] if isinstance(url, str) else url)]
        self._defaults = parse_options(options, ReadSettings())
        operations = Operations(urls, time.monotonic)
        http = httpx.AsyncClient(headers=headers, verify=verify, limits=limits(connections), trust_env=False)
        self._carrier = _Carrier(operations, http)

    def session(self, seen: Mapping[int, int] | None = None) -> AsyncSession:
        """Reads that never go back in time, and see what this session wrote.

        mine = users.session(); await mine.put("user-1", 2); assert (await mine.get("user-1")).value == 2
        """
        return AsyncSession(self._carrier, self._defaults, SessionPositions(seen or {}))

    async def status(self, *, deadline_ms: int | None = None) -> dict[str, dict[str, Any] | None]:
        """What each node says of itself, by its address; None for one that does not answer.

        await users.status()
        """
        return await self._do(self._operations.status(self._within(deadline_ms)))

    async def close(self) -> None:
        """End all connections. Also at the end of `async with`."""
        await self._carrier.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSession(_Requests):
    """Made by `AsyncQueryableTopic.session`: reads are never older than what the session has read or written before."""

    def __init__(self, carrier: _Carrier, defaults: ReadSettings, positions: SessionPositions) -> None:
        self._carrier = carrier
        self._defaults = defaults
        self._positions: SessionPositions = positions

    @property
    def seen(self) -> dict[int, int]:
        """Partition → next offset. Given to `session(..)` elsewhere, it goes on there.

        elsewhere.session(mine.seen)
        """
        return self._positions.seen
