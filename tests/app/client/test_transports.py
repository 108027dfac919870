"""Test the transports: connections that hang or break, other servers, threads, tasks, and how a client closes."""

from __future__ import annotations

import asyncio
import inspect
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from queryable_app.client import (
    AsyncQueryableTopic,
    AsyncSession,
    DeadlineExceeded,
    QueryableTopic,
    QueryableTopicError,
    Row,
    Session,
    Unreachable,
    async_client,
    sync_client,
)
from queryable_app.placement.assignment import initial_placement
from tests.support.served import Served, served
from tests.support.socket_server import SocketServer
from tests.support.waiting import eventually, until

Get = Callable[..., list[Row | None]]


def get_sync(url: str, keys: list[str], **options: Any) -> list[Row | None]:
    with QueryableTopic(url, **options) as users:
        return [users.get(key) for key in keys]


def get_async(url: str, keys: list[str], **options: Any) -> list[Row | None]:
    async def read() -> list[Row | None]:
        async with AsyncQueryableTopic(url, **options) as users:
            return [await users.get(key) for key in keys]

    return asyncio.run(read())


both = pytest.mark.parametrize("get", [get_sync, get_async])


def test_both_clients_offer_the_same() -> None:
    """Both clients and their sessions have the same names, parameters and defaults."""
    for one, other in ((QueryableTopic, AsyncQueryableTopic), (Session, AsyncSession)):
        assert offered(one) == offered(other)


