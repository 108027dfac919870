"""Test replicas that are removed and assigned again: their reads and their directories."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from queryable_app.errors import Failure, Reason
from queryable_app.serve.node import Node
from queryable_app.serve.reads.chosen_replica import ChosenReplica
from queryable_app.serve.reads.scans import BATCH_ROWS, Batches, Bounds, local_rows
from queryable_app.serve.replication import assigned_replicas
from queryable_app.serve.store.closing import wait_until_unused
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import ReplicaState, Row, encode_row
from tests.support.following import WITHOUT_1, node_running, path_of, placed
from tests.support.node import put, slice_payload
from tests.support.waiting import until

ROWS = 3 * BATCH_ROWS


def scan_of_partition_1(node: Node) -> Batches:
    """Fill the replica with three batches of rows, and return a scan of it."""
    replica = node.replicas.by_partition[1]
    replica.apply(
        [(b"key-%06d" % n, encode_row(Row(n, 1, 0, b"1"))) for n in range(ROWS)], ReplicaState(ROWS, True)
    )
    return local_rows([ChosenReplica.of(replica)], Bounds(), node.read_admission.yield_slot)


def test_running_scan_ends_before_its_replica_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row arrives, and only then is the store deleted."""

    async def run() -> None:
        waits_for_scan = asyncio.Event()

        async def noted(store: Store, seconds: float) -> None:
            waits_for_scan.set()
            await wait_until_unused(store, seconds)

        monkeypatch.setattr(assigned_replicas, "wait_until_unused", noted)
        async with node_running(tmp_path) as node:
            scan = scan_of_partition_1(node)
            seen = len(await anext(scan))

            node.assigned_replicas.follow(WITHOUT_1)
            await waits_for_scan.wait()
            assert path_of(node, 1).exists()
            async for batch in scan:
                seen += len(batch)

            assert seen == ROWS
            await until("the store is deleted", lambda: not path_of(node, 1).exists())

    asyncio.run(run())


def test_scan_of_a_closed_replica_is_not_available(tmp_path: Path) -> None:
    """The next step of the scan fails as not available."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            scan = scan_of_partition_1(node)
            await anext(scan)

            store = node.replicas.by_partition[1].detach_store("has moved to other nodes")
            assert store is not None
            store.close()  # under the iterator

            with pytest.raises(Failure) as refused:
                await anext(scan)
            assert refused.value.reason is Reason.NOT_AVAILABLE
            assert not store.in_use

    asyncio.run(run())


def test_removed_replica_ends_waits_for_a_position(tmp_path: Path) -> None:
    """Another node may have the position, so a waiting read does not wait for its deadline."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            loop = asyncio.get_running_loop()
            waiting = asyncio.create_task(node.replicas.wait_for(1, 10, loop.time() + 30))
            await asyncio.sleep(0)
            node.assigned_replicas.follow(WITHOUT_1)
            async with asyncio.timeout(1):
                assert await waiting is False
                assert await node.replicas.wait_for(1, 10, loop.time() + 30) is False

    asyncio.run(run())


def test_replica_assigned_again_has_its_rows(tmp_path: Path) -> None:
    """Assigned again before it is deleted, a replica has its rows, and accepts slices only from the next
    start on."""

    async def run() -> None:
        async with node_running(tmp_path, removal_delay_seconds=5) as node:
            node.slices.apply(slice_payload(put(4, b"a", b"1"), partition=1))
            node.assigned_replicas.follow(WITHOUT_1)
            node.slices.apply(slice_payload(put(5, b"b", b"2"), partition=1))  # passes it by
            node.assigned_replicas.follow(placed(3, [[0], [0], [0]]))

            replica = node.replicas.by_partition[1]
            node.slices.apply(slice_payload(put(6, b"c", b"3"), partition=1))  # would leave a hole at 5
            assert (replica.opened, replica.position) == (True, 5)
            assert [key for key, _ in replica.store.rows()] == [b"a"]
            assert node.replicas.removing == {}

    asyncio.run(run())


