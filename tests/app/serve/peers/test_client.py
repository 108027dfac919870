"""Requests to one node get their own responses, also after closed, late and malformed ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from queryable_app.serve.peers.client import PeerClient, PeerResponse, PeerTimeout, PeerUnavailable
from tests.support.peer_responses import response

Serve = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def client_of(serve: Serve) -> AsyncIterator[PeerClient]:
    """Start a server that passes the target of each request to `serve`."""
    closed = asyncio.Semaphore(0)
    opened = 0

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                await serve(head.split(b" ")[1], writer)
        writer.close()
        closed.release()

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    client = PeerClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield client
    finally:
        client.close()
        server.close()
        for _ in range(opened):
            await closed.acquire()


async def get(client: PeerClient, target: bytes, seconds: float = 30) -> PeerResponse:
    deadline = asyncio.get_running_loop().time() + seconds
    return await client.request(b"GET", target, b"", b"", deadline)


def test_request_is_sent_again_if_the_peer_has_closed_the_idle_connection() -> None:
    """The caller does not notice it."""

    async def serve(target: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(response(200, target))
        writer.close()

    async def read_twice() -> list[bytes]:
        async with client_of(serve) as client:
            return [(await get(client, target)).body for target in (b"/1", b"/2")]

    assert asyncio.run(read_twice()) == [b"/1", b"/2"]


def test_late_response_does_not_answer_the_next_request() -> None:
    """A request that reaches its deadline closes its connection."""
    answer_first = asyncio.Event()

    async def serve(target: bytes, writer: asyncio.StreamWriter) -> None:
        if target == b"/1":
            await answer_first.wait()
        writer.write(response(200, target))

    async def read_twice() -> bytes:
        async with client_of(serve) as client:
            with pytest.raises(PeerTimeout):
                await get(client, b"/1", 0.05)
            answer_first.set()
            return (await get(client, b"/2")).body

    assert asyncio.run(read_twice()) == b"/2"


@pytest.mark.parametrize("raw", [b"220 mail.example ESMTP\r\n", response(200, b"x" * 99)[:-1]], ids=repr)
def test_malformed_or_truncated_response_makes_the_peer_unavailable(raw: bytes) -> None:
    """The request is not sent again: a byte of its response has arrived."""
    targets: list[bytes] = []

    async def serve(target: bytes, writer: asyncio.StreamWriter) -> None:
        targets.append(target)
        writer.write(response(200, b"") if target == b"/1" else raw)
        if target != b"/1":
            writer.close()

    async def read_twice() -> None:
        async with client_of(serve) as client:
            await get(client, b"/1")
            with pytest.raises(PeerUnavailable):
                await get(client, b"/2")

    asyncio.run(read_twice())
    assert targets == [b"/1", b"/2"]


def test_header_names_are_in_lower_case() -> None:
    """Values keep their case."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/Plain\r\nqt-hops:0\r\n\r\n"
    assert PeerResponse(200, head, b"").headers == [(b"content-type", b"text/Plain"), (b"qt-hops", b"0")]
