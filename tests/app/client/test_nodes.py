"""Test the client with real nodes over real sockets."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from queryable_app.client import (
    UNKNOWN,
    AsyncQueryableTopic,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    NotAvailable,
    NotFreshEnough,
    QueryableTopic,
    Row,
    Unknown,
    Unreachable,
)
from queryable_app.placement.assignment import Placement, initial_placement
from queryable_app.platform.clock import monotonic_ms
from queryable_app.wire.partitioners import partition_for
from tests.support.served import Served, served
from tests.support.waiting import eventually

PARTITIONS = 6
KEYS = [f"key-{n:03d}" for n in range(100)]


class Nodes:
    """Run the nodes of a view with six partitions in this process."""

    def __init__(self, directory: Path, nodes: int, replicas: int, hung: int = 0, **spec: Any) -> None:
        """The last `hung` addresses accept connections and never answer."""
        self.stack = ExitStack()
        listeners = [self.stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(nodes)]
        addresses = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
        self.placement: Placement = initial_placement("tests.users.r1", PARTITIONS, addresses, replicas)
        directory.mkdir(exist_ok=True)
        token = directory / "token"
        token.write_text("between-nodes")
        self._stops = [ExitStack() for _ in range(nodes - hung)]
        self.running = [
            stack.enter_context(
                served(
                    directory / f"node-{ordinal}",
                    ordinal=ordinal,
                    placement=self.placement,
                    listener=listeners[ordinal],
                    settings={"internal_token_path": str(token)},
                    **spec,
                )
            )
            for ordinal, stack in enumerate(self._stops)
        ]

    @property
    def urls(self) -> list[str]:
        return list(self.placement.addresses)

    def put(self, key: bytes, value: bytes | None) -> None:
        where = partition_for(key, "murmur2", PARTITIONS)
        for ordinal in self.placement.serving[where]:
            if ordinal < len(self.running):
                self.running[ordinal].put(key, value, partition=where)

    def fill(self) -> None:
        for number, key in enumerate(KEYS):
            self.put(key.encode(), b"%d" % number)

    def stop(self, ordinal: int) -> None:
        self._stops[ordinal].close()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        for stack in self._stops:
            stack.close()
        self.stack.close()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Run three nodes with one replica of each partition, which no test stops."""
    with Nodes(tmp_path_factory.mktemp("nodes"), 3, 1) as started:
        started.fill()
        yield started


@pytest.fixture
def users(nodes: Nodes) -> Iterator[QueryableTopic]:
    with QueryableTopic(nodes.urls[0], deadline_ms=20_000) as client:
        yield client


def test_key_is_read_from_its_owner(nodes: Nodes, users: QueryableTopic) -> None:
    """Whichever node the client was given, the row is from the owner, with all fields of the response."""
    for number, key in enumerate(KEYS):
        row = users.get(key)
        assert row is not None
        partition = partition_for(key.encode(), "murmur2", PARTITIONS)
        owner = nodes.placement.serving[partition][0]
        assert (row.key, row.value, row.partition) == (key, number, partition)
        assert (row.served_by, row.role, row.epoch) == (f"users-r1-{owner}", "active", 1)
        assert row.position.startswith(f"{partition}:")
        assert (row.lag_records, row.timestamp is None) == (0, False)


def test_missing_key_is_none(users: QueryableTopic) -> None:
    """A missing key gives None and no exception."""
    assert users.get("missing") is None


def test_unusual_keys_are_found(nodes: Nodes, users: QueryableTopic) -> None:
    """Keys that are no UTF-8, dots, slashes, empty, or longer than a request line are found."""
    for key in (b"\xff/\x00", b".", b"..", b"a/../b?c#d%", b"", "🦊 x".encode(), b"k" * 100_000):
        nodes.put(key, b'{"k":1}')
        row = users.get(key)
        assert row is not None
        assert row.value == {"k": 1}
        if len(key) < 1000:
            assert users.get(key, raw=True).value == b'{"k":1}'  # type: ignore[union-attr]
        nodes.put(key, None)


def test_multi_get_keeps_the_order_of_keys(users: QueryableTopic) -> None:
    """The order also holds for repeated and missing keys."""
    keys = [KEYS[7], "missing", *reversed(KEYS), KEYS[7]]

    rows = users.multi_get(keys)

    assert [row and row.key for row in rows] == [KEYS[7], None, *reversed(KEYS), KEYS[7]]
    assert users.multi_get([]) == []


