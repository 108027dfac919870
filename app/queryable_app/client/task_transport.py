"""Run operations on httpx, as tasks of asyncio.

Strategy: each attempt is a task. When an operation returns, or its caller is cancelled, the tasks that still run are cancelled.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import httpx

from queryable_app.client.attempts import (
    Attempt,
    Event,
    Operation,
    Response,
    TransportFailure,
    timed_out,
)
from queryable_app.client.transport import (
    RESPONSE_BYTES_MAX,
    VerifiedNames,
    headers_of,
    response_of,
    timeouts,
    transport_failure,
)

T = TypeVar("T")
Outcome = Response | TransportFailure


async def run_operation(
    operation: Operation[T],
    send: Callable[[Attempt], Coroutine[Any, Any, Outcome]],
    clock: Callable[[], float],
) -> T:
    """Return the operation's result, or raise its exception. If several attempts have ended, report the first one started."""
    running: dict[asyncio.Task[Outcome], Attempt] = {}
    event: Event | None = None
    try:
        while True:
            step = operation.send(event)
            for attempt in step.start:
                running[asyncio.create_task(send(attempt))] = attempt
            seconds = max(0.0, step.until - clock())
            event = None
            if not running:
                await asyncio.sleep(seconds)
                continue
            await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            ended = next((task for task in running if task.done()), None)
            if ended is not None:  # the next wait finds the others at once
                event = Event(running.pop(ended), ended.result())
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        operation.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class AsyncTransport:
    """Run operations as tasks of the running event loop."""

    def __init__(self, http: httpx.AsyncClient, names: VerifiedNames) -> None:
        self._http = http
        self._names = names

    async def run_operation(self, operation: Operation[T]) -> T:
        return await run_operation(operation, self._send, time.monotonic)

    async def close(self) -> None:
        await self._http.aclose()

    async def _send(self, attempt: Attempt) -> Outcome:
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
                    extensions={
                        **_close_cancelled_handshake(attempt.address),
                        **self._names.extensions(attempt.address),
                    },
                ) as response,
            ):
                body = bytearray()
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > RESPONSE_BYTES_MAX:
                        return timed_out()
                return response_of(response, bytes(body))
        except TimeoutError:
            return timed_out()
        # httpx passes on TLS's refusal of the client's certificate.
        except (httpx.TransportError, httpx.InvalidURL, ssl.SSLError) as error:
            return transport_failure(error)


def _close_cancelled_handshake(address: str) -> dict[str, Any]:
    """Return the extension that closes a connection if its TLS handshake is cancelled: httpcore does not."""
    if not address.startswith("https:"):
        return {}
    connected: list[Any] = []

    async def trace(name: str, info: Mapping[str, Any]) -> None:
        if name == "connection.connect_tcp.complete":
            connected.append(info["return_value"])
        elif name == "connection.start_tls.failed":
            await connected.pop().aclose()

    return {"trace": trace}