def test_replica_assigned_again_is_incomplete_until_it_catches_up(tmp_path: Path) -> None:
    """A replica that is assigned again is incomplete until it reaches an end offset that was looked up afterwards."""

    async def run() -> None:
        async with node_running(tmp_path, removal_delay_seconds=5) as node:
            replica = node.replicas.by_partition[1]
            replica.note_end_offset(as_of_ms=1, end_offset=5)
            node.slices.apply(slice_payload(put(4, b"a", b"1"), partition=1))
            complete = [replica.complete]
            node.assigned_replicas.follow(WITHOUT_1)
            node.assigned_replicas.follow(placed(3, [[0], [0], [0]]))
            complete.append(replica.complete)
            replica.note_end_offset(as_of_ms=2, end_offset=7)
            complete.append(replica.complete)
            replica.accepts_slices = True
            node.slices.apply(slice_payload(put(5, b"b", b"2"), put(6, b"c", b"3"), partition=1))
            complete.append(replica.complete)
            assert complete == [True, False, False, True]

    asyncio.run(run())


def test_replica_assigned_during_its_deletion_starts_over(tmp_path: Path) -> None:
    """However often the placement changes meanwhile, the node ends with one empty, open store."""

    async def run() -> None:
        async with node_running(tmp_path, removal_delay_seconds=0) as node:
            node.slices.apply(slice_payload(put(4, b"a", b"1"), partition=1))
            for epoch in range(2, 62):
                is_assigned = epoch % 2
                node.assigned_replicas.follow(placed(epoch, [[0], [0 if is_assigned else 1], [0]]))
                for _ in range(epoch % 7):
                    await asyncio.sleep(0.0005 * (epoch % 3))
            await until("it is open", lambda: node.replicas.by_partition[1].opened)
            replica = node.replicas.by_partition[1]
            assert replica.failed is None
            assert {path.name for path in path_of(node, 1).iterdir()} >= {"CURRENT", "LOCK"}
            replica.accepts_slices = True
            node.slices.apply(slice_payload(put(9, b"z", b"1"), partition=1))
            assert replica.store.get(b"z") is not None
            assert node.assigned_replicas._removals == {}

    asyncio.run(run())


def open_another_store(replica: Replica) -> None:
    store = replica.detach_store("has another one")
    assert store is not None
    replica.open(store)


@pytest.mark.parametrize("start_over", [Replica.rebuild, open_another_store])
def test_scan_of_a_replica_that_starts_over_is_not_available(
    tmp_path: Path, start_over: Callable[[Replica], None]
) -> None:
    """The next step of the scan fails as not available, since the replica lacks rows that it had when the scan chose it."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            scan = scan_of_partition_1(node)
            await anext(scan)

            start_over(node.replicas.by_partition[1])

            with pytest.raises(Failure, match="has started over during the read") as refused:
                await anext(scan)
            assert refused.value.reason is Reason.NOT_AVAILABLE

    asyncio.run(run())


def test_scan_goes_on_while_its_replica_leaves_and_comes_back(tmp_path: Path) -> None:
    """The scan ends with the rows that the replica had, although it missed records and is incomplete when it comes back."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            rows = [row async for row in scan_of_partition_1(node)]
            scan = scan_of_partition_1(node)
            begun = [await anext(scan)]

            node.assigned_replicas.follow(WITHOUT_1)
            node.assigned_replicas.follow(placed(3, [[0], [0], [0]]))

            assert not node.replicas.by_partition[1].complete
            assert begun + [row async for row in scan] == rows

    asyncio.run(run())


def test_directory_has_one_user_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a read still uses a removed store, its directory is neither deleted nor opened again."""
    monkeypatch.setattr("queryable_app.serve.replication.assigned_replicas._REMOVAL_SECONDS_MAX", 0)

    async def run() -> None:
        async with node_running(tmp_path, removal_delay_seconds=0) as node:
            node.slices.apply(slice_payload(put(4, b"a", b"1"), put(5, b"b", b"2"), partition=1))
            left = node.replicas.by_partition[1]
            reading = left.store.rows()
            next(reading)
            node.assigned_replicas.follow(WITHOUT_1)
            await until("it has left", lambda: not left.opened)
            for epoch in (3, 5):
                node.assigned_replicas.follow(placed(epoch, [[0], [0], [0]]))
                node.assigned_replicas.follow(placed(epoch + 1, [[0], [1], [0]]))
            node.assigned_replicas.follow(placed(7, [[0], [0], [0]]))
            await asyncio.sleep(0.2)
            assert path_of(node, 1).exists()
            assert not node.replicas.by_partition[1].opened
            assert len(list(reading)) == 1

            replica = node.replicas.by_partition[1]
            await until("the new one is open", lambda: replica.opened or replica.failed)
            assert (replica.failed, replica.position) == (None, -1)

    asyncio.run(run())