def test_rows_come_in_key_order_over_pages(users: QueryableTopic) -> None:
    """Scan, range and prefix return rows in key order, in both directions, up to a limit."""
    assert [row.key for row in users.scan(page_rows=7)] == KEYS
    assert [row.key for row in users.scan(page_rows=7, order="desc", limit=15)] == KEYS[::-1][:15]
    assert [row.key for row in users.range("key-010", "key-020")] == KEYS[10:20]
    assert [row.value for row in users.prefix("key-01", page_rows=3)] == list(range(10, 20))
    assert list(users.scan(limit=0)) == []


def test_scan_continues_from_a_cursor(users: QueryableTopic) -> None:
    """Another scan continues from the cursor of the first one."""
    rows = users.scan(page_rows=10)
    seen = [next(rows).key for _ in range(10)]

    assert seen + [row.key for row in users.scan(cursor=rows.cursor)] == KEYS


def test_count_covers_all_nodes(users: QueryableTopic) -> None:
    """The count is that of all nodes."""
    assert users.count() == len(KEYS)
    assert users.count(approximate=True) >= len(KEYS)  # deleted ones may be among them


def test_status_has_every_node(nodes: Nodes, users: QueryableTopic) -> None:
    """The status of each node is under its address."""
    statuses = users.status()

    assert {url: status and status["name"] for url, status in statuses.items()} == {
        url: f"users-r1-{ordinal}" for ordinal, url in enumerate(nodes.urls)
    }


def test_wrong_key_is_reported(users: QueryableTopic) -> None:
    """The client refuses a wrong key or option before it sends anything."""
    with pytest.raises(
        InvalidRequest, match=r"key: 5 is an int, and this view's keys are string .give a str"
    ):
        users.get(5)
    with pytest.raises(InvalidRequest, match=r"max_lag: is no option of a read .did you mean max_lag_ms"):
        users.get("a", max_lag=1)  # type: ignore[call-arg]


def test_write_to_a_view_without_writes_is_forbidden(users: QueryableTopic) -> None:
    """The exception is Forbidden, with the node's advice."""
    with pytest.raises(Forbidden, match=r"read\.ingest"):
        users.put("a", 1)


@pytest.mark.parametrize(
    ("key_format", "keys"),
    [
        ("long", [-5, 0, 2**63 - 1]),
        ("int", [-1, 7]),
        ("double", [-0.5, 3, 1e300, float("inf")]),
        ("uuid", [UUID(int=1), "123E4567-e89b-12d3-a456-426614174000"]),
        ("json", ['"a"', '{"id": 1}']),
        ("bytes", ["text", b"\xfe"]),
    ],
)
def test_keys_of_every_format_are_found(tmp_path: Path, key_format: str, keys: list[Any]) -> None:
    """A key is found as a Python value, and as the bytes that producers send."""
    with served(tmp_path, partitions=3, key={"format": key_format}) as node:
        codec = node.node.codec
        with QueryableTopic(node.url) as client:
            for n, key in enumerate(keys):
                record = key if isinstance(key, bytes) else codec.from_text(as_text(key))
                node.put(record, b"%d" % n)
                assert client.get(key).value == client.get(record).value == n  # type: ignore[union-attr]
                assert client.multi_get([key, record])[1].key == record  # type: ignore[union-attr]
            found = {row.value for row in client.scan(page_rows=1)}
            assert found == set(range(len(keys)))
            assert len(list(client.range(keys[0]))) >= 1


def as_text(key: object) -> str:
    return "Infinity" if key == float("inf") else str(key)


def test_a_dead_node_costs_nothing_but_its_connections(tmp_path: Path) -> None:
    """Reads of all kinds go on with the copies that are left, in a scan that had begun too."""
    with Nodes(tmp_path, 3, 2) as nodes:
        nodes.fill()
        with QueryableTopic(nodes.urls[1], deadline_ms=10_000) as users:
            assert users.count() == len(KEYS)
            rows = users.scan(page_rows=10)
            seen = [next(rows).key for _ in range(15)]
            nodes.stop(1)
            assert [row and row.value for row in map(users.get, KEYS)] == list(range(len(KEYS)))
            assert [row and row.value for row in users.multi_get(KEYS)] == list(range(len(KEYS)))
            assert seen + [row.key for row in rows] == KEYS
            assert users.count() == len(KEYS)


def test_a_partition_without_copies_is_not_a_missing_key(tmp_path: Path) -> None:
    """NotAvailable, never None; the others are read."""
    with Nodes(tmp_path, 3, 1) as nodes:
        nodes.fill()
        with QueryableTopic(nodes.urls[0], deadline_ms=20_000) as users:
            users.get(KEYS[0])
            nodes.stop(2)
            lost = [p for p in range(PARTITIONS) if nodes.placement.serving[p] == (2,)]
            for key in KEYS[:20]:
                if partition_for(key.encode(), "murmur2", PARTITIONS) in lost:
                    with pytest.raises(NotAvailable):
                        users.get(key, deadline_ms=500)
                else:
                    assert users.get(key) is not None
            with pytest.raises(NotAvailable) as caught:
                list(users.scan(deadline_ms=3000))
            assert list(caught.value.missing) == lost


