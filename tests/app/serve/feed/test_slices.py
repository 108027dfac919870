"""Test slices on real stores: whole ones, replays, gaps and bad records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.serve.feed.slices import DeadLetter, Slices
from queryable_app.serve.node import Node
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.disk_format import ReplicaState, decode_row
from queryable_app.wire.partitioners import ALGORITHMS, partition_for
from queryable_app.wire.row_frames import NULL_KEY, FrameError, SliceRow
from tests.support.node import bad, dropped, null_key, open_node, put, slice_payload

OpenNode = Callable[..., Node]


@pytest.fixture
def node_of(tmp_path: Path) -> Iterator[OpenNode]:
    nodes: list[Node] = []

    def open_(partitions: int = 1, **spec: Any) -> Node:
        nodes.append(open_node(tmp_path, partitions, **spec))
        return nodes[-1]

    yield open_
    for node in nodes:
        node.replicas.close()


def values(replica: Replica) -> dict[bytes, bytes | None]:
    return {key: decode_row(stored).value for key, stored in replica.store.rows()}


def test_slice_sets_rows_position_and_counters(node_of: OpenNode) -> None:
    """Rows, tombstones, dropped rows and null keys are counted apart; the position is after the last offset."""
    node = node_of()

    node.slices.apply(slice_payload(put(3, b"a", b"1"), put(4, b"b", None), dropped(5, b"c"), last=9))
    node.slices.apply(slice_payload(null_key(10), put(11, b"d", b"1"), null_key(12)))

    replica = node.replicas.by_partition[0]
    assert values(replica) == {b"a": b"1", b"b": None, b"c": None, b"d": b"1"}
    assert replica.state == ReplicaState(
        13, False, rows=2, deletes=1, null_keys=2, dropped=1, last_timestamp_ms=7
    )


def test_gap_before_a_slice_is_accepted(node_of: OpenNode) -> None:
    """Offsets that never arrive, compacted or markers, do not hold a slice back."""
    node = node_of()
    node.slices.apply(slice_payload(put(0, b"a", b"1")))

    node.slices.apply(slice_payload(put(50, b"b", b"2")))

    assert node.replicas.by_partition[0].position == 51


def test_records_without_a_key_move_the_position(node_of: OpenNode) -> None:
    """Records without a key are counted, and store nothing under the empty key."""
    node = node_of()

    node.slices.apply(slice_payload(null_key(0), null_key(4)))

    replica = node.replicas.by_partition[0]
    assert (replica.state, values(replica)) == (ReplicaState(5, null_keys=2, last_timestamp_ms=7), {})


def test_replayed_slice_changes_nothing(node_of: OpenNode) -> None:
    """A slice that was applied before changes no rows, position or counters."""
    node = node_of()
    replayed = slice_payload(put(0, b"a", b"old"), put(1, b"b", b"1"))
    node.slices.apply(replayed)
    node.slices.apply(slice_payload(put(2, b"a", b"new")))
    before = node.replicas.by_partition[0].state

    node.slices.apply(replayed)

    assert (node.replicas.by_partition[0].state, values(node.replicas.by_partition[0])) == (
        before,
        {b"a": b"new", b"b": b"1"},
    )


def test_partial_replay_applies_only_new_rows(node_of: OpenNode) -> None:
    """Rows below the position are neither applied nor counted again."""
    node = node_of()
    node.slices.apply(slice_payload(put(0, b"a", b"1"), put(1, b"a", b"2")))

    node.slices.apply(slice_payload(put(0, b"a", b"1"), put(1, b"a", b"2"), put(2, b"b", None)))

    replica = node.replicas.by_partition[0]
    assert values(replica) == {b"a": b"2", b"b": None}
    assert (replica.position, replica.state.rows, replica.state.deletes) == (3, 2, 1)


def test_any_order_of_replays_ends_as_the_log(node_of: OpenNode) -> None:
    """However slices overlap, if none begins above the position, the store is the fold of the log."""
    node = node_of()
    log = [put(o, f"k{o % 5}".encode(), None if o % 7 == 3 else str(o).encode()) for o in range(30)]
    replica = node.replicas.by_partition[0]

    @given(cuts=st.lists(st.tuples(st.integers(0, 29), st.integers(1, 12)), min_size=1, max_size=12))
    def check(cuts: list[tuple[int, int]]) -> None:
        replica.rebuild()
        for start, length in cuts:
            start = min(start, max(0, replica.position))
            node.slices.apply(slice_payload(*log[start : start + length]))

        sent = log[: replica.position]
        expected = {row.disk_key: decode_row(row.stored).value for row in sent}
        assert values(replica) == expected
        assert replica.state.rows + replica.state.deletes == len(sent)

    check()


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["row", "tombstone", "dropped", "null key", "bad"]), st.integers(0, 5), st.booleans()
    ),
    min_size=1,
    max_size=12,
)


def rows_of(records: Sequence[tuple[str, int, bool]]) -> list[SliceRow]:
    """Return rows in offset order; True leaves a gap before a row."""
    offset, rows = -1, []
    for kind, number, gap in records:
        offset += 2 if gap else 1
        key = f"k{number}".encode()
        rows.append(
            {
                "row": put(offset, key, b"v%d" % offset),
                "tombstone": put(offset, key, None),
                "dropped": dropped(offset, key),
                "null key": null_key(offset),
                "bad": bad(offset, key, f"bad at {offset}"),
            }[kind]
        )
    return rows


def slice_as_sent(rows: Sequence[SliceRow]) -> bytes:
    """Return the frame with the mismatches that the writer counts, in a topic of four partitions."""
    keys = [row.disk_key for row in rows if row.kind != NULL_KEY]
    mismatches = {
        f"mismatches_{algorithm}": sum(partition_for(key, algorithm, 4) != 0 for key in keys)
        for algorithm in ALGORITHMS
    }
    return slice_payload(*rows, **mismatches)


@pytest.mark.parametrize("policy", ["Skip", "Fail"])
def test_partial_replay_gives_the_same_rows(node_of: OpenNode, policy: str) -> None:
    """Wherever a first slice ended, the rest of a longer one that overlaps it sets every row and every counter. So do slices
    that arrive together."""
    node = node_of(4, onBadRecord=policy)
    replica = node.replicas.by_partition[0]

    def applied(*slices: Sequence[SliceRow], together: bool = False) -> Any:
        replica.rebuild()
        if together:
            node.slices.apply(*[slice_as_sent(sent) for sent in slices if sent])
        for sent in slices if not together else ():
            if sent:
                node.slices.apply(slice_as_sent(sent))
        return replica.state, values(replica), replica.store.last_bad, replica.failed

    @given(records=RECORDS, cut=st.integers(0, 12))
    def check(records: Sequence[tuple[str, int, bool]], cut: int) -> None:
        rows = rows_of(records)
        assert applied(rows[:cut], rows) == applied(rows)
        assert applied(rows[: cut // 2], rows[cut // 2 : cut], rows[cut:], together=True) == applied(rows)
        assert applied(rows[:cut], rows, together=True) == applied(rows)

    check()


def test_slice_of_an_unknown_partition_is_refused(node_of: OpenNode) -> None:
    """A slice of a partition that the topic does not have raises FrameError."""
    with pytest.raises(FrameError, match="partition 7"):
        node_of().slices.apply(slice_payload(put(0, b"a", b"1"), partition=7))


def test_partial_slice_is_never_applied(node_of: OpenNode) -> None:
    """A slice that ends within a row raises, and none of its rows is written."""
    node = node_of()

    with pytest.raises(FrameError):
        node.slices.apply(slice_payload(put(0, b"a", b"1"), put(1, b"b", b"2"))[:-1])

    assert (values(node.replicas.by_partition[0]), node.replicas.by_partition[0].position) == ({}, -1)


def test_skipped_bad_record_is_counted_and_shown(node_of: OpenNode) -> None:
    """Skip leaves no row; status has the last one's offset, reason and key as bounded text."""
    node = node_of(onBadRecord="Skip")

    node.slices.apply(
        slice_payload(put(0, b"a", b"1"), bad(1, b"x", "early"), bad(2, b"\xff" * 500, "not JSON"), last=3)
    )

    replica = node.replicas.by_partition[0]
    assert (replica.position, replica.state.bad, values(replica)) == (4, 2, {b"a": b"1"})
    assert replica.store.last_bad == {
        "offset": 2,
        "timestampMs": 7,
        "reason": "not JSON",
        "key": "\ufffd" * 200,
    }


