"""A node follows placements: real stores, real sockets, and another node that is played where one is needed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from queryable_app.contract import CONTROL_SOCKET, PLACEMENT_FILE
from queryable_app.disk_format import CopyState, Identity, Row, encode_row
from queryable_app.errors import Failure, Reason
from queryable_app.freshness import Asked, Consistency
from queryable_app.placement import Placement
from queryable_app.serve.holdings import Holdings, PlacementRefused
from queryable_app.serve.node import Node
from queryable_app.serve.reads import Reads
from queryable_app.serve.scans import BATCH_ROWS, Bounds, rows_here
from queryable_app.serve.status import readiness, status_of
from queryable_app.serve.store import SharedMemory, Store
from tests.support.node import APPLICATION_ID, node_settings, put, slice_payload, until

PARTITIONS = 3
BOUNDED, ANY = Asked(), Asked(Consistency.ANY)


def placed(
    epoch: int, serving: Sequence[Sequence[int]], hydrating: Sequence[Sequence[int]] = ((), (), ())
) -> Placement:
    """Of two nodes; this one is the first."""
    return Placement(
        epoch,
        APPLICATION_ID,
        ("http://127.0.0.1:8080", "http://127.0.0.1:8081"),
        tuple(map(tuple, serving)),
        tuple(map(tuple, hydrating)),
    )


HERE = placed(1, [[0], [0], [0]])
HERE_ALL = placed(2, [[0], [0], [0]])
WITHOUT_1 = placed(2, [[0], [1], [0]])


class OtherNode:
    """Gives copies of `rows` rows, or none, as soon as it is let go on."""

    def __init__(self, settings: Any, rows: int) -> None:
        self.settings, self.rows = settings, rows
        self.asked: list[int] = []
        self.go_on = asyncio.Event()

    async def fetch(self, partition: int, into: Path, instead: bool = False) -> bool:
        self.asked.append(partition)
        await self.go_on.wait()
        if self.rows:
            fill(into, partition, self.rows)
        return self.rows > 0


def fill(path: Path, partition: int, rows: int) -> None:
    store = Store.open(path, Identity(APPLICATION_ID, "users", partition), SharedMemory())
    puts = [(b"key-%06d" % n, encode_row(Row(n, 1, 0, b"%d" % n))) for n in range(rows)]
    store.apply(puts, CopyState(rows, rows=rows))
    store.close()


def path_of(node: Node, partition: int) -> Path:
    return Path(node.settings.data_dir, APPLICATION_ID, f"p{partition:04d}")


def open_node(tmp_path: Path, first: Placement) -> Node:
    settings = node_settings(tmp_path, PARTITIONS)
    Path(settings.placement_path).write_text(first.to_json())
    return Node.open(settings)


def kept(node: Node) -> Path:
    return Path(node.settings.data_dir, PLACEMENT_FILE)


def epoch_on_disk(node: Node) -> int:
    """0: there is no placement."""
    return Placement.from_json(kept(node).read_text()).epoch if kept(node).exists() else 0


@asynccontextmanager
async def node_running(
    tmp_path: Path,
    first: Placement = HERE,
    other: int | None = None,
    start: bool = True,
    linger_seconds: float = 0.05,
    tidy_seconds: float = 0,
) -> AsyncIterator[Node]:
    """`other`: as many rows have the copies that another node gives; None: there is nobody to ask."""
    node = open_node(tmp_path, first)
    settings = node.settings
    node.holdings = Holdings(
        settings,
        "users",
        node.copies,
        node.memory,
        node.peers,
        node.hydration if other is None else OtherNode(settings, other),
        node._control.announce,
        linger_seconds,
        tidy_seconds,
    )
    try:
        if start:
            await node.start()
        yield node
    finally:
        await node.stop()


def other_of(node: Node) -> OtherNode:
    other = node.holdings._hydration
    assert isinstance(other, OtherNode)
    return other


def test_a_copy_that_is_gone_is_deleted_and_a_new_one_is_begun(tmp_path: Path) -> None:
    """What is gone answers no more at once and leaves the disk; what is new is there and can be fed."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [0], [1]])) as node:
            node.slices.apply(slice_payload(put(4, b"a", b"1"), partition=1))

            assert node.holdings.follow(placed(2, [[0], [1], [0]])) == 2

            assert sorted(node.copies.by_partition) == [0, 2]
            await until("the new copy is open", lambda: node.copies.by_partition[2].opened)
            await until("the old one is gone", lambda: not node.copies.leaving)
            assert (path_of(node, 1).exists(), path_of(node, 2).exists()) == (False, True)

    asyncio.run(run())