def test_a_part_is_read_where_that_is_enough(tmp_path: Path) -> None:
    """With partial=True, a result has its row, None for an absent key, or the reason why it is unknown."""
    with Nodes(tmp_path, 3, 1) as nodes:
        nodes.fill()
        nodes.stop(2)
        lost = {p for p in range(PARTITIONS) if nodes.placement.serving[p] == (2,)}
        keys = [*KEYS, *(f"missing-{n}" for n in range(20))]
        there = {key for key in keys if partition_for(key.encode(), "murmur2", PARTITIONS) not in lost}

        def check(found: Sequence[Row | Unknown | None], rows: list[Row], missing: frozenset[int]) -> None:
            assert {key for key, row in zip(keys, found, strict=True) if row is not UNKNOWN} == there
            assert {row.key for row in found if isinstance(row, Row)} == there & set(KEYS)
            assert [str(row.key) for row in rows] == sorted(there & set(KEYS))
            assert missing == lost

        with QueryableTopic(nodes.urls[:2], deadline_ms=5_000) as users:
            with pytest.raises(NotAvailable):
                users.multi_get(keys)
            scan = users.scan(partial=True, page_rows=7)
            check(users.multi_get(keys, partial=True), list(scan), scan.missing)

        async def read() -> None:
            async with AsyncQueryableTopic(nodes.urls[:2], deadline_ms=5_000) as users:
                scan = users.prefix("", partial=True, page_rows=7)
                check(await users.multi_get(keys, partial=True), [row async for row in scan], scan.missing)

        asyncio.run(read())


def test_hanging_node_costs_a_hedge(tmp_path: Path) -> None:
    """The client hedges to the second replica, and after a few hedges tries it first."""
    with Nodes(tmp_path, 2, 2, hung=1) as nodes:
        nodes.fill()
        with QueryableTopic(nodes.urls[0], deadline_ms=20_000) as users:
            began = time.monotonic()
            assert [row and row.value for row in map(users.get, KEYS)] == list(range(len(KEYS)))
            assert time.monotonic() - began < 20  # all of them, where one deadline alone is that


def test_unused_port_is_unreachable() -> None:
    """The exception has the address, and is raised within the deadline."""
    began = time.monotonic()
    with (
        QueryableTopic("http://127.0.0.1:1", deadline_ms=300) as users,
        pytest.raises(Unreachable, match=":1"),
    ):
        users.get("a")
    assert time.monotonic() - began < 10


def test_threads_share_a_client(nodes: Nodes, users: QueryableTopic) -> None:
    """Each thread gets its own rows."""
    with ThreadPoolExecutor(16) as pool:
        rows = list(pool.map(users.get, KEYS * 5))
    assert [row and row.value for row in rows] == list(range(len(KEYS))) * 5


def test_asyncio_client_offers_the_same_reads(nodes: Nodes) -> None:
    """Each request of the asyncio client works, also many at once."""

    async def read() -> None:
        async with AsyncQueryableTopic(nodes.urls[2], deadline_ms=20_000) as users:
            rows = await asyncio.gather(*(users.get(key) for key in KEYS))
            assert [row and row.value for row in rows] == list(range(len(KEYS)))
            assert await users.get("missing") is None
            assert [row and row.key for row in await users.multi_get(KEYS[::-1])] == KEYS[::-1]
            assert [row.key async for row in users.scan(page_rows=9)] == KEYS
            assert [row.key async for row in users.range("key-010", "key-012")] == KEYS[10:12]
            assert [row.key async for row in users.prefix("key-00")] == KEYS[:10]
            assert await users.count() == len(KEYS)
            assert len(await users.status()) == 3
            mine = users.session()
            assert (await mine.get(KEYS[0])).value == 0  # type: ignore[union-attr]
            with pytest.raises(Forbidden):
                await users.put("a", 1)
            with pytest.raises(Forbidden):
                await users.delete("a")

    asyncio.run(read())


def test_asyncio_client_cancels_overtaken_attempts(tmp_path: Path) -> None:
    """An attempt that a hedge has overtaken is cancelled, and leaves no task."""

    async def read(url: str) -> None:
        async with AsyncQueryableTopic(url, deadline_ms=20_000) as users:
            rows = await asyncio.gather(*(users.get(key) for key in KEYS[:30]))
            assert [row and row.value for row in rows] == list(range(30))
            assert len(asyncio.all_tasks()) == 1

    with Nodes(tmp_path, 2, 2, hung=1) as nodes:
        nodes.fill()
        asyncio.run(read(nodes.urls[0]))


