"""Test how an added replica gets its store: from a peer, which is played here, from the disk, or empty."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queryable_app.errors import Failure, Reason
from queryable_app.policy.freshness import Consistency, ReadOptions
from queryable_app.serve.api.status import readiness, status_json
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import Identity, ReplicaState
from tests.support.following import PARTITIONS, fill, node_running, other_of, path_of, placed
from tests.support.node import APPLICATION_ID
from tests.support.waiting import until

BOUNDED, ANY = ReadOptions(), ReadOptions(Consistency.ANY)


def test_replica_is_fetched_from_a_peer(tmp_path: Path) -> None:
    """A node refuses reads of a replica and stays ready while it fetches it, and ingest then starts at the fetched position."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [1], [0]]), other=100) as node:
            for partition in (0, 2):
                node.replicas.by_partition[partition].apply((), ReplicaState(0, True))
            node.assigned_replicas.follow(placed(2, [[0], [1], [0]], [[], [0], []]))
            await until("the other node is asked", lambda: other_of(node).fetched == [1])

            replica, reads = node.replicas.by_partition[1], Reads(node)
            for options in (BOUNDED, ANY):
                with pytest.raises(Failure, match="is being copied from another node") as refused:
                    _ = reads.readable_replica(1, options, {}, 0).store
                assert refused.value.reason is Reason.NOT_AVAILABLE
            assert node.replicas.partitions_to_ingest() == [0, 2]
            status = status_json(node)["partitions"][1]
            assert (status["role"], status["hydration"]) == ("hydrating", {"from": "peer"})
            assert status["absent"] == "is being copied from another node"
            assert (node.replicas.ready, readiness(node)["hydrating"]) == (True, 1)

            other_of(node).go_on.set()
            await until("it is open", lambda: replica.opened)
            assert (replica.position, replica.complete, replica.accepts_slices) == (100, False, False)
            assert node.replicas.partitions_to_ingest() == [0, 1, 2]
            assert status_json(node)["partitions"][1]["hydration"] == {"from": "topic"}

    asyncio.run(run())


def test_replica_begins_empty_if_no_peer_has_one(tmp_path: Path) -> None:
    """The topic hydrates it."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [1], [0]]), other=0) as node:
            other_of(node).go_on.set()
            node.assigned_replicas.follow(placed(2, [[0], [1], [0]], [[], [0], []]))
            await until("it is open", lambda: node.replicas.by_partition[1].opened)
            assert (node.replicas.by_partition[1].position, node.replicas.partitions_to_ingest()) == (
                -1,
                [0, 1, 2],
            )

    asyncio.run(run())


def test_fetch_ends_when_its_replica_is_removed(tmp_path: Path) -> None:
    """Nothing of the fetch stays on the disk."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [1], [0]]), other=100) as node:
            node.assigned_replicas.follow(placed(2, [[0], [1], [0]], [[], [0], []]))
            await until("the other node is asked", lambda: other_of(node).fetched == [1])
            node.assigned_replicas.follow(placed(3, [[0], [1], [0]]))
            await until(
                "it has ended",
                lambda: not node.assigned_replicas._removals and not node.assigned_replicas._builds,
            )
            assert not path_of(node, 1).exists()
            assert node.replicas.removing == {}

    asyncio.run(run())


def test_wiped_node_fetches_replicas_from_peers(tmp_path: Path) -> None:
    """At the start an empty store is replaced by a peer's replica, and one with rows is not."""

    async def run() -> None:
        both = placed(1, [[0, 1], [1, 0], [0, 1]])
        async with node_running(tmp_path, both, start=False) as node:
            fill_at = path_of(node, 2)
        fill(fill_at, 2, 5)
        async with node_running(tmp_path, both, other=100) as node:
            other_of(node).go_on.set()
            await until("both are there", lambda: len(node.replicas.partitions_to_ingest()) == PARTITIONS)
            assert sorted(other_of(node).fetched) == [0, 1]
            assert [replica.position for _, replica in sorted(node.replicas.by_partition.items())] == [
                100,
                100,
                5,
            ]

    asyncio.run(run())


