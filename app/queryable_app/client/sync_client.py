"""The client for threads: carries operations out on httpx.

Strategy: the core thinks under one lock, a few microseconds at a time, so that the client may be shared between threads.
Requests run outside of it: a single one in the caller's own thread, several at once, hedges too, in a small pool.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from ssl import SSLContext
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar, Unpack, overload
from weakref import WeakSet

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

CONNECTIONS: Final = 64


class _Carrier:
    """Carries operations out."""

    def __init__(self, operations: Operations, http: httpx.Client, threads: int) -> None:
        self.operations = operations
        self._http = http
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="queryable-topic")
        self._thinking = threading.Lock()
        self._streams: WeakSet[Any] = WeakSet()
        self._closed = False

    def run_operation(self, operation: Operation[T]) -> T:
        ended: SimpleQueue[Future[Response | TransportFailure]] = SimpleQueue()
        running: dict[Future[Response | TransportFailure], Attempt] = {}
        event: Event | None = None
        try:
            while True:
                if self._closed:
                    raise RuntimeError("the client is closed")
                with self._thinking:
                    step = operation.send(event)
                if not running and len(step.start) == 1 and step.until >= step.start[0].deadline:
                    event = Event(step.start[0], self._exchange(step.start[0]))  # nothing else can happen
                    continue
                for attempt in step.start:
                    future = self._pool.submit(self._exchange, attempt)
                    running[future] = attempt
                    future.add_done_callback(ended.put)
                try:
                    future = ended.get(timeout=max(0.0, step.until - time.monotonic()))
                    event = Event(running.pop(future), future.result())
                except Empty:
                    event = None
        except StopIteration as end:
            result: T = end.value
            return result
        except CancelledError:
            raise RuntimeError("the client was closed meanwhile") from None
        finally:
            with self._thinking:
                operation.close()
            for future in running:
                future.cancel()  # one that runs ends by its deadline

    def close(self) -> None:
        with self._thinking:
            self._closed = True
            streams = list(self._streams)
        for stream in streams:
            _end(stream)
        self._pool.shutdown(cancel_futures=True)
        self._http.close()

    def _exchange(self, attempt: Attempt) -> Response | TransportFailure:
        request = attempt.request
        try:
            with self._http.stream(
                request.method,
                attempt.address + request.target,
                content=request.body,
                headers=headers_of(request),
                timeout=timeouts(attempt.deadline - time.monotonic()),
                extensions={"trace": self._trace},
            ) as response:
                body = bytearray()
                for chunk in response.iter_raw():
                    body += chunk
                    if len(body) > RESPONSE_BYTES_MAX or time.monotonic() > attempt.deadline:
                        return lost(None)
                return response_of(response, bytes(body))
        except (httpx.TransportError, httpx.InvalidURL) as error:
            return lost(error)

    def _trace(self, name: str, about: Mapping[str, Any]) -> None:
        """Every connection that is made, to be able to end what waits on it."""
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            stream = about["return_value"]
            with self._thinking:
                self._streams.add(stream)
                closed = self._closed
            if closed:
                _end(stream)


def _end(stream: Any) -> None:
    """Wakes the thread that reads it; closing would not."""
    with suppress(OSError):
        stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


class Rows(Iterator[Row]):
    """Rows in key order, read a page at a time; no more than a page is in memory. Not for several threads at once.

    When a page fails, `next` may be called again: it goes on where it was. So does another iterator, from `cursor`.
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

    def __next__(self) -> Row:
        while not self._scan.ready:
            if self._scan.ended:
                raise StopIteration
            self._carrier.run_operation(self._carrier.operations.next_page(self._scan, self._session))
        return self._scan.ready.popleft()


