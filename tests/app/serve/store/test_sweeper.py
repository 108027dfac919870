"""Test the sweeper on real stores: which rows it deletes, and that it frees their space."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from queryable_app.serve.node import Node
from queryable_app.serve.store.sweeper import STEP_SECONDS, Sweeper
from queryable_app.wire.disk_format import TOMBSTONE_RETENTION_MS
from tests.support.node import open_node, put, slice_payload
from tests.support.waiting import until

NOW_MS = time.time_ns() // 1_000_000
PAST_MS, FUTURE_MS = NOW_MS - 1000, NOW_MS + 7 * 24 * 3_600_000  # a run of all tests can take an hour
LONG_AGO_MS = NOW_MS - TOMBSTONE_RETENTION_MS - 60_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    opened = open_node(tmp_path)
    yield opened
    opened.replicas.close()


def keys(node: Node) -> list[bytes]:
    return [key for key, _ in node.replicas.by_partition[0].store.rows()]


def level_0_files(node: Node) -> int:
    return int(node.replicas.by_partition[0].store._db.property_value("rocksdb.num-files-at-level0") or 0)


def cached_bytes(node: Node) -> int:
    return node.replicas.by_partition[0].store._db.property_int_value("rocksdb.block-cache-usage") or 0


def sweep(node: Node) -> int:
    return asyncio.run(Sweeper(node.replicas, 1000).sweep(node.replicas.by_partition[0]))


def test_sweep_deletes_only_dead_rows(node: Node) -> None:
    """Expired rows and day-old tombstones are deleted; rows, unexpired rows and young tombstones are not."""
    node.slices.apply(
        slice_payload(
            put(0, b"", b"1", expiry_ms=PAST_MS),
            put(1, b"expired", b"1", expiry_ms=PAST_MS),
            put(2, b"lives", b"1", expiry_ms=FUTURE_MS),
            put(3, b"old row", b"1", timestamp_ms=LONG_AGO_MS),
            put(4, b"old tombstone", None, timestamp_ms=LONG_AGO_MS),
            put(5, b"young tombstone", None, timestamp_ms=NOW_MS),
        )
    )

    assert sweep(node) == 3
    assert keys(node) == [b"lives", b"old row", b"young tombstone"]
    assert node.replicas.by_partition[0].position == 6


def test_tombstones_stay_while_keys_may_be_in_several_partitions(node: Node) -> None:
    """With mixed producers an older record of the key may be in another partition, so its tombstone stays."""
    node.slices.apply(
        slice_payload(
            put(0, b"gone", None, timestamp_ms=LONG_AGO_MS),
            mismatches_murmur2=1,
            mismatches_crc32=1,
            mismatches_fnv1a=1,
        )
    )

    assert sweep(node) == 0
    assert keys(node) == [b"gone"]


def test_sweep_completes_the_estimate_of_keys(tmp_path: Path) -> None:
    """A store that is opened with rows has no estimate; after a pass it has one, of what was written meanwhile as well."""
    first = open_node(tmp_path)
    rows = [put(n, b"%d" % (n % 100), b"v") for n in range(300)]
    first.slices.apply(slice_payload(*rows, put(300, b"expired", b"v", expiry_ms=PAST_MS)))
    first.replicas.close()

    node = open_node(tmp_path)
    estimate = node.replicas.by_partition[0].store.keys
    assert estimate.count(NOW_MS) is None
    node.slices.apply(slice_payload(put(301, b"7", None), put(302, b"new", b"v"), put(303, b"8", b"v")))
    sweep(node)
    assert estimate.count(NOW_MS) == 100
    node.replicas.close()


def test_store_with_rows_is_counted_soon_after_it_opens(tmp_path: Path) -> None:
    """The estimate of keys does not wait for the next pass over dead rows, ten minutes later."""

    async def run() -> None:
        node = open_node(tmp_path)
        await node.start()
        keys = node.replicas.by_partition[0].store.keys
        await until("the rows were walked", lambda: keys.whole)
        assert keys.count(NOW_MS) == 500
        await node.stop()

    first = open_node(tmp_path)
    first.slices.apply(slice_payload(*(put(n, b"%d" % n, b"v") for n in range(500))))
    first.replicas.close()
    asyncio.run(run())


def test_sweep_leaves_the_block_cache_to_reads(node: Node) -> None:
    """A walk over all rows, and a check of every block, cache no row, so they take nothing from reads and grow no memory."""
    store = node.replicas.by_partition[0].store
    node.slices.apply(slice_payload(*(put(i, b"key %d" % i, bytes(10_000)) for i in range(200))))
    store._db.flush()
    before = cached_bytes(node)

    sweep(node)
    store.verify()
    assert cached_bytes(node) - before < 100_000
    assert len(keys(node)) == 200
    assert cached_bytes(node) - before > 1_000_000


def test_sweep_yields_to_the_event_loop(node: Node) -> None:
    """A pass over many rows runs in steps, and other tasks run in between."""
    rows = [put(o, b"%06d" % o, b"v", expiry_ms=PAST_MS) for o in range(30_000)]
    node.slices.apply(slice_payload(*rows))

    async def run() -> int:
        turns, done = 0, False

        async def others() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(STEP_SECONDS)

        running = asyncio.create_task(others())
        await Sweeper(node.replicas, 1000).sweep(node.replicas.by_partition[0])
        done = True
        await running
        return turns

    assert asyncio.run(run()) > 5
    assert keys(node) == []


def test_sweep_frees_the_space_of_expired_rows(node: Node) -> None:
    """After a pass that deleted many rows, the store is small again."""
    replica = node.replicas.by_partition[0]
    for start in range(0, 30_000, 10_000):
        rows = [
            put(o, b"%06d" % o, str(o).encode() * 50, expiry_ms=PAST_MS) for o in range(start, start + 10_000)
        ]
        node.slices.apply(slice_payload(*rows))
    before = replica.store.size_bytes()

    assert sweep(node) == 30_000

    assert replica.store.size_bytes() < before / 4


def test_store_of_a_complete_replica_is_settled(node: Node) -> None:
    """Once its replica is complete, a store has its rows in one file, where point reads find them sooner."""
    replica = node.replicas.by_partition[0]
    for start in range(0, 30_000, 10_000):
        node.slices.apply(
            slice_payload(*(put(o, b"%06d" % o, b"v" * 100) for o in range(start, start + 10_000)))
        )
        if start < 20_000:
            replica.store.flush()

    asyncio.run(Sweeper(node.replicas, None).settle())
    assert level_0_files(node) == 2  # it is not complete
    assert replica.store.unflushed_bytes() > 1_000_000

    replica.note_end_offset(NOW_MS, replica.position)
    asyncio.run(Sweeper(node.replicas, None).settle())
    assert level_0_files(node) == 0
    assert replica.store.unflushed_bytes() < 100_000
    assert len(keys(node)) == 30_000


def test_stores_wait_for_the_last_hydration(tmp_path: Path) -> None:
    """While a replica still hydrates, it has the cores: no store of the node is settled."""
    node = open_node(tmp_path, partitions=2)
    first, second = (node.replicas.by_partition[partition] for partition in range(2))
    node.slices.apply(slice_payload(*(put(o, b"%06d" % o, b"v" * 200) for o in range(10_000))))
    first.note_end_offset(NOW_MS, first.position)
    assert first.complete

    asyncio.run(Sweeper(node.replicas, None).settle())
    assert first.store.unflushed_bytes() > 1_000_000

    second.note_end_offset(NOW_MS, 0)
    asyncio.run(Sweeper(node.replicas, None).settle())
    assert first.store.unflushed_bytes() < 100_000
    node.replicas.close()


def test_sweeper_stops_in_the_middle_of_a_pass(tmp_path: Path) -> None:
    """A store whose pass was stopped opens again with its live rows."""

    async def run() -> None:
        node = open_node(tmp_path, view={"ttl": "1s"})
        rows = [put(o, b"%06d" % o, b"v" * 100, expiry_ms=PAST_MS) for o in range(60_000)]
        node.slices.apply(slice_payload(*rows, put(60_000, b"z", b"lives")))
        await node.start()
        store = node.replicas.by_partition[0].store
        await until("the pass has begun", lambda: next(store.rows())[0] != b"000000")
        await node.stop()

    asyncio.run(run())
    node = open_node(tmp_path)
    assert keys(node)[-1] == b"z"
    node.replicas.close()
