"""Test what carries the bytes of a connection over TLS, between two of them on real sockets, and with Python's own client."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.platform.certificates import client_context, read_certificate_files, server_context
from queryable_app.serve.base.tls_connection import TlsConnection
from tests.support.certificates import CertificateAuthority, mount_for_localhost

CA = CertificateAuthority()
SECONDS = 60.0


class Recorder(asyncio.Protocol):
    """Note what a connection brings, and answer nothing."""

    stays_open = False

    def __init__(self) -> None:
        self.received = bytearray()
        self.ended = asyncio.Event()
        self.lost = asyncio.Event()
        self.may_write = asyncio.Event()
        self.more = asyncio.Event()
        self.may_write.set()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.more.set()

    def eof_received(self) -> bool:
        self.ended.set()
        return self.stays_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()

    async def until(self, count: int) -> bytes:
        """Return what has arrived, once it is this many bytes."""
        async with asyncio.timeout(SECONDS):
            while len(self.received) < count:
                self.more.clear()
                await self.more.wait()
        return bytes(self.received)


@pytest.fixture(scope="module")
def server_side(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    directory: Path = tmp_path_factory.mktemp("tls")
    mount_for_localhost(directory, CA)
    return server_context(read_certificate_files(directory))


@asynccontextmanager
async def sockets() -> AsyncIterator[tuple[socket.socket, socket.socket]]:
    """Yield the two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        server, _ = listening.accept()
    with client, server:
        client.setblocking(False)
        server.setblocking(False)
        yield client, server


@asynccontextmanager
async def both_ends(
    context: ssl.SSLContext, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[Recorder, Recorder]]:
    """Yield the protocols of client and server after the handshake."""
    loop = asyncio.get_running_loop()
    client, server = Recorder(), Recorder()
    async with sockets() as (ours, theirs):
        ends = (
            TlsConnection(client_context(CA.pem), lambda: client, host),
            TlsConnection(context, lambda: server),
        )
        try:
            await asyncio.gather(
                ends[0].open(lambda made: loop.create_connection(made, sock=ours), SECONDS),
                ends[1].open(lambda made: loop.connect_accepted_socket(made, theirs), SECONDS),
            )
            yield client, server
        finally:
            for end in ends:
                end.abort()


def run(test: Callable[[], Any]) -> None:
    uvloop.run(test())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 70_000), max_size=12))
def test_bytes_arrive_as_they_were_written(server_side: ssl.SSLContext, sizes: list[int]) -> None:
    """What is written in any pieces, both ways at the same time, arrives whole and in order."""
    pieces = [bytes([number + 1]) * size for number, size in enumerate(sizes)]

    async def test() -> None:
        async with both_ends(server_side) as (client, server):
            for piece in pieces:
                client.transport.write(piece)
                server.transport.write(memoryview(piece))
            expected = b"".join(pieces)
            assert await server.until(len(expected)) == expected
            assert await client.until(len(expected)) == expected

    run(test)


def test_a_wrong_name_fails_the_handshake(server_side: ssl.SSLContext) -> None:
    """A client does not open a connection to a server whose certificate has another name."""

    async def test() -> None:
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            async with both_ends(server_side, "elsewhere.example"):
                raise AssertionError("it is open")

    run(test)


def test_a_silent_client_fails_in_time(server_side: ssl.SSLContext) -> None:
    """A handshake that takes too long ends with TimeoutError, and the socket is closed."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with sockets() as (client, server):
            connection = TlsConnection(server_side, Recorder)
            with pytest.raises(TimeoutError):
                await connection.open(lambda made: loop.connect_accepted_socket(made, server), 0.05)
            async with asyncio.timeout(SECONDS):
                assert await _rest(loop, client) == b""

    run(test)


def test_a_connection_that_is_given_up_as_it_opens_is_closed(server_side: ssl.SSLContext) -> None:
    """A caller that is cancelled at the moment in which the handshake ends leaves no open connection behind."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        client = Recorder()
        async with sockets() as (ours, theirs):
            connection = TlsConnection(client_context(CA.pem), lambda: client, "127.0.0.1")
            connection.opened.add_done_callback(lambda _: opening.cancel())
            opening = asyncio.ensure_future(
                connection.open(lambda made: loop.create_connection(made, sock=ours), SECONDS)
            )
            server = TlsConnection(server_side, Recorder)
            await server.open(lambda made: loop.connect_accepted_socket(made, theirs), SECONDS)
            with pytest.raises(asyncio.CancelledError):
                await opening
            async with asyncio.timeout(SECONDS):
                await client.lost.wait()
            server.abort()

    run(test)


