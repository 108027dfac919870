"""Test the client with real nodes over real sockets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from queryable_app.client import (
    AsyncQueryableTopic,
    Forbidden,
    InvalidRequest,
    QueryableTopic,
)
from queryable_app.wire.partitioners import partition_for
from tests.app.client.nodes import KEYS, PARTITIONS, filled
from tests.support.node_cluster import NodeCluster, node_cluster
from tests.support.served import served
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    """Run three nodes with one replica of each partition, which no test stops."""
    with filled(node_cluster(tmp_path_factory.mktemp("nodes"), 3, 1)) as started:
        yield started


@pytest.fixture
def users(nodes: NodeCluster) -> Iterator[QueryableTopic]:
    with QueryableTopic(nodes.addresses[0], deadline_ms=20_000) as client:
        yield client


def test_key_is_read_from_its_owner(nodes: NodeCluster, users: QueryableTopic) -> None:
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


def test_unusual_keys_are_found(nodes: NodeCluster, users: QueryableTopic) -> None:
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
    """Multi-get returns one row or None for each key, in the order of the keys, also for repeated and missing ones."""
    keys = [KEYS[7], "missing", *reversed(KEYS), KEYS[7]]

    rows = users.multi_get(keys)

    assert [row and row.key for row in rows] == [KEYS[7], None, *reversed(KEYS), KEYS[7]]
    assert users.multi_get([]) == []


def test_long_keys_are_read_in_several_requests(nodes: NodeCluster, users: QueryableTopic) -> None:
    """A multi-get of keys that are larger than one request's body together returns all rows."""
    keys = [f"long-{number:03d}-" + "k" * 32_768 for number in range(150)]
    nodes.put(keys[0].encode(), b"1")
    nodes.put(keys[149].encode(), b"2")

    rows = users.multi_get(keys, deadline_ms=60_000)

    assert [row and row.value for row in rows] == [1, *[None] * 148, 2]
    nodes.put(keys[0].encode(), None)
    nodes.put(keys[149].encode(), None)


def test_rows_are_in_key_order_over_pages(users: QueryableTopic) -> None:
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
    """The client counts the keys of all nodes."""
    assert users.count() == len(KEYS)
    assert users.count(approximate=True) >= len(KEYS)  # the estimate may include deleted keys


def test_status_has_every_node(nodes: NodeCluster, users: QueryableTopic) -> None:
    """The client returns the status of each node under its address."""
    statuses = users.status()

    assert {url: status and status["name"] for url, status in statuses.items()} == {
        url: f"users-r1-{ordinal}" for ordinal, url in enumerate(nodes.addresses)
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
    """A write to a view without writes raises Forbidden with the node's advice."""
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


def test_threads_share_a_client(nodes: NodeCluster, users: QueryableTopic) -> None:
    """Threads that share a client get their own rows."""
    with ThreadPoolExecutor(16) as pool:
        rows = list(pool.map(users.get, KEYS * 5))
    assert [row and row.value for row in rows] == list(range(len(KEYS))) * 5


def test_asyncio_client_offers_the_same_reads(nodes: NodeCluster) -> None:
    """Each request of the asyncio client works, also many at once."""

    async def read() -> None:
        async with AsyncQueryableTopic(nodes.addresses[2], deadline_ms=20_000) as users:
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


def test_keys_of_mixed_producers_are_found(tmp_path: Path) -> None:
    """If producers use several partitioners, any node searches all partitions, and the newest record is the result."""
    with node_cluster(tmp_path, 2, 1) as nodes:
        for where, value, timestamp_ms in ((0, b'"old"', 10), (1, b'"new"', 20), (2, b'"older"', 5)):
            (owner,) = nodes.placement.serving[where]
            nodes.nodes[owner].put(b"mixed", value, partition=where, timestamp_ms=timestamp_ms)
        eventually("every node notices both partitioners", lambda: nodes.algorithms() == {"scatter"})
        with QueryableTopic(nodes.addresses[0], deadline_ms=10_000) as users:
            mine = users.session()
            for reader in (users, mine):
                assert [reader.get("mixed").value for _ in range(4)] == ["new"] * 4  # type: ignore[union-attr]
                assert reader.get("missing") is None
                assert [row and row.value for row in reader.multi_get(["missing", "mixed"])] == [None, "new"]
            assert mine.seen == {0: 1, 1: 1, 2: 1}


def test_example_runs(nodes: NodeCluster) -> None:
    """The example program prints rows of the view."""
    example = Path(__file__).parents[3] / "examples" / "client.py"
    run = subprocess.run(
        [sys.executable, str(example), nodes.addresses[0]], capture_output=True, text=True, timeout=60
    )
    assert run.stderr == ""
    assert run.stdout.splitlines()[1].startswith("'key-000' is 0, from partition 1 of users-r1-")
    assert run.stdout.splitlines()[-1] == "[True, True, True, False]"
