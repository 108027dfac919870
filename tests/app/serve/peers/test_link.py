"""Many requests on few connections: every answer finds who asked, wherever it is cut and whoever has gone."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.placement.assignment import Placement
from queryable_app.policy.failure_detector import PeerHealth
from queryable_app.serve.peers.link import PeerLink
from queryable_app.serve.peers.pipe import Call, Pipe
from queryable_app.wire.partitioners import partition_for
from tests.support.bad_node import FaultyNode
from tests.support.served import Served, exchange, read_answers, served
from tests.support.waiting import eventually

TOKEN = "between-nodes"
MARK = f"Host: x\r\nqt-forwarded: {TOKEN}\r\nqt-deadline-ms: 2000\r\n\r\n"


class Asking:
    def __init__(self) -> None:
        self.got: list[tuple[int, bytes]] = []

    def answered(self, ordinal: int, status: int, head: bytes, body: bytes) -> None:
        assert head.endswith(b"\r\n\r\n")
        self.got.append((status, body))

    def failed(self, ordinal: int) -> None:
        raise AssertionError("it did not fail")


class Wire(asyncio.Transport):
    """Where a pipe writes to, and whether it is still there."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Nobody reads it."""

    def abort(self) -> None:
        self.aborted = True


def piped(count: int) -> tuple[Pipe, Wire, list[Asking]]:
    """A pipe with requests on it."""
    pipe, wire, asking = (
        Pipe(1, lambda call: None, lambda pipe: None),
        Wire(),
        [Asking() for _ in range(count)],
    )
    pipe.connection_made(wire)
    pipe.send([Call(b"", who, 0) for who in asking])
    return pipe, wire, asking


def answer(status: int, body: bytes) -> bytes:
    if status == 304:
        return b"HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n"
    return b"HTTP/1.1 %d X\r\ndate: now\r\ncontent-length: %d\r\nqt-hops: 0\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


@given(
    st.lists(st.tuples(st.sampled_from([200, 304, 404, 503]), st.binary(max_size=60)), max_size=8),
    st.lists(st.integers(0, 1500), max_size=12),
)
def test_answers_may_be_cut_anywhere(answers: list[tuple[int, bytes]], cuts: list[int]) -> None:
    """Each goes to who asked, in order and whole."""
    expected = [(status, b"" if status == 304 else body) for status, body in answers]
    raw = b"".join(answer(*each) for each in expected)
    pipe, wire, asking = piped(len(answers))
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    for start, end in itertools.pairwise(edges):
        pipe.data_received(raw[start:end])

    assert [who.got for who in asking] == [[each] for each in expected]
    assert not wire.aborted


@pytest.mark.parametrize(
    "raw",
    [
        b"220 mail.example ESMTP\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 xxx OK\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 9999,
    ],
    ids=[
        "not HTTP",
        "HTTP/1.0",
        "no length",
        "no status",
        "a negative length",
        "a huge length",
        "a head without end",
    ],
)
def test_what_is_no_answer_ends_the_connection(raw: bytes) -> None:
    """Nobody gets it."""
    pipe, wire, asking = piped(1)
    pipe.data_received(raw)
    assert (wire.aborted, pipe.usable, asking[0].got) == (True, False, [])


def test_an_answer_to_nothing_ends_the_connection() -> None:
    """It would be taken for the next one's."""
    pipe, wire, _ = piped(0)
    pipe.data_received(answer(200, b"x"))
    assert wire.aborted


def test_a_connection_that_is_to_be_closed_takes_no_more() -> None:
    """And the client's connection does not hear of it."""
    pipe, _, asking = piped(1)
    pipe.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx")
    assert (asking[0].got, pipe.usable) == ([(200, b"x")], False)


