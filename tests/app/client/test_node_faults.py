"""Test the client with real nodes that stop, hang or lag."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from queryable_app.client import (
    UNKNOWN,
    AsyncQueryableTopic,
    DeadlineExceeded,
    NotAvailable,
    NotFreshEnough,
    QueryableTopic,
    Row,
    Unknown,
    Unreachable,
)
from queryable_app.platform.clock import monotonic_ms
from queryable_app.wire.partitioners import partition_for
from tests.app.client.nodes import KEYS, PARTITIONS, behind, filled, hung
from tests.support.node_cluster import node_cluster


def test_stopped_node_fails_no_read(tmp_path: Path) -> None:
    """Reads of all kinds use the remaining replicas when a node stops, also a scan that has begun."""
    with (
        filled(node_cluster(tmp_path, 3, 2)) as nodes,
        QueryableTopic(nodes.addresses[1], deadline_ms=10_000) as users,
    ):
        assert users.count() == len(KEYS)
        rows = users.scan(page_rows=10)
        seen = [next(rows).key for _ in range(15)]
        nodes.stop(1)
        assert [row and row.value for row in map(users.get, KEYS)] == list(range(len(KEYS)))
        assert [row and row.value for row in users.multi_get(KEYS)] == list(range(len(KEYS)))
        assert seen + [row.key for row in rows] == KEYS
        assert users.count() == len(KEYS)


def test_partition_without_replicas_is_not_available(tmp_path: Path) -> None:
    """A key of a partition without replicas raises NotAvailable and is never None; other keys are read."""
    with (
        filled(node_cluster(tmp_path, 3, 1)) as nodes,
        QueryableTopic(nodes.addresses[0], deadline_ms=20_000) as users,
    ):
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


def test_partial_read_returns_the_available_rows(tmp_path: Path) -> None:
    """With partial=True, a result has its row, None for an absent key, or the reason why it is unknown."""
    with filled(node_cluster(tmp_path, 3, 1)) as nodes:
        nodes.stop(2)
        lost = {p for p in range(PARTITIONS) if nodes.placement.serving[p] == (2,)}
        keys = [*KEYS, *(f"missing-{n}" for n in range(20))]
        there = {key for key in keys if partition_for(key.encode(), "murmur2", PARTITIONS) not in lost}

        def check(found: Sequence[Row | Unknown | None], rows: list[Row], missing: frozenset[int]) -> None:
            assert {key for key, row in zip(keys, found, strict=True) if row is not UNKNOWN} == there
            assert {row.key for row in found if isinstance(row, Row)} == there & set(KEYS)
            assert [str(row.key) for row in rows] == sorted(there & set(KEYS))
            assert missing == lost

        with QueryableTopic(nodes.addresses[:2], deadline_ms=5_000) as users:
            with pytest.raises(NotAvailable):
                users.multi_get(keys)
            scan = users.scan(partial=True, page_rows=7)
            check(users.multi_get(keys, partial=True), list(scan), scan.missing)

        async def read() -> None:
            async with AsyncQueryableTopic(nodes.addresses[:2], deadline_ms=5_000) as users:
                scan = users.prefix("", partial=True, page_rows=7)
                check(await users.multi_get(keys, partial=True), [row async for row in scan], scan.missing)

        asyncio.run(read())


def test_hanging_node_costs_a_hedge(tmp_path: Path) -> None:
    """The client hedges to the second replica, and after a few hedges tries it first."""
    with (
        node_cluster(tmp_path, 2, 2) as nodes,
        hung(filled(nodes), 1),
        QueryableTopic(nodes.addresses[0], deadline_ms=20_000) as users,
    ):
        began = time.monotonic()
        assert [row and row.value for row in map(users.get, KEYS)] == list(range(len(KEYS)))
        assert time.monotonic() - began < 20  # one deadline for all reads together


def test_unused_port_is_unreachable() -> None:
    """A request to an unused port raises Unreachable with the address within the deadline."""
    began = time.monotonic()
    with (
        QueryableTopic("http://127.0.0.1:1", deadline_ms=300) as users,
        pytest.raises(Unreachable, match=":1"),
    ):
        users.get("a")
    assert time.monotonic() - began < 10


def test_asyncio_client_cancels_overtaken_attempts(tmp_path: Path) -> None:
    """An attempt that a hedge has overtaken is cancelled, and leaves no task."""

    async def read(url: str) -> None:
        async with AsyncQueryableTopic(url, deadline_ms=20_000) as users:
            rows = await asyncio.gather(*(users.get(key) for key in KEYS[:30]))
            assert [row and row.value for row in rows] == list(range(30))
            if cancelled := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(cancelled, timeout=10)
            assert len(asyncio.all_tasks()) == 1

    with node_cluster(tmp_path, 2, 2) as nodes, hung(filled(nodes), 1):
        asyncio.run(read(nodes.addresses[0]))


def test_session_never_goes_back(tmp_path: Path) -> None:
    """If the fresher replica stops, a session refuses the older value; without a session it is the result."""
    with node_cluster(tmp_path, 2, 2) as nodes:
        key, first, second = behind(nodes)
        with QueryableTopic(nodes.addresses, deadline_ms=20_000) as users:
            mine = users.session()
            assert mine.get(key).value == "new"  # type: ignore[union-attr]
            nodes.stop(nodes.nodes.index(first))
            assert users.get(key).value == "old"  # type: ignore[union-attr]
            for read in (
                lambda: mine.get(key, deadline_ms=1000),
                lambda: mine.multi_get([key], deadline_ms=1000),
                lambda: list(mine.scan(deadline_ms=1000)),
                lambda: users.session(mine.seen).get(key, deadline_ms=1000),
            ):
                # On a busy machine the deadline may pass before the node has answered that it is not fresh enough.
                with pytest.raises((NotFreshEnough, DeadlineExceeded)):
                    read()
            partition = partition_for(key.encode(), "murmur2", PARTITIONS)
            second.put(key.encode(), b'"new"', partition=partition)
            assert mine.get(key).value == "new"  # type: ignore[union-attr]


def test_session_keeps_the_views_bound(tmp_path: Path) -> None:
    """A replica that has what the session has seen, and lags too far for the view, does not answer the session."""
    with node_cluster(tmp_path, 2, 2, read={"maxLagMs": 3_600_000}) as nodes:
        key, first, _ = behind(nodes)
        partition = partition_for(key.encode(), "murmur2", PARTITIONS)
        replica = first.node.replicas.by_partition[partition]
        fresh_as_of_ms, replica.fresh_as_of_ms = replica.fresh_as_of_ms, monotonic_ms() - 7_200_000
        with QueryableTopic(nodes.addresses, deadline_ms=20_000) as users:
            mine = users.session({partition: replica.position})
            assert users.get(key).value == "old"  # type: ignore[union-attr]
            with pytest.raises(NotFreshEnough):
                mine.get(key, deadline_ms=1000)
            replica.fresh_as_of_ms = fresh_as_of_ms
            assert mine.get(key).value == "new"  # type: ignore[union-attr]
