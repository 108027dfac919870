"""Copies that are placed elsewhere, and come back: who still reads them, and who has their directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queryable_app.errors import Failure, Reason
from queryable_app.serve.reads.scans import BATCH_ROWS, Bounds, rows_here
from queryable_app.wire.disk_format import CopyState, Row, encode_row
from tests.support.following import WITHOUT_1, node_running, path_of, placed
from tests.support.node import put, slice_payload
from tests.support.waiting import until


def test_a_scan_that_has_begun_ends_although_its_copy_leaves(tmp_path: Path) -> None:
    """Every row arrives, and only then is the store deleted."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            copy = node.copies.by_partition[1]
            rows = [(b"key-%06d" % n, encode_row(Row(n, 1, 0, b"1"))) for n in range(3 * BATCH_ROWS)]
            copy.apply(rows, CopyState(len(rows), True))
            scan = rows_here([copy], Bounds(), node.turns.pause)
            seen = len(await anext(scan))

            node.holdings.follow(WITHOUT_1)
            await asyncio.sleep(0.2)  # longer than it would linger
            assert path_of(node, 1).exists()
            async for batch in scan:
                seen += len(batch)

            assert seen == len(rows)
            await until("the store is deleted", lambda: not path_of(node, 1).exists())

    asyncio.run(run())


def test_a_scan_that_outlives_its_copy_fails_with_words(tmp_path: Path) -> None:
    """A copy whose time is over refuses the next step as not available; nothing breaks."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            copy = node.copies.by_partition[1]
            rows = [(b"key-%06d" % n, encode_row(Row(n, 1, 0, b"1"))) for n in range(3 * BATCH_ROWS)]
            copy.apply(rows, CopyState(len(rows), True))
            scan = rows_here([copy], Bounds(), node.turns.pause)
            await anext(scan)

            store = copy.leave("has moved to other nodes")
            assert store is not None
            store.close()  # under the iterator

            with pytest.raises(Failure) as refused:
                await anext(scan)
            assert refused.value.reason is Reason.NOT_AVAILABLE
            assert not store.in_use

    asyncio.run(run())


def test_who_waits_for_a_position_of_a_copy_that_leaves_is_sent_on_at_once(tmp_path: Path) -> None:
    """Another node may have it: nobody waits for the deadline here."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            loop = asyncio.get_running_loop()
            waiting = asyncio.create_task(node.copies.wait_for(1, 10, loop.time() + 30))
            await asyncio.sleep(0)
            node.holdings.follow(WITHOUT_1)
            async with asyncio.timeout(1):
                assert await waiting is False
                assert await node.copies.wait_for(1, 10, loop.time() + 30) is False

    asyncio.run(run())


def test_a_copy_that_comes_back_is_as_it_was(tmp_path: Path) -> None:
    """Placed here again before it is deleted, it has its rows, and takes slices from the next start on alone."""

    async def run() -> None:
        async with node_running(tmp_path, linger_seconds=5) as node:
            node.slices.apply(slice_payload(put(4, b"a", b"1"), partition=1))
            node.holdings.follow(WITHOUT_1)
            node.slices.apply(slice_payload(put(5, b"b", b"2"), partition=1))  # passes it by
            node.holdings.follow(placed(3, [[0], [0], [0]]))

            copy = node.copies.by_partition[1]
            node.slices.apply(slice_payload(put(6, b"c", b"3"), partition=1))  # would leave a hole at 5
            assert (copy.opened, copy.position) == (True, 5)
            assert [key for key, _ in copy.store.rows()] == [b"a"]
            assert node.copies.leaving == {}

    asyncio.run(run())


def test_a_copy_that_comes_back_does_not_answer_with_what_is_old(tmp_path: Path) -> None:
    """It is complete when it has reached an end that was asked for since then, for nothing has come in meanwhile."""

    async def run() -> None:
        async with node_running(tmp_path, linger_seconds=5) as node:
            copy = node.copies.by_partition[1]
            copy.sample(as_of_ms=1, end=5)
            node.slices.apply(slice_payload(put(4, b"a", b"1"), partition=1))
            complete = [copy.complete]
            node.holdings.follow(WITHOUT_1)
            node.holdings.follow(placed(3, [[0], [0], [0]]))
            complete.append(copy.complete)
            copy.sample(as_of_ms=2, end=7)
            complete.append(copy.complete)
            copy.takes_slices = True
            node.slices.apply(slice_payload(put(5, b"b", b"2"), put(6, b"c", b"3"), partition=1))
            complete.append(copy.complete)
            assert complete == [True, False, False, True]

    asyncio.run(run())


def test_a_copy_that_is_taken_up_while_its_directory_is_deleted_begins_anew(tmp_path: Path) -> None:
    """However often it comes and goes in between: in the end there is one empty store, open."""

    async def run() -> None:
        async with node_running(tmp_path, linger_seconds=0) as node:
            node.slices.apply(slice_payload(put(4, b"a", b"1"), partition=1))
            for epoch in range(2, 62):
                held = epoch % 2
                node.holdings.follow(placed(epoch, [[0], [0 if held else 1], [0]]))
                for _ in range(epoch % 7):
                    await asyncio.sleep(0.0005 * (epoch % 3))
            await until("it is open", lambda: node.copies.by_partition[1].opened)
            copy = node.copies.by_partition[1]
            assert copy.failed is None
            assert {path.name for path in path_of(node, 1).iterdir()} >= {"CURRENT", "LOCK"}
            copy.takes_slices = True
            node.slices.apply(slice_payload(put(9, b"z", b"1"), partition=1))
            assert copy.store.get(b"z") is not None
            assert node.holdings._ending == {}

    asyncio.run(run())


def test_a_directory_has_one_user_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While someone still reads the store that has left, nothing is deleted or opened in its place, whatever comes."""
    monkeypatch.setattr("queryable_app.serve.replication.assigned_replicas._LINGER_SECONDS_MAX", 0)

    async def run() -> None:
        async with node_running(tmp_path, linger_seconds=0) as node:
            node.slices.apply(slice_payload(put(4, b"a", b"1"), put(5, b"b", b"2"), partition=1))
            left = node.copies.by_partition[1]
            reading = left.store.rows()
            next(reading)
            node.holdings.follow(WITHOUT_1)
            await until("it has left", lambda: not left.opened)
            for epoch in (3, 5):
                node.holdings.follow(placed(epoch, [[0], [0], [0]]))
                node.holdings.follow(placed(epoch + 1, [[0], [1], [0]]))
            node.holdings.follow(placed(7, [[0], [0], [0]]))
            await asyncio.sleep(0.2)
            assert path_of(node, 1).exists()
            assert not node.copies.by_partition[1].opened
            assert len(list(reading)) == 1

            copy = node.copies.by_partition[1]
            await until("the new one is open", lambda: copy.opened or copy.failed)
            assert (copy.failed, copy.position) == (None, -1)

    asyncio.run(run())