def test_who_comes_while_a_connection_is_waited_for_in_vain_gets_another_one() -> None:
    """The time that others have waited is not its own: the node may be there again."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    crowd = [socket.socket() for _ in range(3)]
    for one in crowd:  # more than may wait, so that nobody else comes through
        one.setblocking(False)
        one.connect_ex(listener.getsockname())
    awake: list[FaultyNode] = []

    class Waiting(Asking):
        def failed(self, ordinal: int) -> None:
            self.got.append((0, b""))
            if not awake:
                listener.listen(100)
                awake.append(FaultyNode(listener, "not available"))

    async def ask() -> tuple[Asking, Asking]:
        loop = asyncio.get_running_loop()
        link = PeerLink(1, f"http://127.0.0.1:{listener.getsockname()[1]}", PeerHealth())
        first, second = Waiting(), Waiting()
        link.ask(b"GET /v1/keys/a HTTP/1.1\r\n\r\n", first, loop.time())
        while link._connecting is None:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # the attempt has begun
        link.ask(b"GET /v1/keys/b HTTP/1.1\r\n\r\n", second, loop.time())
        async with asyncio.timeout(30):
            while not second.got:
                await asyncio.sleep(0.01)
        link.close()
        return first, second

    try:
        first, second = asyncio.run(ask())
    finally:
        for node in awake:
            node.stop()
        for one in crowd:
            one.close()
    assert (first.got, second.got) == ([(0, b"")], [(503, b'{"reason":"not_available"}')])


@pytest.mark.parametrize("seconds", [0.0, 1.0], ids=["at once", "after a while"])
def test_a_connection_that_ended_while_nobody_looked_fails_no_later_request(seconds: float) -> None:
    """As after the node has slept. One that ends as soon as it is made is followed by another a little later only."""

    async def ask() -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]], float]:
        slept = asyncio.Event()
        served: set[object] = set()
        second_at = 0.0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal second_at
            served.add(writer)
            if not slept.is_set():
                await slept.wait()
            else:
                second_at = second_at or loop.time()
                with suppress(asyncio.IncompleteReadError):
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(answer(200, b"x"))
            writer.close()
            await writer.wait_closed()
            served.remove(writer)

        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        link = PeerLink(1, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", PeerHealth())
        now = loop.time()
        link._time = lambda: now
        first, second = Told(), Told()
        link.ask(b"GET /v1/keys/a HTTP/1.1\r\n\r\n", first, now)
        await until(lambda: len(link._pipes) == len(served) == 2)
        now += seconds
        slept.set()
        await until(lambda: first.got and not link._pipes)
        ended_at = loop.time()
        link.ask(b"GET /v1/keys/b HTTP/1.1\r\n\r\n", second, now)
        await until(lambda: second.got)
        link.close()
        await until(lambda: not served)
        server.close()
        return first.got, second.got, second_at - ended_at

    first, second, after = asyncio.run(ask())
    assert (first, second) == ([(0, b"")], [(200, b"x")])
    if not seconds:
        assert after > 0.04


def test_a_node_that_refused_a_moment_ago_answers_as_soon_as_it_is_back() -> None:
    """Though it is not asked to connect all the time meanwhile, and others are asked before it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()

    async def ask() -> tuple[Told, Told, bool]:
        loop, health = asyncio.get_running_loop(), PeerHealth()
        link = PeerLink(1, f"http://127.0.0.1:{address[1]}", health)
        first, second = Told(), Told()
        link.ask(b"GET /v1/keys/a HTTP/1.1\r\n\r\n", first, loop.time())
        await until(lambda: first.got)
        link.ask(b"GET /v1/keys/b HTTP/1.1\r\n\r\n", second, loop.time())
        back = FaultyNode(socket.create_server(address), "not available")
        try:
            await until(lambda: second.got)
        finally:
            link.close()
            back.stop()
        return first, second, health.unhealthy

    first, second, unhealthy = asyncio.run(ask())
    assert (first.got, second.got) == ([(0, b"")], [(503, b'{"reason":"not_available"}')])
    assert unhealthy


class Told(Asking):
    """Also of what failed."""

    def failed(self, ordinal: int) -> None:
        self.got.append((0, b""))