def test_a_lower_epoch_never_replaces_a_higher(tmp_path: Path) -> None:
    """Whatever the order in which placements arrive, the highest epoch stays, in use and on disk."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            assert node.holdings.follow(placed(7, [[0], [1], [1]])) == 7
            for late in (placed(6, [[0], [0], [0]]), placed(7, [[1], [1], [1]]), HERE):
                assert node.holdings.follow(late) == 7

            assert sorted(node.copies.by_partition) == [0]
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
def test_a_placement_that_cannot_be_followed_changes_nothing(tmp_path: Path, wrong: Placement) -> None:
    """It is refused with the reason, and neither copies nor disk change."""

    async def run() -> None:
        async with node_running(tmp_path, start=False) as node:
            with pytest.raises(PlacementRefused):
                node.holdings.follow(wrong)
            assert sorted(node.copies.by_partition) == [0, 1, 2]
            assert epoch_on_disk(node) == 0

    asyncio.run(run())


def test_a_node_goes_on_with_what_it_had_written_before_it_died(tmp_path: Path) -> None:
    """Dead between writing a placement and following it: the next start follows it, and takes away what is left over."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            data_dir = Path(node.settings.data_dir)
        incoming = data_dir / APPLICATION_ID / "p0001.incoming"
        incoming.mkdir()
        (data_dir / APPLICATION_ID / "people's own").mkdir()
        (data_dir / PLACEMENT_FILE).write_text(WITHOUT_1.to_json())

        async with node_running(tmp_path) as node:
            assert (node.placement.epoch, sorted(node.copies.by_partition)) == (2, [0, 2])
            await until(
                "what is left over has gone", lambda: not (path_of(node, 1).exists() or incoming.exists())
            )
            assert (data_dir / APPLICATION_ID / "people's own").exists()

    asyncio.run(run())


def test_a_copy_outlives_a_placement_that_the_machine_lost(tmp_path: Path) -> None:
    """Left over by the first placement, and here again by the newest: it is opened with what it has."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [1], [0]]), tidy_seconds=60) as node:
            fill(path_of(node, 1), 1, 7)
            node.holdings.follow(placed(2, [[0], [0], [0]]))
            copy = node.copies.by_partition[1]
            await until("it is open", lambda: copy.opened)
            assert copy.position == 7

    asyncio.run(run())


@pytest.mark.parametrize("text", ["", "{", "{}", "[]"])
def test_a_placement_that_the_machine_lost_is_learnt_again(tmp_path: Path, text: str) -> None:
    """A file that is not whole after a power cut: the node starts with the first placement, and is told the newest later."""

    kept(open_node(tmp_path, HERE)).write_text(text)

    async def run() -> None:
        async with node_running(tmp_path) as node:
            assert node.placement == HERE
            assert node.holdings.follow(WITHOUT_1) == 2

    asyncio.run(run())


def test_roles_follow(tmp_path: Path) -> None:
    """Active, standby, hydrating: without closing anything, and the epoch is in status."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            stores = [copy.store for copy in node.copies.by_partition.values()]

            node.holdings.follow(placed(2, [[0, 1], [1, 0], [1]], [[], [], [0]]))

            roles = [copy.role for copy in node.copies.by_partition.values()]
            assert roles == ["active", "standby", "hydrating"]
            assert [copy.store for copy in node.copies.by_partition.values()] == stores
            assert status_of(node)["epoch"] == 2

    asyncio.run(run())


def test_new_stores_share_the_memory_with_those_that_are_there(tmp_path: Path) -> None:
    """What one store may keep in memory follows from how many the node holds."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [1], [1]])) as node:
            alone = node.memory.memtable_bytes
            node.holdings.follow(HERE_ALL)
            assert node.memory.memtable_bytes == alone // PARTITIONS

    asyncio.run(run())


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
    monkeypatch.setattr("queryable_app.serve.holdings._LINGER_SECONDS_MAX", 0)

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


def test_a_copy_that_another_node_has_is_fetched(tmp_path: Path) -> None:
    """Until it is there reads are told so, ingest does not read it, and the node stays ready; then it goes on from there."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [1], [0]]), other=100) as node:
            for partition in (0, 2):
                node.copies.by_partition[partition].apply((), CopyState(0, True))
            node.holdings.follow(placed(2, [[0], [1], [0]], [[], [0], []]))
            await until("the other node is asked", lambda: other_of(node).asked == [1])

            copy, reads = node.copies.by_partition[1], Reads(node)
            for asked in (BOUNDED, ANY):
                with pytest.raises(Failure, match="is being copied from another node") as refused:
                    _ = reads.judged(1, asked, {}, 0).store
                assert refused.value.reason is Reason.NOT_AVAILABLE
            assert node.copies.wanted() == [0, 2]
            status = status_of(node)["partitions"][1]
            assert (status["role"], status["hydration"]) == ("hydrating", {"from": "peer"})
            assert status["absent"] == "is being copied from another node"
            assert (node.copies.ready, readiness(node)["hydrating"]) == (True, 1)

            other_of(node).go_on.set()
            await until("it is open", lambda: copy.opened)
            assert (copy.position, copy.complete, copy.takes_slices) == (100, False, False)
            assert node.copies.wanted() == [0, 1, 2]
            assert status_of(node)["partitions"][1]["hydration"] == {"from": "topic"}

    asyncio.run(run())