def test_fail_stops_the_partition_at_the_record(node_of: OpenNode) -> None:
    """What came before the record is applied, position and counters stay there, and nothing later is taken."""
    node = node_of(2, onBadRecord="Fail")
    node.slices.apply(slice_payload(put(0, b"a", b"1"), bad(1, b"x", "not JSON"), put(2, b"b", b"2")))
    node.slices.apply(slice_payload(put(3, b"c", b"3")))
    node.slices.apply(slice_payload(put(0, b"d", b"4"), partition=1))

    stopped, other = node.replicas.by_partition[0], node.replicas.by_partition[1]
    assert (stopped.position, stopped.state.bad, values(stopped)) == (1, 0, {b"a": b"1"})
    assert stopped.failed is not None
    assert "offset 1 cannot be decoded (not JSON)" in stopped.failed
    assert (other.failed, other.position) == (None, 1)


class StoredDeadLetters:
    """Store dead letters in memory; `test_dead_letters` tests the real sender."""

    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []

    async def send_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        self.letters += letters


def test_dead_letters_are_sent_before_their_slice_and_not_again(node_of: OpenNode) -> None:
    """Each bad record above the position goes out once; replayed ones do not."""
    node, sent = node_of(), StoredDeadLetters()
    slices = Slices(node.replicas, node.codec, "DeadLetter", sent)
    first = slice_payload(put(0, b"a", b"1"), bad(1, b"x", "r1", b"raw1"))
    overlapping = slice_payload(bad(1, b"x", "r1", b"raw1"), bad(2, b"y", "r2", b"raw2"))

    async def run() -> None:
        for payload in (first, overlapping, first):
            await slices.write_dead_letters(payload)
            slices.apply(payload)

    asyncio.run(run())

    assert [(letter.offset, letter.bad.value) for letter in sent.letters] == [(1, b"raw1"), (2, b"raw2")]
    assert node.replicas.by_partition[0].state.bad == 2


