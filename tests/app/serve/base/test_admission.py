"""Test admission of reads on a real event loop and over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from queryable_app.contract import NODE_HEADER
from queryable_app.platform.running_time import running_seconds
from queryable_app.policy.overload import BACKLOG_SECONDS, WAITING_FEW
from queryable_app.serve.base import admission
from queryable_app.serve.base.admission import ReadAdmission
from queryable_app.serve.peers.peers import HEARTBEAT
from tests.support.served import Served, parsed, read_answers, served
from tests.support.waiting import eventually

KEYS = json.dumps({"keys": [f"key-{n:06d}" for n in range(500)]}).encode()
VERY_MANY_KEYS = json.dumps({"keys": [f"key-{n:06d}" for n in range(3_000)]}).encode()
MANY = b"POST /v1/multi-get%b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
HEAVY = MANY % (b"", len(KEYS), KEYS)


class Request:
    """Note what happens to the request."""

    def __init__(self, story: list[str], name: str, abandoned: bool = False) -> None:
        self.story, self.name, self.abandoned = story, name, abandoned

    def is_abandoned(self) -> bool:
        return self.abandoned

    def begin(self) -> None:
        self.story.append(f"{self.name} begins")

    def refuse(self) -> None:
        self.story.append(f"{self.name} is refused")


def test_one_read_begins_in_each_pass_of_the_loop() -> None:
    """Queued reads begin in their order, and other work runs between two of them."""

    async def story() -> list[str]:
        log: list[str] = []
        read_admission = ReadAdmission()
        for name in "abc":
            read_admission.enqueue(Request(log, name))
        for n in range(3):
            await asyncio.sleep(0)
            log.append(f"pass {n}")
        return log

    assert asyncio.run(story()) == ["a begins", "pass 0", "b begins", "pass 1", "c begins", "pass 2"]


def test_abandoned_read_never_begins() -> None:
    """The next read begins in place of one whose client has disconnected."""

    async def story() -> list[str]:
        log: list[str] = []
        read_admission = ReadAdmission()
        for name, abandoned in (("a", True), ("b", True), ("c", False)):
            read_admission.enqueue(Request(log, name, abandoned))
        await asyncio.sleep(0)
        return log

    assert asyncio.run(story()) == ["c begins"]


def test_read_that_waited_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the event loop was blocked, the last few queued reads begin and the others are refused."""

    async def story() -> list[str]:
        log: list[str] = []
        read_admission = ReadAdmission()
        for n in range(WAITING_FEW + 2):
            read_admission.enqueue(Request(log, str(n)))
        later = running_seconds() + 1.1 * BACKLOG_SECONDS
        monkeypatch.setattr(admission, "running_seconds", lambda: later)  # as if the loop had been blocked
        while len(log) < WAITING_FEW + 2:
            await asyncio.sleep(0)
        return log

    assert asyncio.run(story()) == [
        "0 is refused",
        "1 is refused",
        *(f"{n + 2} begins" for n in range(WAITING_FEW)),
    ]


