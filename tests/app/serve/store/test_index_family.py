"""Test that the index entries of a real store are those of its rows, and that they survive what stores survive."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.config.indexes import IndexSpec
from queryable_app.serve.node import Node
from queryable_app.serve.store.index_family import FirstPuts
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.serve.store.store_errors import StoreError, StoreUnavailable
from queryable_app.serve.store.sweeper import Sweeper
from queryable_app.wire.disk_format import Identity, ReplicaState, Row, encode_row
from queryable_app.wire.index_entries import RowIndexes, expiry_of
from queryable_app.wire.row_frames import SliceRow
from tests.support.node import dropped, open_node, put, slice_payload
from tests.support.waiting import eventually

INDEXES = [
    {"name": "by-user", "field": "user", "type": "string"},
    {"name": "by-n", "field": "n", "type": "long"},
]
PAST_MS = 1_000
ROOT = Path(__file__).parents[4]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    opened = open_node(tmp_path, view={"indexes": INDEXES})
    yield opened
    opened.replicas.close()


def entries(store: Store) -> dict[bytes, bytes]:
    return dict(store.index_entries(b"", b"\x10", False))


def expected_entries(store: Store) -> dict[bytes, bytes]:
    """Return the entries that the rows should have."""
    of_row = store.index.indexes.entries
    return {value + key: expiry_of(stored) for key, stored in store.rows() for value in of_row(stored)[0]}


def value_of(user: Any, n: Any) -> bytes:
    return json.dumps({"user": user, "n": n}).encode()


KEYS = st.binary(max_size=1)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"b\0", b"", b"c"]),
        st.sampled_from(["put", "delete", "drop", "expired"]),
        st.sampled_from(["ada", "b\0", None, 7]),
        st.sampled_from([-1, 0, 2**40, None, "x"]),
    ),
    min_size=1,
    max_size=12,
)


def test_flush_leaves_neither_rows_nor_entries_in_memory(node: Node) -> None:
    """A flush writes the entries of the indexes out with their rows, so a checkpoint right after it is quick."""
    node.slices.apply(slice_payload(*[put(n, b"k%d" % n, value_of("ada" * 20, n)) for n in range(500)]))
    store = node.replicas.by_partition[0].store
    assert store.unflushed_bytes() > 10_000

    store.flush()

    assert store.unflushed_bytes() < 10_000


def test_entries_are_those_of_the_rows_after_any_slices(node: Node) -> None:
    """Updates, deletes, several records of a key in a slice and replays of any part leave no entry behind, and lack none."""
    replica = node.replicas.by_partition[0]

    @settings(deadline=None)
    @given(slices=st.lists(st.tuples(RECORDS, st.integers(0, 5)), max_size=5))
    def check(slices: list[tuple[Any, int]]) -> None:
        replica.rebuild()
        assert entries(replica.store) == {}
        log: list[SliceRow] = []
        for records, replayed in slices:
            for key, kind, user, n in records:
                offset = len(log)
                value = None if kind == "delete" else value_of(user, n)
                expiry_ms = PAST_MS if kind == "expired" else 0
                log.append(dropped(offset, key) if kind == "drop" else put(offset, key, value, 1, expiry_ms))
            node.slices.apply(slice_payload(*log[max(0, len(log) - len(records) - replayed) :]))
        store = replica.store
        assert entries(store) == expected_entries(store)
        numbers = [sum(entry[0] == number for entry in entries(store)) for number in (0, 1)]
        assert store.index.counts.entries == numbers
        assert store.index.counts.mistyped == [
            sum(number in store.index.indexes.entries(stored)[1] for _, stored in store.rows())
            for number in (0, 1)
        ]

    check()


@given(slices=st.lists(st.lists(st.binary(max_size=3), max_size=30), max_size=10))
def test_a_key_that_was_put_may_be_there(slices: list[list[bytes]]) -> None:
    """The map of first puts never denies a key of an earlier slice."""
    first_puts, put_before = FirstPuts(), set[bytes]()
    for keys in slices:
        assert put_before & set(keys) <= set(first_puts.maybe_there(keys))
        put_before |= set(keys)


@settings(deadline=None, max_examples=15)
@given(
    slices=st.lists(st.lists(st.tuples(KEYS, st.sampled_from(["a", "b", None])), min_size=1), max_size=6),
    opened_again_after=st.integers(0, 5),
    complete_after=st.integers(0, 5),
)
def test_entries_follow_the_rows_while_a_store_is_filled(
    slices: list[list[tuple[bytes, str | None]]], opened_again_after: int, complete_after: int
) -> None:
    """From an empty store on, keys that come again leave no entry behind, also after a restart in the middle."""
    indexes, identity = RowIndexes([IndexSpec("by-user", "user", "string")]), Identity("a", "b", 0)
    with TemporaryDirectory() as directory:
        store = Store.open(Path(directory), identity, SharedMemory(8, 8), indexes)
        for number, rows in enumerate(slices):
            puts = [(key, encode_row(Row(number, 1, 0, value_of(user, 1)))) for key, user in rows]
            store.apply(puts, ReplicaState(number + 1, complete=number >= complete_after))
            if number == opened_again_after:
                store.close()
                store = Store.open(Path(directory), identity, SharedMemory(8, 8), indexes)
        assert entries(store) == expected_entries(store)
        assert store.index.counts.entries == [len(entries(store))]
        store.close()


def open_with_indexes(directory: Path) -> Store:
    indexes = RowIndexes([IndexSpec("by-user", "user", "string"), IndexSpec("by-n", "n", "long")])
    return Store.open(directory, Identity("a", "b", 0), SharedMemory(8, 8), indexes)


def new_rows(start: int) -> list[tuple[bytes, bytes]]:
    """Return rows of which some replace those of the slice before."""
    return [
        (b"%05d" % n, encode_row(Row(n, 1, 0, value_of(f"user-{n % 7}", start))))
        for n in range(start, start + 30)
    ]


def files_at_level_0(store: Store) -> list[int]:
    """Return the numbers of files of rows and of entries."""
    assert store._index is not None
    return [
        int(family.property_value("rocksdb.num-files-at-level0") or 0) for family in (store._db, store._index)
    ]


def is_compacted(store: Store) -> bool:
    return max(files_at_level_0(store)) < 4


def flush_slices(store: Store, slices: range, complete: bool = False) -> None:
    for number in slices:
        store.apply(new_rows(20 * number), ReplicaState(number + 1, complete=complete))
        assert store._index is not None
        store._db.flush()
        store._index.flush()


def test_rows_and_entries_are_compacted_seldom_until_a_store_is_complete(tmp_path: Path) -> None:
    """A store that is filled keeps more files of rows and of entries than usual, and compacts them when it is complete."""
    store = open_with_indexes(tmp_path)
    flush_slices(store, range(12))
    assert files_at_level_0(store) == [12, 12]

    flush_slices(store, range(12, 13), complete=True)
    eventually("compaction", lambda: is_compacted(store), 10)
    assert entries(store) == expected_entries(store)
    store.close()


def test_rows_and_entries_are_compacted_seldom_again_after_a_store_was_cleared(tmp_path: Path) -> None:
    """A replica that starts over is filled as a new one is."""
    store = open_with_indexes(tmp_path)
    flush_slices(store, range(5), complete=True)
    eventually("compaction", lambda: is_compacted(store), 10)
    store.clear()
    flush_slices(store, range(8))
    assert min(files_at_level_0(store)) >= 8
    store.close()


def test_store_with_rows_is_compacted_as_usual(tmp_path: Path) -> None:
    """A store that was opened in the middle of its hydration keeps no more files than RocksDB does."""
    store = open_with_indexes(tmp_path)
    flush_slices(store, range(2))
    store.close()

    again = open_with_indexes(tmp_path)
    flush_slices(again, range(2, 6))
    eventually("compaction", lambda: is_compacted(again), 10)
    assert entries(again) == expected_entries(again)
    again.close()


def fill_until_killed(directory: str, slices: int, flushed_after: int) -> None:
    """Fill a store, and end as a killed process does."""
    store = open_with_indexes(Path(directory))
    for number in range(slices):
        store.apply(new_rows(20 * number), ReplicaState(number + 1))
        if number == flushed_after:
            store.flush()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("flushed_after", [-1, 3, 9])
def test_killed_while_a_store_is_filled(tmp_path: Path, flushed_after: int) -> None:
    """After a kill in the middle of hydration the entries and counts are those of the rows, and later slices replace them."""
    call = f"{__name__}.fill_until_killed({str(tmp_path)!r}, 10, {flushed_after})"
    child = [sys.executable, "-c", f"import {__name__}; {call}"]
    assert subprocess.run(child, cwd=ROOT, check=False, timeout=60).returncode == -signal.SIGKILL

    store = open_with_indexes(tmp_path)
    assert store.state.position == 10
    for _ in range(2):
        assert entries(store) == expected_entries(store) != {}
        assert sum(store.index.counts.entries) == len(entries(store))
        store.apply(new_rows(5), ReplicaState(11))
    store.close()


@pytest.mark.parametrize("odd", ["bo", 7, "b\0"])
def test_slice_of_new_and_replaced_rows_has_all_entries(tmp_path: Path, odd: Any) -> None:
    """The index has the entries and the counts of the rows after a slice that adds, replaces and deletes many."""
    store = Store.open(
        tmp_path,
        Identity("a", "b", 0),
        SharedMemory(8, 8),
        RowIndexes([IndexSpec(each["name"], each["field"], "string") for each in INDEXES[:1]]),
    )

    def puts(numbers: range, user: Any) -> list[tuple[bytes, bytes]]:
        return [(b"%02d" % n, encode_row(Row(n, 1, n % 2 * 9, value_of(user, n)))) for n in numbers]

    store.apply(puts(range(20), "ada"), ReplicaState(1))
    store.apply(
        [*puts(range(10, 40), "bo"), *puts(range(39, 41), odd)],
        ReplicaState(2),
        deletes=[b"%02d" % n for n in (*range(5), 90)],
    )
    store.apply(puts(range(50, 70), "ada"), ReplicaState(3), deletes=[b"91"])  # of which none had a row
    wrong = sum(len(store.index.indexes.entries(row)[1]) for _, row in store.rows())
    assert entries(store) == expected_entries(store)
    assert store.index.counts.by_name() == {"by-user": (len(entries(store)), wrong)}
    store.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.apply([(b"b", encode_row(Row(1, 1, 0, value_of("bo", 2))))], ReplicaState(2)),
        lambda store: store.delete([b"a"]),
        lambda store: store.clear(),
    ],
    ids=["apply", "delete", "clear"],
)
def test_a_write_that_fails_counts_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch, change: Callable[[Store], None]
) -> None:
    """The counts are those of the rows that are stored, also right after a batch that the disk refused."""
    store = node.replicas.by_partition[0].store
    store.apply([(b"a", encode_row(Row(0, 1, 0, value_of("ada", 1))))], ReplicaState(1))
    counts = store.index.counts.by_name()

    def refuse(batch: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(store, "_write", refuse)
    with pytest.raises(StoreUnavailable):
        change(store)
    assert store.index.counts.by_name() == counts


def test_sweeper_removes_the_entries_of_expired_rows(node: Node) -> None:
    """An expired row and its entries go in one batch."""
    node.slices.apply(
        slice_payload(put(0, b"a", value_of("ada", 1), 1, PAST_MS), put(1, b"b", value_of("bo", 2)))
    )
    replica = node.replicas.by_partition[0]

    assert asyncio.run(Sweeper(node.replicas, 1000).sweep(replica)) == 1
    assert [entry[-1:] for entry in entries(replica.store)] == [b"b", b"b"]
    assert replica.store.index.counts.entries == [1, 1]


def test_entries_and_counts_survive_a_restart(tmp_path: Path) -> None:
    """A store that is opened again has its entries and their numbers."""
    node = open_node(tmp_path, view={"indexes": INDEXES})
    node.slices.apply(slice_payload(put(0, b"a", value_of("ada", "x"))))
    before = entries(node.replicas.by_partition[0].store)
    node.replicas.close()

    again = open_node(tmp_path, view={"indexes": INDEXES})
    store = again.replicas.by_partition[0].store
    assert entries(store) == before != {}
    assert store.index.counts.by_name() == {"by-user": (1, 0), "by-n": (0, 1)}
    again.replicas.close()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ([], INDEXES),
        (INDEXES, []),
        (INDEXES, INDEXES[:1]),
        (INDEXES, [{**INDEXES[0], "type": "long"}, INDEXES[1]]),
    ],
    ids=["added", "removed", "fewer", "another type"],
)
def test_store_with_other_indexes_is_refused(
    tmp_path: Path, first: list[dict[str, str]], then: list[dict[str, str]]
) -> None:
    """A replica whose store was made with other indexes fails with a reason, and its store stays as it was."""
    open_node(tmp_path, view={"indexes": first}).replicas.close()

    other = open_node(tmp_path, view={"indexes": then})
    assert "was made with other indexes" in str(other.replicas.by_partition[0].failed)
    other.replicas.close()

    same = open_node(tmp_path, view={"indexes": first})
    assert same.replicas.by_partition[0].failed is None
    same.replicas.close()


def test_rows_of_entries_are_of_one_moment(node: Node) -> None:
    """A row that changes while an index is read appears with the value that it has, never with one that it had."""
    for number in range(300):
        node.slices.apply(slice_payload(put(number, b"k%03d" % number, value_of("ada", number))))
    store = node.replicas.by_partition[0].store
    seen = []
    for step, (entry, stored) in enumerate(store.index.rows(store, b"\1", b"\2", False)):
        assert store.index.row_key(entry) in entry
        seen.append(json.loads(stored[25:])["n"])
        if step == 100:
            node.slices.apply(slice_payload(put(300, b"k290", value_of("ada", 10**6))))
    assert seen == [*range(290), *range(291, 300), 10**6]


def test_checkpoint_of_a_peer_has_the_index(tmp_path: Path) -> None:
    """A replica that hydrates from a peer has the entries of its rows."""
    node = open_node(tmp_path, view={"indexes": INDEXES})
    node.slices.apply(slice_payload(put(0, b"a", value_of("ada", 1)), put(1, b"b", value_of("bo", 2))))
    store = node.replicas.by_partition[0].store
    store.flush()
    store.checkpoint(tmp_path / "copy")
    indexes = node.replicas.indexes
    copy = Store.open(tmp_path / "copy", store.identity, SharedMemory(8, 8), indexes)
    assert entries(copy) == entries(store) != {}
    copy.verify()
    copy.close()
    with pytest.raises(StoreError, match="other indexes"):
        Store.open(tmp_path / "copy", replace(store.identity, indexes=""), SharedMemory(8, 8))
    node.replicas.close()
