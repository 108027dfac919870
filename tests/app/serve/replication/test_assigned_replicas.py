"""Test that a node follows placements, with real stores and sockets."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from queryable_app.contract import CONTROL_SOCKET, PLACEMENT_FILE
from queryable_app.placement.assignment import Placement
from queryable_app.serve.api.status import status_json
from queryable_app.serve.node import Node
from queryable_app.serve.replication.assigned_replicas import PlacementRefused
from queryable_app.serve.store import shared_memory
from tests.support.following import (
    HERE,
    PARTITIONS,
    WITHOUT_1,
    fill,
    node_running,
    open_node,
    path_of,
    placed,
)
from tests.support.node import APPLICATION_ID, put, slice_payload
from tests.support.waiting import until

HERE_ALL = placed(2, [[0], [0], [0]])


def placement_file(node: Node) -> Path:
    return Path(node.settings.data_dir, PLACEMENT_FILE)


def epoch_on_disk(node: Node) -> int:
    """0: there is no placement."""
    return Placement.from_json(placement_file(node).read_text()).epoch if placement_file(node).exists() else 0


def test_removed_replica_is_deleted_and_an_added_one_is_created(tmp_path: Path) -> None:
    """A removed replica stops answering at once and leaves the disk. An added one accepts slices."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [0], [1]])) as node:
            node.slices.apply(slice_payload(put(4, b"a", b"1"), partition=1))

            assert node.assigned_replicas.follow(placed(2, [[0], [1], [0]])) == 2

            assert sorted(node.replicas.by_partition) == [0, 2]
            await until("the new replica is open", lambda: node.replicas.by_partition[2].opened)
            await until("the old one is gone", lambda: not node.replicas.removing)
            assert (path_of(node, 1).exists(), path_of(node, 2).exists()) == (False, True)

    asyncio.run(run())


def test_lower_epoch_never_replaces_a_higher_one(tmp_path: Path) -> None:
    """Whatever the order in which placements arrive, the highest epoch stays, in use and on disk."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            assert node.assigned_replicas.follow(placed(7, [[0], [1], [1]])) == 7
            for late in (placed(6, [[0], [0], [0]]), placed(7, [[1], [1], [1]]), HERE):
                assert node.assigned_replicas.follow(late) == 7

            assert sorted(node.replicas.by_partition) == [0]
            assert epoch_on_disk(node) == 7

    asyncio.run(run())


@pytest.mark.parametrize(
    "wrong",
    [
        replace(WITHOUT_1, application_id="tests.users.r2"),
        replace(WITHOUT_1, serving=((0,), (0,))),
        replace(WITHOUT_1, hydrating=()),
        placed(2, [[0], [2], [0]]),
        placed(2, [[0], [-1], [0]]),
        placed(2, [[0], [1, 1], [0]]),
        placed(2, [[0], [1], [0]], [[0], [], []]),
        replace(WITHOUT_1, addresses=("ftp://a", "http://b")),
        replace(WITHOUT_1, epoch=2**53 + 1),
        replace(WITHOUT_1, addresses=("http://a",) * 1001),
    ],
    ids=[
        "another application",
        "fewer partitions",
        "not all of hydrating",
        "a node without an address",
        "a negative node",
        "a node twice",
        "a node that serves and hydrates",
        "an address that is none",
        "an epoch beyond all",
        "more nodes than there can be",
    ],
)
def test_refused_placement_changes_nothing(tmp_path: Path, wrong: Placement) -> None:
    """A refused placement has a reason, and changes neither replicas nor disk."""

    async def run() -> None:
        async with node_running(tmp_path, start=False) as node:
            with pytest.raises(PlacementRefused):
                node.assigned_replicas.follow(wrong)
            assert sorted(node.replicas.by_partition) == [0, 1, 2]
            assert epoch_on_disk(node) == 0

    asyncio.run(run())


def test_restarted_node_follows_the_placement_that_it_had_written(tmp_path: Path) -> None:
    """After a crash between writing a placement and following it, the next start follows it and deletes
    leftovers."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            data_dir = Path(node.settings.data_dir)
        incoming = data_dir / APPLICATION_ID / "p0001.incoming"
        incoming.mkdir()
        (data_dir / APPLICATION_ID / "people's own").mkdir()
        (data_dir / PLACEMENT_FILE).write_text(WITHOUT_1.to_json())

        async with node_running(tmp_path) as node:
            assert (node.placement.epoch, sorted(node.replicas.by_partition)) == (2, [0, 2])
            await until(
                "what is left over has gone", lambda: not (path_of(node, 1).exists() or incoming.exists())
            )
            assert (data_dir / APPLICATION_ID / "people's own").exists()

    asyncio.run(run())