async def until(so: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not so():
            await asyncio.sleep(0.001)


@contextmanager
def two_nodes(directory: Path) -> Iterator[tuple[Served, Served]]:
    directory.mkdir(exist_ok=True)
    (directory / "token").write_text(TOKEN)
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = tuple(f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners)
    placement = Placement(1, "tests.users.r1", addresses, ((0,), (1,)), ((), ()))
    settings = {"internal_token_path": str(directory / "token")}
    with (
        served(
            directory / "0", ordinal=0, placement=placement, listener=listeners[0], settings=settings
        ) as first,
        served(
            directory / "1", ordinal=1, placement=placement, listener=listeners[1], settings=settings
        ) as second,
    ):
        yield first, second


def of_partition(partition: int, count: int) -> list[str]:
    keys = (f"key-{n:06d}" for n in itertools.count())
    of_it = (key for key in keys if partition_for(key.encode(), "murmur2", 2) == partition)
    return list(itertools.islice(of_it, count))


LARGE_KEYS = of_partition(1, 2003)[2000:]


def large(number: int) -> bytes:
    return b'"%b%d"' % (b"x" * 400_000, number)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    with two_nodes(tmp_path_factory.mktemp("two")) as both:
        for node in both:
            node.fill(4000)
        for number, key in enumerate(LARGE_KEYS):
            both[1].put(key.encode(), large(number))
        yield both


def get(key: str, *more: str) -> bytes:
    return f"GET /v1/keys/{key} HTTP/1.1\r\nHost: x\r\n{''.join(more)}\r\n".encode()


async def ask_often(port: int, keys: list[str], dice: random.Random, leave: float) -> int:
    """Reads on one connection after the other; now and then the client is gone before its answer."""
    right = 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for key in keys:
            writer.write(get(key))
            if dice.random() < leave:
                writer.transport.abort()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                continue
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            assert b"\r\nqt-hops: 1\r\n" in head
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert await reader.readexactly(length) == b'{"n":%d}' % int(key[4:])
            right += 1
    finally:
        writer.transport.abort()
    return right


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("leave", [0.0, 0.2], ids=["all stay", "some leave"])
def test_many_forwarded_reads_at_once_are_not_mixed_up(
    nodes: tuple[Served, Served], seed: int, leave: float
) -> None:
    """Two thousand over two hundred connections: each gets its own key's value, whoever else goes away."""
    dice = random.Random(seed)
    keys = [key for key in of_partition(1, 1900) if int(key[4:]) < 4000]
    forwards = nodes[0].protocol.forwards

    async def everyone() -> int:
        clients = (ask_often(nodes[0].port, dice.choices(keys, k=10), dice, leave) for _ in range(200))
        async with asyncio.TaskGroup() as group:  # if one fails, the others end before this does
            asking = [group.create_task(client) for client in clients]
        return sum(task.result() for task in asking)

    before = nodes[0].node.counters.fast_answers
    right = asyncio.run(everyone())
    assert right == 2000 if leave == 0 else 1000 < right < 2000
    assert nodes[0].node.counters.fast_answers - before >= right
    eventually("nothing is left behind", lambda: not forwards.running)


@pytest.mark.parametrize("cut", [1, 40, 99, 100, 101, 5000])
def test_forwarded_requests_may_be_cut_anywhere(nodes: tuple[Served, Served], cut: int) -> None:
    """What has come is answered at once, in order, and all of it in the fast lane."""
    keys = [key for key in of_partition(1, 500) if int(key[4:]) < 4000]
    requests = b"".join(f"GET /v1/keys/{key} HTTP/1.1\r\n{MARK}".encode() for key in keys)
    before = nodes[1].node.counters.fast_answers
    with socket.create_connection(("127.0.0.1", nodes[1].port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first = requests.index(b"\r\n\r\n") + 4  # a node's first request comes whole
        for start in range(first, len(requests), max(cut, len(requests) // 40)):
            connection.sendall(requests[:first] if start == first else b"")
            connection.sendall(requests[start : start + max(cut, len(requests) // 40)])
        answers = read_answers(connection, len(keys))
    bodies = [b'{"n":%d}' % int(key[4:]) for key in keys]
    at = 0
    for body in bodies:
        at = answers.index(body, at) + len(body)
    assert nodes[1].node.counters.fast_answers - before == len(keys)


def test_a_forwarded_request_for_another_nodes_key_is_refused_in_its_place(
    nodes: tuple[Served, Served],
) -> None:
    """Between two that are answered; so is one that is no key."""
    here, elsewhere = of_partition(1, 1)[0], of_partition(0, 1)[0]
    requests = b"".join(
        f"GET /v1/keys/{key} HTTP/1.1\r\n{MARK}".encode() for key in (here, elsewhere, "x?y=z", here)
    )
    with socket.create_connection(("127.0.0.1", nodes[1].port), timeout=10) as connection:
        connection.sendall(requests)
        answers = read_answers(connection, 4)
    statuses = [int(piece[1:4]) for piece in answers.split(b"HTTP/1.1")[1:]]
    assert statuses == [200, 421, 400, 200]


def test_large_values_are_forwarded(nodes: tuple[Served, Served]) -> None:
    """Also many at once, to a client that takes its time."""
    with nodes[0].client() as http:
        for number, key in enumerate(LARGE_KEYS):
            assert http.get(f"/v1/keys/{key}").content == large(number)
    requests = f"GET /v1/keys/{LARGE_KEYS[0]} HTTP/1.1\r\n{MARK}".encode() * 60
    with socket.create_connection(("127.0.0.1", nodes[1].port), timeout=10) as connection:
        connection.sendall(requests)
        eventually(
            "the node waits for its reader",
            lambda: any(c.write_paused_since is not None for c in nodes[1].protocol.open),
        )
        waiting = [c.transport.get_write_buffer_size() for c in nodes[1].protocol.open]
        assert max(waiting) < 3 * len(large(0))
        received = bytearray()
        while len(received) < 60 * len(large(0)) or not received.endswith(large(0)):
            received += connection.recv(1 << 20)
    assert received.count(large(0)) == 60


def test_what_a_client_sends_behind_a_forwarded_read_waits_its_turn(nodes: tuple[Served, Served]) -> None:
    """Answers come in the order of the requests, over both lanes and both nodes."""
    away, here = of_partition(1, 1)[0], of_partition(0, 1)[0]
    with socket.create_connection(("127.0.0.1", nodes[0].port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(100):
            for piece in (get(away), get(here), get(away), get("x", "qt-consistency: any\r\n"), get(here)):
                connection.sendall(piece)
            answers = read_answers(connection, 5)
            hops = [line for line in answers.split(b"\r\n") if line.startswith(b"qt-hops")]
            assert hops[:3] == [b"qt-hops: 1", b"qt-hops: 0", b"qt-hops: 1"]
            statuses = [piece[1:4] for piece in answers.split(b"HTTP/1.1")[1:]]
            assert statuses == [b"200", b"200", b"200", b"404", b"200"]


def test_a_client_that_sends_no_more_gets_its_forwarded_answer(nodes: tuple[Served, Served]) -> None:
    """A half-closed connection is answered, and then ends."""
    key = of_partition(1, 1)[0]
    with socket.create_connection(("127.0.0.1", nodes[0].port), timeout=10) as connection:
        connection.sendall(get(key))
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    assert received.startswith(b"HTTP/1.1 200")


def test_a_forwarded_read_says_what_a_local_one_says(nodes: tuple[Served, Served]) -> None:
    """The same headers and body as through FastAPI, one date, and no word of the connection between the nodes."""
    key = of_partition(1, 1)[0]
    with nodes[0].client() as http:
        fast = http.get(f"/v1/keys/{key}")
        slow = http.get(f"/v1/keys/{key}?consistency=bounded")
    drop = ("date", "qt-lag-ms")
    assert fast.content == slow.content
    assert [(n, v) for n, v in sorted(fast.headers.multi_items()) if n not in drop] == [
        (n, v) for n, v in sorted(slow.headers.multi_items()) if n not in drop
    ]
    assert exchange(nodes[0].port, get(key)).lower().count(b"\r\ndate: ") == 1