def damage(path: Path, current: str = "no manifest") -> None:
    (path / "CURRENT").write_text(current)


@pytest.mark.parametrize(
    "current", ["no manifest", "MANIFEST-999999\n"], ids=["corrupt", "a file is missing"]
)
def test_damaged_store_is_deleted_and_fetched_at_the_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], current: str
) -> None:
    """A damaged store is never served. The event has the reason, and a peer's replica takes its place."""

    async def run() -> None:
        both = placed(1, [[0, 1], [1], [1]])
        async with node_running(tmp_path, both, start=False) as node:
            damaged = path_of(node, 0)
        fill(damaged, 0, 5)
        damage(damaged, current)
        async with node_running(tmp_path, both, other=100) as node:
            other_of(node).go_on.set()
            replica = node.replicas.by_partition[0]
            await until("it is open", lambda: replica.opened)
            assert (replica.position, replica.failed) == (100, None)

    asyncio.run(run())
    assert '"event": "copy-thrown-away"' in capfd.readouterr().err


def test_damaged_store_that_no_peer_has_is_not_deleted(tmp_path: Path) -> None:
    """The replica fails with advice: the topic may no longer have its records."""

    async def run() -> None:
        async with node_running(tmp_path, start=False) as node:
            damaged = path_of(node, 0)
        fill(damaged, 0, 5)
        damage(damaged)
        async with node_running(tmp_path, other=100) as node:
            failed = node.replicas.by_partition[0].failed
            assert failed is not None
            assert "is damaged" in failed
            assert (damaged / "CURRENT").exists()
            assert other_of(node).fetched == []

    asyncio.run(run())


def test_store_that_cannot_be_opened_is_retried(tmp_path: Path) -> None:
    """While another process has the store, the replica reports it and the others continue. It opens once
    the store is free."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [1], [0]])) as node:
            holder = Store.open(path_of(node, 1), Identity(APPLICATION_ID, "users", 1), SharedMemory())
            node.assigned_replicas.follow(placed(2, [[0], [1], [0]], [[], [0], []]))
            replica = node.replicas.by_partition[1]
            await until(
                "it is tried again", lambda: replica.retrying is not None and replica.retrying.attempts > 1
            )
            assert replica.absent is not None
            assert replica.absent.startswith("cannot be opened at present")
            assert replica.failed is None
            assert node.replicas.partitions_to_ingest() == [0, 2]
            holder.close()
            await until("it is open", lambda: node.replicas.partitions_to_ingest() == [0, 1, 2])
            assert replica.retrying is None

    asyncio.run(run())


def test_pause_stops_ingest_and_fetches(tmp_path: Path) -> None:
    """A pause of hydrating or of all replicas stops their ingest. A fetch stops, and continues after the
    pause."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [0], [1]]), other=100) as node:
            node.replicas.by_partition[0].apply((), ReplicaState(0, True))
            node.assigned_replicas.follow(placed(2, [[0], [0], [1]], [[], [], [0]]))
            await until("the other node is asked", lambda: other_of(node).fetched == [2])

            node.assigned_replicas.pause("hydrating")
            assert node.replicas.partitions_to_ingest() == [0]
            replica = node.replicas.by_partition[2]
            await until("the fetch has stopped", lambda: not node.assigned_replicas._builds)
            assert replica.absent is not None
            assert replica.absent.startswith("waits for room on the disk")
            node.assigned_replicas.pause("all")
            assert node.replicas.partitions_to_ingest() == []

            node.assigned_replicas.pause("none")
            other_of(node).go_on.set()
            await until("it is there", lambda: replica.opened)
            assert node.replicas.partitions_to_ingest() == [0, 1, 2]

    asyncio.run(run())
