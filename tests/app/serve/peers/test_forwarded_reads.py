"""Two nodes forward plain reads on few connections: every client gets its own response, in order."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queryable_app.placement.assignment import Placement
from queryable_app.wire.partitioners import partition_for
from tests.support.served import Served, exchange, read_answers, served
from tests.support.waiting import eventually

TOKEN = "between-nodes"
MARK = f"Host: x\r\nqt-forwarded: {TOKEN}\r\nqt-deadline-ms: 2000\r\n\r\n"


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
    forwards = nodes[0].node.forwarded_reads

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