def test_replica_survives_a_placement_that_the_machine_lost(tmp_path: Path) -> None:
    """A replica that the first placement removes and the newest assigns again is opened with its rows."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [1], [0]]), cleanup_delay_seconds=60) as node:
            fill(path_of(node, 1), 1, 7)
            node.assigned_replicas.follow(placed(2, [[0], [0], [0]]))
            replica = node.replicas.by_partition[1]
            await until("it is open", lambda: replica.opened)
            assert replica.position == 7

    asyncio.run(run())


@pytest.mark.parametrize("text", ["", "{", "{}", "[]"])
def test_lost_placement_is_fetched_again(tmp_path: Path, text: str) -> None:
    """If a power cut damaged the placement's file, the node starts with the first placement and gets the
    newest later."""

    placement_file(open_node(tmp_path, HERE)).write_text(text)

    async def run() -> None:
        async with node_running(tmp_path) as node:
            assert node.placement == HERE
            assert node.assigned_replicas.follow(WITHOUT_1) == 2

    asyncio.run(run())


def test_roles_follow_the_placement(tmp_path: Path) -> None:
    """Roles change without closing a store, and status has the epoch."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            stores = [replica.store for replica in node.replicas.by_partition.values()]

            node.assigned_replicas.follow(placed(2, [[0, 1], [1, 0], [1]], [[], [], [0]]))

            roles = [replica.role for replica in node.replicas.by_partition.values()]
            assert roles == ["active", "standby", "hydrating"]
            assert [replica.store for replica in node.replicas.by_partition.values()] == stores
            assert status_json(node)["epoch"] == 2

    asyncio.run(run())


def test_memtable_memory_is_shared_by_all_assigned_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store's memtable memory follows from the number of replicas of the node."""
    monkeypatch.setattr(shared_memory, "_MEMTABLE_BYTES_MAX", 1 << 30)

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [1], [1]])) as node:
            node.memory.share(1)
            alone = node.memory.memtable_bytes
            node.assigned_replicas.follow(HERE_ALL)
            assert node.memory.memtable_bytes == alone // PARTITIONS

    asyncio.run(run())


async def connected(node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Run an ingest that has received the wanted partitions first."""
    reader, writer = await asyncio.open_unix_connection(Path(node.settings.run_dir) / CONTROL_SOCKET)
    writer.write(b'{"type":"hello","protocol":1,"pid":1}\n')
    assert await wanted_next(reader) == [0, 1, 2]
    return reader, writer


async def wanted_next(reader: asyncio.StreamReader) -> list[int]:
    async with asyncio.timeout(5):
        message = json.loads(await reader.readline())
    assert message["type"] == "wanted"
    return list(message["partitions"])


async def started(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, partitions: Sequence[int]
) -> dict[str, int]:
    offsets = {str(partition): 0 for partition in partitions}
    latest = {str(partition): 100 for partition in partitions}
    topic = {"type": "topic", "id": "T", "partitions": 3, "earliest": offsets, "latest": latest}
    writer.write(json.dumps(topic).encode() + b"\n")
    async with asyncio.timeout(5):
        return dict(json.loads(await reader.readline())["positions"])


def test_several_placement_changes_cause_one_restart_of_ingest(tmp_path: Path) -> None:
    """Ingest gets the wanted partitions once after all changes, and not at all if they are the same."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            reader, writer = await connected(node)
            assert len(await started(reader, writer, range(3))) == PARTITIONS
            node.assigned_replicas.follow(placed(2, [[0], [0], [1]]))
            node.assigned_replicas.follow(placed(3, [[0], [1], [1]]))
            node.assigned_replicas.follow(placed(4, [[0, 1], [1], [1]]))
            assert await wanted_next(reader) == [0]
            node.assigned_replicas.follow(placed(5, [[1, 0], [1], [1]]))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.3):
                    await reader.readline()
            writer.close()

    asyncio.run(run())


def test_added_replica_ignores_slices_of_an_older_query(tmp_path: Path) -> None:
    """An older query sends rows from a later position, so the replica waits for the next start."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            reader, writer = await connected(node)
            await started(reader, writer, range(3))
            node.assigned_replicas.follow(WITHOUT_1)
            await until("it is deleted", lambda: not path_of(node, 1).exists())
            node.assigned_replicas.follow(placed(3, [[0], [0], [0]]))
            replica = node.replicas.by_partition[1]
            await until("it is open", lambda: replica.opened)
            node.slices.apply(slice_payload(put(50, b"a", b"1"), partition=1))
            assert replica.position == -1

            assert await wanted_next(reader) == [0, 1, 2]
            assert await started(reader, writer, range(3)) == {"0": -2, "1": -2, "2": -2}
            node.slices.apply(slice_payload(put(0, b"a", b"1"), partition=1))
            assert replica.position == 1
            writer.close()

    asyncio.run(run())


def test_partition_without_known_offsets_is_not_started(tmp_path: Path) -> None:
    """A partition that was added after ingest looked at the topic waits for its next look."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            reader, writer = await connected(node)
            assert await started(reader, writer, [0, 2]) == {"0": -2, "2": -2}
            assert node.replicas.by_partition[1].failed is None
            writer.close()

    asyncio.run(run())


def test_placement_that_cannot_be_written_is_not_followed(tmp_path: Path) -> None:
    """A placement that cannot be written is not followed, since a restart would lose it."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            os.mkdir(f"{placement_file(node)}.new")
            with pytest.raises(OSError, match=r"placement\.json\.new"):
                node.assigned_replicas.follow(WITHOUT_1)
            assert node.placement.epoch == 1
            assert sorted(node.replicas.by_partition) == [0, 1, 2]

    asyncio.run(run())