class _Requests:
    """What a client and a session both offer."""

    _carrier: _Carrier
    _defaults: ReadSettings
    _positions: SessionPositions | None = None

    def get(self, key: Key, *, raw: bool = False, **options: Unpack[ReadOptions]) -> Row | None:
        """The newest row of a key; None when there is none, on the word of a complete copy. `raw` leaves the value as
        the bytes that are stored.

            row = users.get("user-1", max_lag_ms=500)
        """
        return self._do(self._operations.get(key, raw, self._asked(options), self._positions))

    @overload
    def multi_get(
        self, keys: Sequence[Key], *, partial: Literal[False] = False, **options: Unpack[ReadOptions]
    ) -> list[Row | None]: ...

    @overload
    def multi_get(
        self, keys: Sequence[Key], *, partial: Literal[True], **options: Unpack[ReadOptions]
    ) -> list[Row | Unknown | None]: ...

    def multi_get(
        self, keys: Sequence[Key], *, partial: bool = False, **options: Unpack[ReadOptions]
    ) -> Sequence[Row | Unknown | None]:
        """The rows of many keys, in the order of the keys, from all nodes at once. All of them, or an exception; with
        `partial` what there is, and UNKNOWN for keys in partitions that nobody can answer for.

        first, second = users.multi_get(["user-1", "user-2"])
        """
        asked = self._asked(options)
        return self._do(self._operations.multi_get(keys, asked, self._positions, partial))

    def scan(
        self,
        *,
        order: Order = "asc",
        limit: int | None = None,
        page_rows: int = PAGE_ROWS,
        cursor: str | None = None,
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> Rows:
        """All rows, in key order.

        for row in users.scan(): print(row.key, row.value)
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
    ) -> Rows:
        """The rows from `start` up to before `stop`; None is open.

        newest = list(orders.range(1000, 2000, order="desc", limit=10))
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
    ) -> Rows:
        """The rows whose key begins with these bytes; not where keys are numbers.

        for row in users.prefix("user-"): print(row.key)
        """
        asked = self._asked(options)
        return self._rows(self._operations.prefix(prefix, asked, order, limit, page_rows, partial), cursor)

    def count(self, *, approximate: bool = False, **options: Unpack[ReadOptions]) -> int:
        """How many keys there are. The exact number reads every row.

        users.count(approximate=True)
        """
        return self._do(self._operations.count(approximate, self._asked(options), self._positions))

    def put(self, key: Key, value: object, *, deadline_ms: int | None = None) -> Written:
        """Write a record to the topic, where the view takes records. Returns when Kafka has it.

        users.get("user-1", min_position=users.put("user-1", {"name": "Ada"}).position)
        """
        return self._do(self._operations.put(key, value, self._within(deadline_ms), self._positions))

    def delete(self, key: Key, *, deadline_ms: int | None = None) -> tuple[Written, ...]:
        """Write a tombstone; several, where several partitions may hold the key.

        users.delete("user-1")
        """
        return self._do(self._operations.delete(key, self._within(deadline_ms), self._positions))

    @property
    def _operations(self) -> Operations:
        return self._carrier.operations

    def _do(self, operation: Operation[T]) -> T:
        return self._carrier.run_operation(operation)

    def _rows(self, scan: Scan, cursor: str | None) -> Rows:
        scan.cursor = cursor
        return Rows(self._carrier, scan, self._positions)

    def _asked(self, options: ReadOptions) -> ReadSettings:
        return parse_options(options, self._defaults)

    def _within(self, deadline_ms: int | None) -> ReadSettings:
        return self._asked({} if deadline_ms is None else {"deadline_ms": deadline_ms})


class QueryableTopic(_Requests):
    """A view, read from wherever its keys are.

        with QueryableTopic("http://users.example:8080") as users:
            print(users.get("user-1"))

    One client is for the whole program, and all its threads: it keeps connections, and what it learns of the nodes.
    `url` is the service address, or any node's; several may be given. Options hold for every read that does not say
    otherwise. `headers` go with every request.
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
        http = httpx.Client(headers=headers, verify=verify, limits=limits(connections), trust_env=False)
        self._carrier = _Carrier(operations, http, connections)

    def session(self, seen: Mapping[int, int] | None = None) -> Session:
        """Reads that never go back in time, and see what this session wrote.

        mine = users.session(); mine.put("user-1", 2); assert mine.get("user-1").value == 2
        """
        return Session(self._carrier, self._defaults, SessionPositions(seen or {}))

    def status(self, *, deadline_ms: int | None = None) -> dict[str, dict[str, Any] | None]:
        """What each node says of itself, by its address; None for one that does not answer.

        users.status()
        """
        return self._do(self._operations.status(self._within(deadline_ms)))

    def close(self) -> None:
        """End what still runs, and all connections. Also at the end of `with`."""
        self._carrier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Session(_Requests):
    """Made by `QueryableTopic.session`: reads are never older than what the session has read or written before."""

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