def test_read_that_waited_for_a_core_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that wait because the process got no core begin, however many they are."""

    async def story() -> list[str]:
        log: list[str] = []
        read_admission = ReadAdmission()
        now = running_seconds()
        monkeypatch.setattr(admission, "running_seconds", lambda: now)
        for n in range(WAITING_FEW + 2):
            read_admission.enqueue(Request(log, str(n)))
        loop = asyncio.get_running_loop()
        later = loop.time() + 1.1 * BACKLOG_SECONDS
        monkeypatch.setattr(loop, "time", lambda: later)
        while len(log) < WAITING_FEW + 2:
            await asyncio.sleep(0)
        return log

    assert asyncio.run(story()) == [f"{n} begins" for n in range(WAITING_FEW + 2)]


def test_long_reads_continue_one_at_a_time() -> None:
    """Queued reads begin between the steps of long reads, and do not starve them."""

    async def story() -> list[str]:
        log: list[str] = []
        read_admission = ReadAdmission()

        async def long_read(name: str) -> None:
            for _ in range(2):
                await read_admission.yield_slot()
                log.append(f"{name} goes on")

        reads = asyncio.gather(long_read("x"), long_read("y"))
        await asyncio.sleep(0)
        for n in range(6):
            read_admission.enqueue(Request(log, str(n)))
        await reads
        return log

    log = asyncio.run(story())
    assert [line for line in log if "goes" in line] == ["x goes on", "y goes on"] * 2
    first, second = log.index("x goes on"), log.index("y goes on")
    assert (first, second - first) <= (3, 4)
    assert log.index("5 begins") < log.index("y goes on", second + 1)


def test_cancelled_long_read_frees_its_slot() -> None:
    """The next long read continues in place of a cancelled one."""

    async def run() -> None:
        read_admission = ReadAdmission()
        first, second = (asyncio.create_task(read_admission.yield_slot()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait_for(second, 5)
        assert first.cancelled()

    asyncio.run(run())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("admission")
    token = directory / "token"
    token.write_text("between-nodes")
    with served(directory, settings={"internal_token_path": str(token)}) as running:
        running.fill(500)
        yield running


class Storm:
    """Run clients that each repeat a large request."""

    def __init__(self, node: Served, clients: int, request: bytes = HEAVY) -> None:
        self._request = request
        self.statuses: Counter[int] = Counter()
        self.refusals: list[bytes] = []
        self._node, self._clients = node, clients
        self._over = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join(60)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(self._clients)))

    async def _client(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._node.port)
        try:
            while not self._over:
                writer.write(self._request)
                head = await reader.readuntil(b"\r\n\r\n")
                status, headers, _ = parsed(head)
                body = await reader.readexactly(int(headers["content-length"]))
                self.statuses[status] += 1
                if status != 200:
                    self.refusals.append(head + body)
                    await asyncio.sleep(0.005)
        finally:
            writer.transport.abort()


def response_to(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        return parsed(read_answers(connection, 1))


def test_overloaded_node_refuses_some_reads_and_answers_probes(node: Served) -> None:
    """An overloaded node answers some reads and refuses the others with 429. It answers all probes, metrics, heartbeats and point
    reads, and everything again once the load is over."""
    always = [
        *(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in (b"/livez", b"/readyz", b"/metrics")),
        b"GET %b HTTP/1.1\r\nHost: x\r\n%b: between-nodes\r\n\r\n"
        % (HEARTBEAT.encode(), NODE_HEADER.encode()),
        b"GET /v1/keys/key-000001 HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    with Storm(node, 64) as storm:
        eventually("the node refuses reads", lambda: storm.statuses[429] > 50, 30)
        before = storm.statuses[200]
        for request in always * 5:
            assert response_to(node.port, request)[0] == 200, request
        eventually("the node answers other reads", lambda: storm.statuses[200] > before + 20, 30)

    assert set(storm.statuses) == {200, 429}
    _, headers, body = parsed(storm.refusals[-1])
    problem = json.loads(body)
    assert (headers["retry-after"], headers["content-type"]) == ("1", "application/problem+json")
    assert (problem["status"], problem["reason"], problem["retryAfterMs"]) == (429, "overloaded", 1000)
    assert headers["qt-served-by"] == "users-r1-0"
    assert node.node.counters.failures["overloaded"] == storm.statuses[429]
    for _ in range(20):
        assert response_to(node.port, HEAVY)[0] == 200


@pytest.mark.parametrize(
    "long",
    [
        b"GET /v1/scan?limit=10000&deadline-ms=20000 HTTP/1.1\r\nHost: x\r\n\r\n",
        MANY % (b"?deadline-ms=20000", len(VERY_MANY_KEYS), VERY_MANY_KEYS),
    ],
    ids=["page", "multi-get"],
)
def test_too_many_long_reads_are_refused(tmp_path: Path, long: bytes) -> None:
    """The node answers as many long reads as it can in time and refuses the others. Short reads are answered meanwhile."""
    with served(tmp_path, partitions=1) as node:
        node.fill(3_000)
        with Storm(node, 48, long) as storm:
            eventually("the node refuses reads", lambda: storm.statuses[429] > 50, 60)
            before = storm.statuses[200]
            assert response_to(node.port, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 200
            eventually("a short read is answered", lambda: response_to(node.port, HEAVY)[0] == 200)
            eventually("the node answers other reads", lambda: storm.statuses[200] > before + 5, 60)
        assert set(storm.statuses) == {200, 429}
        eventually("the node admits a long read again", lambda: response_to(node.port, long)[0] == 200)


def behind(node: Served, others: int, request: bytes) -> socket.socket:
    """Return a connection whose request arrives behind `others` large requests."""
    connections = [socket.create_connection(("127.0.0.1", node.port), timeout=20) for _ in range(others + 1)]
    eventually("all are connected", lambda: node.on_loop(lambda: len(node.protocol.open)) >= others + 1)

    def send() -> None:  # on the loop, which then finds all requests together
        for connection in connections[:-1]:
            connection.sendall(HEAVY)
        connections[-1].sendall(request)

    node.on_loop(send)
    for connection in connections[:-1]:
        assert parsed(read_answers(connection, 1))[0] == 200
        connection.close()
    return connections[-1]


def test_read_whose_deadline_passed_in_the_queue_is_not_begun(node: Served) -> None:
    """A deadline counts from the arrival of the request, not from its admission."""
    with behind(node, 6, MANY % (b"?deadline-ms=1", len(KEYS), KEYS)) as connection:
        status, _, body = parsed(read_answers(connection, 1))

    problem = json.loads(body)
    assert (status, problem["reason"]) == (504, "deadline_exceeded")
    assert problem["detail"] == "the request waited for longer than it had time"


@pytest.mark.parametrize(
    ("request_", "keeps"),
    [
        (HEAVY, True),
        (b"HEAD /v1/scan HTTP/1.1\r\nHost: x\r\n\r\n", True),
        (b"GET /v1/scan HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", False),
        (b"GET /v1/scan HTTP/1.0\r\n\r\n", False),
        (HEAVY[:-1], True),
    ],
    ids=["post", "head", "close", "http 1.0", "half of a body"],
)
def test_refusal_is_well_formed_http(
    node: Served, monkeypatch: pytest.MonkeyPatch, request_: bytes, keeps: bool
) -> None:
    """A refusal has a body if the method allows one, and the connection stays open if the client wants it."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=10) as connection:
        with monkeypatch.context() as patch:
            patch.setattr("queryable_app.policy.overload.Backlog.admits", lambda *_: False)
            connection.sendall(request_)
            answer = b""
            while not answer.endswith((b"}", b"\r\n\r\n")):
                answer += connection.recv(1 << 16)
        status, headers, body = parsed(answer)
        assert (status, headers.get("connection")) == (429, None if keeps else "close")
        assert len(body) == (0 if request_.startswith(b"HEAD") else int(headers["content-length"]))
        if keeps:
            rest = b"}" if request_ == HEAVY[:-1] else b""
            connection.sendall(rest + b"GET /v1/count HTTP/1.1\r\nHost: x\r\n\r\n")
            assert parsed(read_answers(connection, 1))[0] == 200
        else:
            assert connection.recv(1) == b""