def offered(kind: type) -> dict[str, list[str]]:
    return {
        name: [str(parameter) for parameter in inspect.signature(function).parameters.values()]
        for name, function in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@contextmanager
def responding(
    *pieces: bytes, seconds: float = 0.0, on_request: Callable[[], object] = lambda: None
) -> Iterator[str]:
    """Answer every request with the pieces, after a pause before each, and close. Each request calls `on_request`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        on_request()
        for piece in pieces:
            time.sleep(seconds)
            connection.sendall(piece)

    with SocketServer(listener, answer):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


HEAD = b"HTTP/1.1 200 OK\r\nqt-application: a\r\ncontent-type: application/json\r\n"


class _Clock:
    """Stand in for the module `time` of the clients. It passes the deadline once the client has sent a second request, and so has
    read the first response: on a busy machine, too, the deadline never passes before that."""

    def __init__(self) -> None:
        self._requests = 0

    def advance(self) -> None:
        self._requests += 1

    def monotonic(self) -> float:
        return time.monotonic() + (0 if self._requests < 2 else 60)


@both
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nnot found",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        HEAD + b"content-length: 2\r\n\r\n[]",
        HEAD + b"content-length: 99\r\n\r\n{",
        HEAD + b'content-length: 17\r\n\r\n{"partitions": 1}',
        HEAD + b"content-length: 100000\r\n\r\n" + b"[" * 100_000,
        b"SSH-2.0-OpenSSH_9\r\n",
        b"",
    ],
    ids=["page", "bare", "redirect", "list", "cut", "odd", "deep", "ssh", "nothing"],
)
def test_server_that_is_no_node_is_unreachable(
    get: Get, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server's response is never a missing key, a value, or an exception of a library."""
    clock = _Clock()
    for module in (sync_client, async_client):
        monkeypatch.setattr(module, "time", clock)
    with responding(answer, on_request=clock.advance) as url, pytest.raises(Unreachable):
        get(url, ["a"], deadline_ms=30_000)


@both
def test_slow_response_has_a_deadline(get: Get) -> None:
    """A response whose bytes arrive one at a time ends at the deadline."""
    began = time.monotonic()
    with (
        responding(HEAD + b"content-length: 1000\r\n\r\n", *[b" "] * 400, seconds=0.05) as url,
        pytest.raises(QueryableTopicError) as caught,
    ):
        get(url, ["a"], deadline_ms=500)
    assert isinstance(caught.value, DeadlineExceeded | Unreachable)
    assert time.monotonic() - began < 10


@contextmanager
def unconnectable() -> Iterator[str]:
    """Yield an address that neither accepts nor refuses connections."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        for _ in range(4):  # fills the queue of a listener that never accepts
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with suppress(BlockingIOError):
                filler.connect(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def refused() -> Iterator[str]:
    yield "http://127.0.0.1:1"


@both
@pytest.mark.parametrize("elsewhere", [unconnectable, refused])
def test_service_address_alone_is_enough(tmp_path: Path, get: Get, elsewhere: Any) -> None:
    """If nodes are unreachable, reads go to the service address, and soon without trying the nodes first."""
    keys = [f"key-{n:06d}" for n in range(60)]
    with elsewhere() as address:
        placement = initial_placement("tests.users.r1", 2, [address], 1)
        with served(tmp_path, placement=placement) as node:
            node.fill(60)
            began = time.monotonic()
            rows = get(node.url, keys, deadline_ms=20_000)
            assert [row and row.value for row in rows] == [{"n": n} for n in range(60)]
            assert time.monotonic() - began < 25  # a connect timeout each would be a minute


@both
def test_changed_placement_is_followed(tmp_path: Path, get: Get) -> None:
    """Reads go to the new owners after the first response that shows the new epoch."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        addresses = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
        first = initial_placement("tests.users.r1", 1, addresses, 2)
        nodes = [
            stack.enter_context(
                served(tmp_path / str(n), ordinal=n, placement=first, listener=listeners[n], partitions=1)
            )
            for n in range(2)
        ]
        for node in nodes:
            node.put(b"a", b"1")
        turned = type(first)(2, first.application_id, first.addresses, ((1, 0),), first.hydrating)

        def turn(node: Served) -> None:
            node.on_loop(lambda: setattr(node.node.replicas, "placement", turned))

        with QueryableTopic(addresses[0], deadline_ms=5000) as users:
            assert users.get("a").served_by == "users-r1-0"  # type: ignore[union-attr]
            for node in nodes:
                turn(node)
            eventually("the new owner answers", lambda: users.get("a").served_by == "users-r1-1")  # type: ignore[union-attr]
        assert get(addresses[0], ["a"])[0].served_by == "users-r1-1"  # type: ignore[union-attr]


class _LateLog:
    """Stand in for Kafka and ingest: a record is acknowledged at once, and in the store a moment later."""

    def __init__(self, node: Served, seconds: float) -> None:
        self._node = node
        self._seconds = seconds

    async def send(self, key: bytes, value: bytes | None, partition: int, deadline_seconds: float) -> int:
        offset = max(0, self._node.node.replicas.by_partition[partition].position)
        threading.Timer(self._seconds, self._node.put, (key, value), {"partition": partition}).start()
        return offset


def test_session_reads_its_own_writes(tmp_path: Path) -> None:
    """A session sees its writes and deletions at once, also in reads of many keys, though the store has them later."""
    with (
        served(tmp_path, read={"ingest": True}) as node,
        QueryableTopic(node.url, deadline_ms=10_000) as users,
    ):
        node.node.producer = _LateLog(node, 0.2)  # type: ignore[assignment]
        mine = users.session()
        for n in range(3):
            written = mine.put("a", {"n": n})
            assert users.get("a", consistency="any") != mine.get("a")
            row = mine.get("a")
            assert row is not None
            assert (row.value, row.offset) == ({"n": n}, written.offset)
        (deleted,) = mine.delete("a")
        assert mine.get("a") is None
        assert mine.seen[deleted.partition] == deleted.offset + 1
        mine.put("b", 1)
        assert [row and row.value for row in mine.multi_get(["b", "a"])] == [1, None]
        mine.put("c", 2)
        assert [row.key for row in mine.scan()] == ["b", "c"]
        mine.put("d", 2)
        assert mine.count() == 3
        other = users.put("e", 5)
        assert users.get("e", min_position=other.position).value == 5  # type: ignore[union-attr]


def test_close_ends_waiting_requests() -> None:
    """Requests in other threads end at once; later ones fail because the client is closed."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        users = QueryableTopic(f"http://127.0.0.1:{silent.getsockname()[1]}", deadline_ms=60_000)
        failures: list[Exception] = []

        def read() -> None:
            try:
                users.get("a")
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        with silent.accept()[0]:  # the request is on its way
            began = time.monotonic()
            users.close()
            thread.join(10)
            assert time.monotonic() - began < 10
        assert [type(failure) for failure in failures] == [RuntimeError]
        with pytest.raises(RuntimeError, match="closed"):
            users.get("a")


PROGRAM = """
import sys
from queryable_app.client import QueryableTopic
with QueryableTopic([sys.argv[1], sys.argv[2]], deadline_ms=60_000) as users:
    print("asking", flush=True)
    users.get("a")
"""


def test_ctrl_c_ends_a_program_at_once() -> None:
    """Ctrl-C ends a program with KeyboardInterrupt, and without a ResourceWarning."""
    with ExitStack() as stack:
        silent, other = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        urls = [f"http://127.0.0.1:{s.getsockname()[1]}" for s in (silent, other)]
        program = subprocess.Popen(
            [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, *urls],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with program, ExitStack() as at_end:
            at_end.callback(program.kill)  # before the program's own `with` waits for its end
            assert program.stdout is not None
            assert program.stdout.readline() == "asking\n"
            stack.enter_context(silent.accept()[0])
            began = time.monotonic()
            program.send_signal(signal.SIGINT)
            _, stderr = program.communicate(timeout=40)
        assert time.monotonic() - began < 30
        assert stderr.strip().splitlines()[-1] == "KeyboardInterrupt"
        assert "Warning" not in stderr
        assert program.returncode == -signal.SIGINT


def test_cancelled_task_leaves_no_task_behind() -> None:
    """The attempts of a cancelled read end with it."""

    async def read(url: str) -> None:
        async with AsyncQueryableTopic(url, deadline_ms=60_000) as users:
            reading = asyncio.create_task(users.get("a"))
            await until("the attempt has started", lambda: len(asyncio.all_tasks()) >= 3)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert len(asyncio.all_tasks()) == 1

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(read(f"http://127.0.0.1:{silent.getsockname()[1]}"))