def test_a_copy_that_nobody_can_give_begins_empty(tmp_path: Path) -> None:
    """The topic builds it."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [1], [0]]), other=0) as node:
            other_of(node).go_on.set()
            node.holdings.follow(placed(2, [[0], [1], [0]], [[], [0], []]))
            await until("it is open", lambda: node.copies.by_partition[1].opened)
            assert (node.copies.by_partition[1].position, node.copies.wanted()) == (-1, [0, 1, 2])

    asyncio.run(run())


def test_a_fetch_ends_when_its_copy_is_placed_elsewhere(tmp_path: Path) -> None:
    """Nothing of it stays."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [1], [0]]), other=100) as node:
            node.holdings.follow(placed(2, [[0], [1], [0]], [[], [0], []]))
            await until("the other node is asked", lambda: other_of(node).asked == [1])
            node.holdings.follow(placed(3, [[0], [1], [0]]))
            await until("it has ended", lambda: not node.holdings._ending and not node.holdings._building)
            assert not path_of(node, 1).exists()
            assert node.copies.leaving == {}

    asyncio.run(run())


def test_a_wiped_node_fetches_what_others_serve(tmp_path: Path) -> None:
    """At the start an empty store is exchanged for the copy of another node; one with rows is not."""

    async def run() -> None:
        both = placed(1, [[0, 1], [1, 0], [0, 1]])
        async with node_running(tmp_path, both, start=False) as node:
            fill_at = path_of(node, 2)
        fill(fill_at, 2, 5)
        async with node_running(tmp_path, both, other=100) as node:
            other_of(node).go_on.set()
            await until("both are there", lambda: len(node.copies.wanted()) == PARTITIONS)
            assert sorted(other_of(node).asked) == [0, 1]
            assert [copy.position for _, copy in sorted(node.copies.by_partition.items())] == [100, 100, 5]

    asyncio.run(run())


def damage(path: Path, current: str = "no manifest") -> None:
    (path / "CURRENT").write_text(current)


@pytest.mark.parametrize(
    "current", ["no manifest", "MANIFEST-999999\n"], ids=["corrupt", "a file is missing"]
)
def test_a_damaged_copy_is_thrown_away_and_fetched(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], current: str
) -> None:
    """It is never served; the event says why, and the copy of another node takes its place."""

    async def run() -> None:
        both = placed(1, [[0, 1], [1], [1]])
        async with node_running(tmp_path, both, start=False) as node:
            damaged = path_of(node, 0)
        fill(damaged, 0, 5)
        damage(damaged, current)
        async with node_running(tmp_path, both, other=100) as node:
            other_of(node).go_on.set()
            copy = node.copies.by_partition[0]
            await until("it is open", lambda: copy.opened)
            assert (copy.position, copy.failed) == (100, None)

    asyncio.run(run())
    assert '"event": "copy-thrown-away"' in capfd.readouterr().err


def test_a_damaged_copy_that_nobody_else_has_stays_for_a_person(tmp_path: Path) -> None:
    """It is failed, says what to do, and is not deleted: the topic may no longer have what it holds."""

    async def run() -> None:
        async with node_running(tmp_path, start=False) as node:
            damaged = path_of(node, 0)
        fill(damaged, 0, 5)
        damage(damaged)
        async with node_running(tmp_path, other=100) as node:
            failed = node.copies.by_partition[0].failed
            assert failed is not None
            assert "is damaged" in failed
            assert (damaged / "CURRENT").exists()
            assert other_of(node).asked == []

    asyncio.run(run())


