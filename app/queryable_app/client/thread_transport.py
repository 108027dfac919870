"""Run operations on httpx, for threads.

Strategy: an operation decides under one lock, for a few microseconds at a time, so that threads can share the client. Requests
run outside the lock: a single one in the caller's own thread, several at once, and hedges, in a small pool.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from ssl import SSLContext
from typing import Any, TypeVar
from weakref import WeakSet

import httpx

from queryable_app.client.attempts import (
    Attempt,
    Event,
    Operation,
    Response,
    Step,
    TransportFailure,
    timed_out,
)
from queryable_app.client.credentials import BearerToken
from queryable_app.client.transport import (
    RESPONSE_BYTES_MAX,
    VerifiedNames,
    headers_of,
    limits,
    response_of,
    timeouts,
    transport_failure,
)

T = TypeVar("T")
Outcome = Response | TransportFailure


def http_client(
    connections: int,
    headers: Mapping[str, str] | None = None,
    verify: SSLContext | bool = True,
    auth: BearerToken | None = None,
) -> httpx.Client:
    """Return the HTTP client of a transport."""
    limited = limits(connections)
    return httpx.Client(headers=headers, verify=verify, limits=limited, trust_env=False, auth=auth)


class ThreadTransport:
    """Run operations in the caller's thread, and concurrent attempts in a pool."""

    def __init__(self, http: httpx.Client, threads: int, names: VerifiedNames) -> None:
        self._http = http
        self._names = names
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="queryable-topic")
        self._lock = threading.Lock()
        self._streams: WeakSet[Any] = WeakSet()
        self._closed = False

    def run_operation(self, operation: Operation[T]) -> T:
        """Return the operation's result, or raise its exception."""
        ended: SimpleQueue[Future[Outcome]] = SimpleQueue()
        running: dict[Future[Outcome], Attempt] = {}
        event: Event | None = None
        try:
            while True:
                if self._closed:
                    raise RuntimeError("the client is closed")
                with self._lock:
                    step = operation.send(event)
                if not running and len(step.start) == 1 and step.until >= step.start[0].deadline:
                    event = Event(step.start[0], self._send(step.start[0]))  # no other event can come first
                else:
                    event = self._next_event(step, running, ended)
        except StopIteration as end:
            result: T = end.value
            return result
        except CancelledError:
            raise RuntimeError("the client was closed during the request") from None
        finally:
            with self._lock:
                operation.close()
            for future in running:
                future.cancel()  # a running attempt ends by its deadline

    def close(self) -> None:
        """End all requests and connections."""
        with self._lock:
            self._closed = True
            streams = list(self._streams)
        for stream in streams:
            _shut_down(stream)
        self._pool.shutdown(cancel_futures=True)
        self._http.close()

    def _next_event(
        self, step: Step, running: dict[Future[Outcome], Attempt], ended: SimpleQueue[Future[Outcome]]
    ) -> Event | None:
        """Start the step's attempts in the pool, and wait for the next one to end."""
        for attempt in step.start:
            future = self._pool.submit(self._send, attempt)
            running[future] = attempt
            future.add_done_callback(ended.put)
        try:
            future = ended.get(timeout=max(0.0, step.until - time.monotonic()))
        except Empty:
            return None
        return Event(running.pop(future), future.result())

    def _send(self, attempt: Attempt) -> Outcome:
        request = attempt.request
        try:
            with self._http.stream(
                request.method,
                attempt.address + request.target,
                content=request.body,
                headers=headers_of(request),
                timeout=timeouts(attempt.deadline - time.monotonic()),
                extensions={"trace": self._trace, **self._names.extensions(attempt.address)},
            ) as response:
                body = bytearray()
                for chunk in response.iter_raw():
                    body += chunk
                    if len(body) > RESPONSE_BYTES_MAX or time.monotonic() > attempt.deadline:
                        return timed_out()
                return response_of(response, bytes(body))
        except (httpx.TransportError, httpx.InvalidURL) as error:
            return transport_failure(error)

    def _trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Note each new connection, so that `close` can end the threads that read from it."""
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            stream = info["return_value"]
            with self._lock:
                self._streams.add(stream)
                closed = self._closed
            if closed:
                _shut_down(stream)


def _shut_down(stream: Any) -> None:
    """Wake the thread that reads from the connection; closing it would not."""
    with suppress(OSError):
        stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
