"""Test that slices leave the entries of the topic's fold in a store, whatever is sent again, deleted, swept and reopened."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.aggregates.clock import TIME_MAX_MS, TIME_MIN_MS
from queryable_app.aggregates.entry_keys import disk_key_of, entries_between, entries_of, entry_key, time_of
from queryable_app.serve.feed import entry_rows
from queryable_app.serve.node import Node
from queryable_app.wire.disk_format import decode_row
from tests.support.entries import HOUR_MS, Entry, Record, folded, row_of, view
from tests.support.node import open_node, slice_payload, sweep

NOON = 1_795_348_800_000
MINUTE = 60_000
KEYS = [b"", b"a", b"a\0", b"a\0\0", b"a\xff", b"b"]

times = st.one_of(
    st.integers(-5, 70).map(lambda minute: NOON + minute * MINUTE),
    st.sampled_from([NOON, NOON - 2 * HOUR_MS, NOON + 30 * 24 * HOUR_MS, 0, -1, TIME_MIN_MS, TIME_MAX_MS]),
)
values = st.one_of(st.integers(0, 9).map(lambda n: b'{"n":%d}' % n), st.just(b"{}"))
live = st.builds(Record, st.sampled_from(KEYS), times, values)
one_of_the_log = st.one_of(
    live,
    live,
    live,
    st.builds(Record, st.sampled_from(KEYS), st.just(0), st.none()),
    st.builds(Record, st.sampled_from(KEYS), times, values, st.just(True)),
)
# Lists of a size that is left to Hypothesis are so short that records of a key seldom meet.
records = st.sampled_from([0, 3, 30, 80]).flatmap(
    lambda size: st.lists(one_of_the_log, min_size=size, max_size=size)
)


@contextmanager
def opened(directory: str | Path, retention: str | None = "1h") -> Iterator[Node]:
    more = {} if retention is None else {"retention": retention}
    node = open_node(Path(directory), view=view(**more))
    try:
        yield node
    finally:
        node.replicas.close()


def send(node: Node, sent: Sequence[Record], start: int, stop: int) -> None:
    if start < stop:
        node.slices.apply(slice_payload(*[row_of(n, sent[n]) for n in range(start, stop)]))


def stored(
    node: Node, key: bytes, first_ms: int | None = None, after_ms: int | None = None, reverse: bool = False
) -> list[Entry]:
    """Return the entries that a store has and that are retained."""
    store = node.replicas.by_partition[0].store
    assert node.entries is not None
    oldest_ms = node.entries.watermark(store.clock.max_event_ms)
    found = []
    for at, row in store.rows(*entries_between(key, first_ms, after_ms), reverse):
        decoded = decode_row(row)
        assert decoded.value is not None
        assert disk_key_of(at) == key
        assert at == entry_key(key, decoded.expiry_ms, decoded.offset, 0)
        if time_of(decoded.expiry_ms) >= oldest_ms:
            found.append(Entry(time_of(decoded.expiry_ms), decoded.offset, decoded.value))
    return found


@given(
    records,
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), max_size=6),
    st.sampled_from(["1m", "1h", "30d", None]),
    st.sampled_from([0, 2, 64]),
    st.tuples(st.none() | times, st.none() | times, st.booleans()),
    st.booleans(),
)
def test_entries_equal_the_fold(
    sent: list[Record],
    again: list[tuple[int, int]],
    retention: str | None,
    singly_max: int,
    read: tuple[int | None, int | None, bool],
    sweeps: bool,
) -> None:
    """Whatever slices carry the records, and whatever is sent again, a store has the entries of the fold in the order of their
    times, and the late records are counted once."""
    retention_ms = {"1m": MINUTE, "1h": HOUR_MS, "30d": 30 * 24 * HOUR_MS, None: None}[retention]
    with (
        tempfile.TemporaryDirectory() as directory,
        patch.object(entry_rows, "_DELETED_SINGLY_MAX", singly_max),
    ):
        with opened(directory, retention) as node:
            for start, stop in again:
                position = max(0, node.replicas.by_partition[0].position)
                send(node, sent, min(start, position), min(stop, len(sent)))
                if sweeps:
                    sweep(node, node.replicas.by_partition[0])
            send(node, sent, max(0, node.replicas.by_partition[0].position), len(sent))
        with opened(directory, retention) as node:
            fold = folded(sent, retention_ms)
            first_ms, after_ms, reverse = read
            for key in KEYS:
                assert stored(node, key, first_ms, after_ms, reverse) == fold.between(
                    key, first_ms, after_ms, reverse
                )
            replica = node.replicas.by_partition[0]
            assert replica.late_records == fold.late
            state = replica.state
            assert (state.rows, state.deletes, state.dropped) == (
                sum(each.value is not None and not each.dropped for each in sent),
                sum(each.value is None and not each.dropped for each in sent),
                sum(each.dropped for each in sent),
            )


def test_sweeper_deletes_expired_entries(tmp_path: Path) -> None:
    """A sweep deletes the entries that the clock of their partition has passed by the retention, and no others."""
    sent = [Record(b"k", NOON + n * MINUTE) for n in range(100)]
    with opened(tmp_path) as node:
        send(node, sent, 0, 100)
        replica = node.replicas.by_partition[0]
        assert len(sweep(node, replica)) == 39
        assert [entry.offset for entry in stored(node, b"k")] == list(range(39, 100))
        assert sweep(node, replica) == []


def test_record_as_old_as_the_retention_has_an_entry(tmp_path: Path) -> None:
    """A record whose time is exactly the retention before the newest one has an entry, and one a millisecond older is late."""
    sent = [Record(b"k", NOON)] * 10 + [Record(b"k", time) for time in (NOON + HOUR_MS, NOON, NOON - 1)]
    with opened(tmp_path) as node:
        send(node, sent, 0, len(sent))
        assert [entry.offset for entry in stored(node, b"k")] == [*range(10), 11, 10]
        assert node.replicas.by_partition[0].late_records == folded(sent, HOUR_MS).late == 1


def test_wrong_clock_expires_nothing(tmp_path: Path) -> None:
    """Nine records in a row from the far future are kept and expire nothing; the tenth moves the clock."""
    sent = [Record(b"k", NOON)] * 12 + [Record(b"k", NOON + 365 * 24 * HOUR_MS)] * 10
    with opened(tmp_path) as node:
        send(node, sent, 0, 21)
        assert len(stored(node, b"k")) == 21
        send(node, sent, 21, 22)
        assert len(stored(node, b"k")) == 10


@pytest.mark.parametrize("count", [64, 65, 5_000])
def test_tombstone_deletes_few_and_many_entries(tmp_path: Path, count: int) -> None:
    """A tombstone deletes all entries of its key, however many there are, and none of another key."""
    keys = (b"a", b"a\0", b"a\xff")
    sent = [Record(key, NOON + n) for key in keys for n in range(count)] + [Record(b"a", 0, None)]
    with opened(tmp_path) as node:
        for start in range(0, len(sent), 1000):
            send(node, sent, start, min(start + 1000, len(sent)))
        assert [len(stored(node, key)) for key in keys] == [0, count, count]
        more = [*sent, Record(b"a", NOON + 1)]
        send(node, more, len(sent), len(more))
        assert stored(node, b"a") == [Entry(NOON + 1, len(sent), b"{}")]


def test_tombstone_ends_reads_of_its_key(tmp_path: Path) -> None:
    """Behind the entries that it deletes, a tombstone leaves one row that ends reads of its key, until the sweeper removes it."""
    sent = [Record(b"a", NOON + n) for n in range(3)] + [Record(b"a", 0, None), Record(b"none", 0, None)]
    with opened(tmp_path) as node:
        send(node, sent, 0, 3)
        send(node, sent, 3, len(sent))
        replica = node.replicas.by_partition[0]
        [(key, row)] = replica.store.rows()
        assert key == entries_of(b"a").stop
        assert decode_row(row).value is None
        assert sweep(node, replica) == [key]  # the records are from 1970


def test_estimate_is_unknown_after_a_range_was_deleted(tmp_path: Path) -> None:
    """Once the entries of a key were deleted as a range, there is no estimate of rows until a sweep has walked the store."""
    sent = [Record(b"k", NOON + n) for n in range(300)] + [Record(b"k", 0, None), Record(b"k", NOON)]
    with opened(tmp_path) as node:
        send(node, sent, 0, 300)
        keys = node.replicas.by_partition[0].store
        assert keys.keys.count(NOON) == 300
        send(node, sent, 300, 302)
        assert keys.keys.count(NOON) is None