async def _rest(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> bytes:
    received = b""
    while True:
        try:
            piece = await loop.sock_recv(connection, 1 << 16)
        except ConnectionResetError:
            return received
        if not piece:
            return received
        received += piece


def test_a_client_that_has_ended_gets_its_answer(server_side: ssl.SSLContext) -> None:
    """After the client's last byte, the server's protocol may keep the connection open and answer."""

    async def test() -> None:
        async with both_ends(server_side) as (client, server):
            server.stays_open = True
            client.transport._ssl.write(b"question")
            with pytest.raises(ssl.SSLWantReadError):
                client.transport._ssl.unwrap()
            client.transport._send()
            async with asyncio.timeout(SECONDS):
                await server.ended.wait()
            assert server.received == b"question"
            server.transport.write(b"answer")
            server.transport.close()
            assert await client.until(6) == b"answer"

    run(test)


def test_a_close_reaches_the_other_side(server_side: ssl.SSLContext) -> None:
    """What was written before `close` arrives, then the end, and both protocols lose their connection."""

    async def test() -> None:
        async with both_ends(server_side) as (client, server):
            server.transport.write(b"x" * 500_000)
            server.transport.close()
            server.transport.write(b"too late")
            async with asyncio.timeout(SECONDS):
                await client.ended.wait()
                await client.lost.wait()
                await server.lost.wait()
            assert client.received == b"x" * 500_000

    run(test)


def test_a_client_that_does_not_read_pauses_its_server(server_side: ssl.SSLContext) -> None:
    """The protocol is told to pause when the client does not read, and to go on when it does; nothing is lost."""

    async def test() -> None:
        async with both_ends(server_side) as (client, server):
            client.transport.pause_reading()
            written = 0
            while server.may_write.is_set():
                server.transport.write(b"x" * 100_000)
                written += 100_000
                await asyncio.sleep(0)
            assert server.transport.get_write_buffer_size() > 0
            client.transport.resume_reading()
            async with asyncio.timeout(SECONDS):
                await server.may_write.wait()
            assert len(await client.until(written)) == written

    run(test)


def test_reading_pauses_between_two_records(server_side: ssl.SSLContext) -> None:
    """A protocol that pauses reading gets no further record of the same input until it resumes."""

    async def test() -> None:
        async with both_ends(server_side) as (client, server):
            take, first = server.data_received, asyncio.Event()

            def pause(data: bytes) -> None:
                take(data)
                server.transport.pause_reading()
                first.set()

            server.transport._receive = pause
            for letter in (b"a", b"b", b"c"):
                client.transport._ssl.write(letter)  # three records
            client.transport._send()  # in one input
            for count in (1, 2, 3):
                async with asyncio.timeout(SECONDS):
                    await first.wait()
                first.clear()
                await asyncio.sleep(0)
                assert server.received == b"abc"[:count]
                assert not server.transport.is_reading()
                server.transport.resume_reading()

    run(test)


def test_a_changed_record_ends_the_connection(server_side: ssl.SSLContext) -> None:
    """A record with a flipped bit is not passed on, and ends the connection on both sides."""

    async def test() -> None:
        async with both_ends(server_side) as (client, server):
            client.transport._ssl.write(b"question")
            record = bytearray(client.transport._outgoing.read())
            record[-1] ^= 1
            client.transport._raw.write(bytes(record))
            async with asyncio.timeout(SECONDS):
                await server.lost.wait()
                await client.lost.wait()
            assert server.received == b""

    run(test)


def test_a_connection_cut_without_close_notify_ends(server_side: ssl.SSLContext) -> None:
    """A client whose socket ends without TLS's close_notify is taken as one that sends no more."""

    async def test() -> None:
        async with both_ends(server_side) as (client, server):
            client.transport.write(b"question")
            await server.until(8)
            client.transport._raw.write_eof()
            async with asyncio.timeout(SECONDS):
                await server.ended.wait()
                await server.lost.wait()

    run(test)
