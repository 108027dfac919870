"""The oracle itself: the laws that any right view keeps."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fold import FoldedRow, LogRecord, fold

KEYS = st.sampled_from((None, b"", b"a", b"b", b"c"))
VALUES = st.none() | st.binary(max_size=2)


@st.composite
def topics(draw: st.DrawFn, partitions: int = 3) -> list[LogRecord]:
    """Draw logs with gaps, timestamps in any order, and keys in several partitions."""
    records = []
    for partition in range(partitions):
        offset = 0
        for key, value, gap, timestamp in draw(
            st.lists(st.tuples(KEYS, VALUES, st.integers(1, 3), st.integers(0, 5)), max_size=8)
        ):
            offset += gap
            records.append(LogRecord(partition, offset, timestamp, key, value))
    return records


def test_last_record_of_a_key_wins() -> None:
    """Within a partition the higher offset wins, even with an older timestamp."""
    log = [LogRecord(0, 0, 100, b"k", b"first"), LogRecord(0, 1, 50, b"k", b"second")]
    assert fold(log) == {b"k": FoldedRow(0, 1, 50, b"second")}


def test_a_tombstone_deletes() -> None:
    """A key whose last record has no value is not there."""
    assert fold([LogRecord(0, 0, 1, b"k", b"v"), LogRecord(0, 1, 2, b"k", None)]) == {}


def test_record_after_a_tombstone_is_live() -> None:
    """A record after a tombstone is there again."""
    log = [LogRecord(0, 0, 1, b"k", b"v"), LogRecord(0, 1, 2, b"k", None), LogRecord(0, 2, 3, b"k", b"again")]
    assert fold(log) == {b"k": FoldedRow(0, 2, 3, b"again")}


def test_refused_record_deletes() -> None:
    """A record that the filter refuses deletes the older row of its key."""
    log = [LogRecord(0, 0, 1, b"k", b"good"), LogRecord(0, 1, 2, b"k", b"bad")]
    assert fold(log, keep=lambda record: record.value != b"bad") == {}


def test_values_are_transformed() -> None:
    """Rows hold what the transformation made of the value."""
    assert fold([LogRecord(0, 0, 1, b"k", b"v")], transform=bytes.upper) == {b"k": FoldedRow(0, 0, 1, b"V")}


def test_record_without_a_key_makes_no_row() -> None:
    """A record without a key leaves nothing; the empty key is a key like others."""
    assert list(fold([LogRecord(0, 0, 1, None, b"v"), LogRecord(0, 1, 1, b"", b"v")])) == [b""]


@pytest.mark.parametrize(
    ("one", "other", "winner"),
    [
        ((0, 9, 1), (1, 0, 2), 1),
        ((0, 9, 2), (1, 0, 1), 0),
        ((1, 1, 5), (0, 2, 5), 1),
        ((0, 3, 5), (1, 3, 5), 1),
    ],
    ids=["timestamp", "timestamp before offset", "offset", "partition"],
)
def test_newest_partition_wins(one: tuple[int, int, int], other: tuple[int, int, int], winner: int) -> None:
    """A key in several partitions has its newest record: by timestamp, then offset, then partition."""
    log = [LogRecord(*one, b"k", b"0"), LogRecord(*other, b"k", b"1")]
    assert fold(log)[b"k"].value == str(winner).encode()


def test_newer_tombstone_of_another_partition_deletes() -> None:
    """A tombstone also deletes an older record that another producer wrote to another partition."""
    assert fold([LogRecord(0, 0, 1, b"k", b"v"), LogRecord(1, 0, 2, b"k", None)]) == {}


@given(topics(), st.data())
def test_interleaving_does_not_matter(log: list[LogRecord], data: st.DataObject) -> None:
    """Partitions may be read in any interleaving: the view is the same."""
    assert fold(data.draw(st.permutations(log))) == fold(log)


@given(topics(), st.data())
def test_replays_do_not_matter(log: list[LogRecord], data: st.DataObject) -> None:
    """Reading any part of the log again changes nothing."""
    again = data.draw(st.lists(st.sampled_from(log), max_size=10)) if log else []
    assert fold(log + again) == fold(log)


@given(topics())
def test_compaction_does_not_matter(log: list[LogRecord]) -> None:
    """A log of which Kafka kept only each key's last record gives the same view."""
    compacted = {(r.partition, r.key): r for r in log}
    assert fold(compacted.values()) == fold(log)


@given(topics(partitions=1))
def test_one_partition_equals_a_dict(log: list[LogRecord]) -> None:
    """With one partition a view is what a plain dict holds after the log's writes and deletes."""
    plain: dict[bytes, bytes] = {}
    for record in log:
        if record.key is None:
            continue
        if record.value is None:
            plain.pop(record.key, None)
        else:
            plain[record.key] = record.value
    assert {key: row.value for key, row in fold(log).items()} == plain


@given(topics())
def test_partitions_fold_apart(log: list[LogRecord]) -> None:
    """A key's row is that of one of its partitions: folding a view never invents a value."""
    of_partition = defaultdict(list)
    for record in log:
        of_partition[record.partition].append(record)
    apart = {p: fold(records) for p, records in of_partition.items()}
    assert all(apart[row.partition][key] == row for key, row in fold(log).items())