def test_mismatch_changes_the_partitioner_in_use(
    node_of: OpenNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """One record against murmur2 is enough; it is logged once, and the same after a restart."""
    node = node_of(4)
    for offset in (0, 1):
        node.slices.apply(slice_payload(put(offset, b"a", b"1"), mismatches_murmur2=1))

    assert node.replicas.partitioning.algorithm == "crc32"
    assert capfd.readouterr().err.count('"event": "partitioner"') == 1
    node.replicas.close()
    assert node_of(4).replicas.partitioning.algorithm == "crc32"


def test_partly_replayed_slice_counts_the_mismatches_of_its_new_rows(node_of: OpenNode) -> None:
    """The node counts the mismatches of the new rows itself, since the header counts those of the whole slice."""
    node = node_of(4)
    node.slices.apply(slice_payload(put(0, b"k0", b"1")))
    key = next(k for i in range(99) if partition_for(k := f"k{i}".encode(), "murmur2", 4) != 0)

    node.slices.apply(slice_payload(put(0, b"k0", b"1"), put(1, key, b"2"), mismatches_murmur2=2))

    assert node.replicas.by_partition[0].state.mismatches[0] == 1


def test_replica_becomes_complete_at_the_end_offset(node_of: OpenNode) -> None:
    """A replica becomes complete with the slice that reaches the end offset, and stays complete after a restart."""
    node = node_of()
    replica = node.replicas.by_partition[0]
    replica.note_end_offset(1000, 2)
    node.slices.apply(slice_payload(put(0, b"a", b"1")))
    assert (replica.complete, replica.fresh_as_of_ms) == (False, -1)

    node.slices.apply(slice_payload(put(1, b"a", b"1")))

    assert (replica.complete, replica.fresh_as_of_ms) == (True, 1000)
    node.replicas.close()
    assert node_of().replicas.by_partition[0].complete


def test_freshness_advances_under_steady_load(node_of: OpenNode) -> None:
    """A replica that is always a little behind is as fresh as the last sample that it has passed."""
    node = node_of()
    replica = node.replicas.by_partition[0]
    for step in range(1, 6):
        replica.note_end_offset(step * 100, step * 2)
        node.slices.apply(slice_payload(put(step * 2 - 1, b"a", b"1")))
        replica.note_end_offset(step * 100 + 50, step * 2 + 1)  # never reached at that moment

    assert replica.fresh_as_of_ms == 500


def test_wait_ends_when_the_position_is_reached(node_of: OpenNode) -> None:
    """`wait_for` returns True when the position is reached, and False at the deadline or when the replica
    fails."""
    node = node_of()

    async def run() -> list[bool]:
        soon = asyncio.get_running_loop().time() + 5
        waiting = [asyncio.create_task(node.replicas.wait_for(0, p, soon)) for p in (1, 2, 3)]
        late = await node.replicas.wait_for(0, 1, soon - 4.95)
        node.slices.apply(slice_payload(put(0, b"a", b"1"), put(1, b"a", b"2")))
        answers = [late, *(await asyncio.gather(*waiting[:2]))]
        assert not waiting[2].done()
        node.replicas.by_partition[0].fail("disk")
        return [*answers, await waiting[2]]

    assert asyncio.run(run()) == [False, True, True, False]


def test_replica_of_an_empty_log_is_complete(node_of: OpenNode) -> None:
    """Before any slice it is complete, and a wait for offset 0 ends at once."""
    node = node_of()
    replica = node.replicas.by_partition[0]

    replica.note_end_offset(1000, 0)

    assert (replica.position, replica.complete, replica.fresh_as_of_ms) == (-1, True, 1000)
    assert asyncio.run(replica.wait_for_position(0, deadline=0))
    assert not asyncio.run(replica.wait_for_position(1, deadline=0))
