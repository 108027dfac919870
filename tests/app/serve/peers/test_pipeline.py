"""Plain reads to one node survive lost, refused and hanging connections."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from queryable_app.policy.failure_detector import PeerHealth
from queryable_app.serve.peers.pipeline import ReadPipeline
from tests.support.faulty_node import FaultyNode
from tests.support.peer_responses import response
from tests.support.waiting import until


class Outcome:
    """Record the responses and failures of one read; a failure is (0, b"")."""

    def __init__(self) -> None:
        self.got: list[tuple[int, bytes]] = []

    def on_response(self, ordinal: int, status: int, head: bytes, body: bytes) -> None:
        assert head.endswith(b"\r\n\r\n")
        self.got.append((status, body))

    def on_failure(self, ordinal: int) -> None:
        self.got.append((0, b""))


def test_read_that_arrives_during_a_failing_connection_attempt_gets_another_attempt() -> None:
    """The attempt began before the read, and the node may be back."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    crowd = [socket.socket() for _ in range(3)]
    for one in crowd:  # they fill the backlog, so no other connection is accepted
        one.setblocking(False)
        one.connect_ex(listener.getsockname())
    recovered: list[FaultyNode] = []

    class RecoversOnFailure(Outcome):
        def on_failure(self, ordinal: int) -> None:
            super().on_failure(ordinal)
            if not recovered:
                listener.listen(100)
                recovered.append(FaultyNode(listener, "not available"))

    async def send() -> tuple[Outcome, Outcome]:
        loop = asyncio.get_running_loop()
        pipeline = ReadPipeline(1, f"http://127.0.0.1:{listener.getsockname()[1]}", PeerHealth())
        first, second = RecoversOnFailure(), RecoversOnFailure()
        pipeline.send(b"GET /v1/keys/a HTTP/1.1\r\n\r\n", first, loop.time())
        while pipeline._connecting is None:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # the attempt has begun
        pipeline.send(b"GET /v1/keys/b HTTP/1.1\r\n\r\n", second, loop.time())
        await until("the second read has an outcome", lambda: second.got)
        pipeline.close()
        return first, second

    try:
        first, second = asyncio.run(send())
    finally:
        for node in recovered:
            node.stop()
        for one in crowd:
            one.close()
    assert (first.got, second.got) == ([(0, b"")], [(503, b'{"reason":"not_available"}')])


@pytest.mark.parametrize("seconds", [0.0, 1.0], ids=["at once", "after a while"])
def test_lost_idle_connection_fails_no_later_read(seconds: float) -> None:
    """A new connection is made for the read; after one that was lost at once, only after a short delay."""

    async def send() -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]], float]:
        peer_closes = asyncio.Event()
        served: set[object] = set()
        second_at = 0.0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal second_at
            served.add(writer)
            if not peer_closes.is_set():
                await peer_closes.wait()
            else:
                second_at = second_at or loop.time()
                with suppress(asyncio.IncompleteReadError):
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(response(200, b"x"))
            writer.close()
            await writer.wait_closed()
            served.remove(writer)

        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        pipeline = ReadPipeline(1, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", PeerHealth())
        now = loop.time()
        pipeline._time = lambda: now
        first, second = Outcome(), Outcome()
        pipeline.send(b"GET /v1/keys/a HTTP/1.1\r\n\r\n", first, now)
        await until("both connections are open", lambda: len(pipeline._connections) == len(served) == 2)
        now += seconds
        peer_closes.set()
        await until("both connections are lost", lambda: first.got and not pipeline._connections)
        ended_at = loop.time()
        pipeline.send(b"GET /v1/keys/b HTTP/1.1\r\n\r\n", second, now)
        await until("the second read has an outcome", lambda: second.got)
        pipeline.close()
        await until("the server has closed its connections", lambda: not served)
        server.close()
        return first.got, second.got, second_at - ended_at

    first, second, after = asyncio.run(send())
    assert (first, second) == ([(0, b"")], [(200, b"x")])
    if not seconds:
        assert after > 0.04


def test_read_to_a_node_that_refused_just_now_waits_for_the_next_attempt() -> None:
    """Attempts are spaced, and the node stays unhealthy, which puts it last."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()

    async def send() -> tuple[Outcome, Outcome, bool]:
        loop, health = asyncio.get_running_loop(), PeerHealth()
        pipeline = ReadPipeline(1, f"http://127.0.0.1:{address[1]}", health)
        first, second = Outcome(), Outcome()
        pipeline.send(b"GET /v1/keys/a HTTP/1.1\r\n\r\n", first, loop.time())
        await until("the first read has an outcome", lambda: first.got)
        pipeline.send(b"GET /v1/keys/b HTTP/1.1\r\n\r\n", second, loop.time())
        back = FaultyNode(socket.create_server(address), "not available")
        try:
            await until("the second read has an outcome", lambda: second.got)
        finally:
            pipeline.close()
            back.stop()
        return first, second, health.unhealthy

    first, second, unhealthy = asyncio.run(send())
    assert (first.got, second.got) == ([(0, b"")], [(503, b'{"reason":"not_available"}')])
    assert unhealthy