def test_a_copy_whose_directory_cannot_be_opened_fails_by_itself(tmp_path: Path) -> None:
    """Another process has it, for example: the copy says so, and the others go on."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [1], [0]])) as node:
            holder = Store.open(path_of(node, 1), Identity(APPLICATION_ID, "users", 1), SharedMemory())
            node.holdings.follow(placed(2, [[0], [1], [0]], [[], [0], []]))
            copy = node.copies.by_partition[1]
            await until("it has failed", lambda: copy.failed is not None)
            assert copy.absent is None
            assert node.copies.wanted() == [0, 2]
            holder.close()

    asyncio.run(run())


async def connected(node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As ingest; it has been told what is wanted first."""
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
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, looked_at: Sequence[int]
) -> dict[str, int]:
    offsets = {str(partition): 0 for partition in looked_at}
    latest = {str(partition): 100 for partition in looked_at}
    topic = {"type": "topic", "id": "T", "partitions": 3, "earliest": offsets, "latest": latest}
    writer.write(json.dumps(topic).encode() + b"\n")
    async with asyncio.timeout(5):
        return dict(json.loads(await reader.readline())["positions"])


def test_several_changes_go_into_one_restart(tmp_path: Path) -> None:
    """Ingest is told once what is wanted after all of them, and not at all when that is nothing new."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            reader, writer = await connected(node)
            assert len(await started(reader, writer, range(3))) == PARTITIONS
            node.holdings.follow(placed(2, [[0], [0], [1]]))
            node.holdings.follow(placed(3, [[0], [1], [1]]))
            node.holdings.follow(placed(4, [[0, 1], [1], [1]]))
            assert await wanted_next(reader) == [0]
            node.holdings.follow(placed(5, [[1, 0], [1], [1]]))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.3):
                    await reader.readline()
            writer.close()

    asyncio.run(run())


def test_a_new_copy_takes_slices_from_its_own_start_on(tmp_path: Path) -> None:
    """What an older query sends of a partition that came back begins in the middle: it passes the copy by."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            reader, writer = await connected(node)
            await started(reader, writer, range(3))
            node.holdings.follow(WITHOUT_1)
            await until("it is deleted", lambda: not path_of(node, 1).exists())
            node.holdings.follow(placed(3, [[0], [0], [0]]))
            copy = node.copies.by_partition[1]
            await until("it is open", lambda: copy.opened)
            node.slices.apply(slice_payload(put(50, b"a", b"1"), partition=1))
            assert copy.position == -1

            assert await wanted_next(reader) == [0, 1, 2]
            assert await started(reader, writer, range(3)) == {"0": -2, "1": -2, "2": -2}
            node.slices.apply(slice_payload(put(0, b"a", b"1"), partition=1))
            assert copy.position == 1
            writer.close()

    asyncio.run(run())


def test_a_partition_that_ingest_has_not_looked_at_is_not_started(tmp_path: Path) -> None:
    """It came after the look: it is neither judged by offsets that nobody knows, nor forgotten."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            reader, writer = await connected(node)
            assert await started(reader, writer, [0, 2]) == {"0": -2, "2": -2}
            assert node.copies.by_partition[1].failed is None
            writer.close()

    asyncio.run(run())


def test_a_pause_takes_partitions_out_of_what_is_wanted(tmp_path: Path) -> None:
    """Those still being built, or all; a fetch stops, and goes on when there is room again."""

    async def run() -> None:
        async with node_running(tmp_path, placed(1, [[0], [0], [1]]), other=100) as node:
            node.copies.by_partition[0].apply((), CopyState(0, True))
            node.holdings.follow(placed(2, [[0], [0], [1]], [[], [], [0]]))
            await until("the other node is asked", lambda: other_of(node).asked == [2])

            node.holdings.pause("hydrating")
            assert node.copies.wanted() == [0]
            copy = node.copies.by_partition[2]
            await until("the fetch has stopped", lambda: not node.holdings._building)
            assert copy.absent is not None
            assert copy.absent.startswith("waits for room on the disk")
            node.holdings.pause("all")
            assert node.copies.wanted() == []

            node.holdings.pause("none")
            other_of(node).go_on.set()
            await until("it is there", lambda: copy.opened)
            assert node.copies.wanted() == [0, 1, 2]

    asyncio.run(run())


def test_what_is_on_disk_is_replaced_in_one_step(tmp_path: Path) -> None:
    """A placement that cannot be written is not followed: after a restart the node would not know of it."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            os.mkdir(f"{kept(node)}.new")
            with pytest.raises(OSError, match=r"placement\.json\.new"):
                node.holdings.follow(WITHOUT_1)
            assert node.placement.epoch == 1
            assert sorted(node.copies.by_partition) == [0, 1, 2]

    asyncio.run(run())