def behind(nodes: Nodes) -> tuple[str, Served, Served]:
    """Return a key whose second replica lags one record behind the first."""
    key = KEYS[0]
    where = partition_for(key.encode(), "murmur2", PARTITIONS)
    first, second = (nodes.running[ordinal] for ordinal in nodes.placement.serving[where])
    second.put(key.encode(), b'"old"', partition=where)
    first.put(key.encode(), b'"old"', partition=where)
    first.put(key.encode(), b'"new"', partition=where)
    return key, first, second


def test_session_never_goes_back(tmp_path: Path) -> None:
    """If the fresher replica stops, a session refuses the older value; without a session it is the result."""
    with Nodes(tmp_path, 2, 2) as nodes:
        key, first, second = behind(nodes)
        with QueryableTopic(nodes.urls, deadline_ms=20_000) as users:
            mine = users.session()
            assert mine.get(key).value == "new"  # type: ignore[union-attr]
            nodes.stop(nodes.running.index(first))
            assert users.get(key).value == "old"  # type: ignore[union-attr]
            with pytest.raises(NotFreshEnough):
                mine.get(key, deadline_ms=1000)
            for read in (
                lambda: mine.multi_get([key], deadline_ms=1000),
                lambda: list(mine.scan(deadline_ms=1000)),
            ):
                with pytest.raises((NotFreshEnough, DeadlineExceeded)):
                    read()
            with pytest.raises(NotFreshEnough):
                users.session(mine.seen).get(key, deadline_ms=1000)
            partition = partition_for(key.encode(), "murmur2", PARTITIONS)
            second.put(key.encode(), b'"new"', partition=partition)
            assert mine.get(key).value == "new"  # type: ignore[union-attr]


def test_session_keeps_the_views_bound(tmp_path: Path) -> None:
    """A replica that has what the session has seen, and lags too far for the view, does not answer the session."""
    with Nodes(tmp_path, 2, 2, read={"maxLagMs": 3_600_000}) as nodes:
        key, first, _ = behind(nodes)
        partition = partition_for(key.encode(), "murmur2", PARTITIONS)
        replica = first.node.replicas.by_partition[partition]
        fresh_as_of_ms, replica.fresh_as_of_ms = replica.fresh_as_of_ms, monotonic_ms() - 7_200_000
        with QueryableTopic(nodes.urls, deadline_ms=20_000) as users:
            mine = users.session({partition: replica.position})
            assert users.get(key).value == "old"  # type: ignore[union-attr]
            with pytest.raises(NotFreshEnough):
                mine.get(key, deadline_ms=1000)
            replica.fresh_as_of_ms = fresh_as_of_ms
            assert mine.get(key).value == "new"  # type: ignore[union-attr]


def test_keys_of_mixed_producers_are_found(tmp_path: Path) -> None:
    """If producers use several partitioners, any node searches all partitions, and the newest record is the result."""
    with Nodes(tmp_path, 2, 1) as nodes:
        for where, value, timestamp_ms in ((0, b'"old"', 10), (1, b'"new"', 20), (2, b'"older"', 5)):
            (owner,) = nodes.placement.serving[where]
            nodes.running[owner].put(b"mixed", value, partition=where, timestamp_ms=timestamp_ms)
        for node in nodes.running:
            eventually("it knows", lambda n=node: n.node.replicas.partitioning.algorithm == "scatter")  # type: ignore[misc]
        with QueryableTopic(nodes.urls[0], deadline_ms=10_000) as users:
            mine = users.session()
            for reader in (users, mine):
                assert [reader.get("mixed").value for _ in range(4)] == ["new"] * 4  # type: ignore[union-attr]
                assert reader.get("missing") is None
                assert [row and row.value for row in reader.multi_get(["missing", "mixed"])] == [None, "new"]
            assert mine.seen == {0: 1, 1: 1, 2: 1}


def test_example_runs(nodes: Nodes) -> None:
    """The example program prints rows of the view."""
    example = Path(__file__).parents[3] / "examples" / "client.py"
    run = subprocess.run(
        [sys.executable, str(example), nodes.urls[0]], capture_output=True, text=True, timeout=60
    )
    assert run.stderr == ""
    assert run.stdout.splitlines()[1].startswith("'key-000' is 0, from partition 1 of users-r1-")
    assert run.stdout.splitlines()[-1] == "[True, True, True, False]"
