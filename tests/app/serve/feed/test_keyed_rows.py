"""Test latest values under another key on real stores: the rows are those of the source, whatever the jobs have written."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.serve.feed import logged_changes
from queryable_app.serve.node import Node
from queryable_app.serve.store import replica_changes
from queryable_app.serve.store.rekeyed_replica import RekeyedReplica
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.disk_format import ROW_HEADER, decode_row
from queryable_app.wire.hidden_rows import END, FIRST
from queryable_app.wire.row_frames import ROW, SliceRow
from tests.support.folded_changes import FoldedChanges, live_rows
from tests.support.node import open_node, slice_payload
from tests.support.rekeying_jobs import Message, ReplicaState, Run, Source, latest_values, start_run

PARTITIONS = 3
FOREVER_MS = 1 << 60
PLACES_MAX = 2  # of the keys that a run remembers: fewer than there are

RECORD_KEYS = (None, b"k1", b"k2", b"k3", b"k4")
NEW_KEYS = (None, b"0", b"0", b"1", b"2", b"3")
ACTIONS = (
    ("produce",) * 4
    + ("read",) * 4
    + ("write", "write", "apply", "apply", "mark", "repeat", "restart", "compact", "hand over")
)


MISSED_MOVE: list[tuple[Any, ...]] = [
    ("produce", 0, b"k1", b"0", 0),
    ("produce", 0, b"k1", b"2", 0),
    ("read", 0, 0),
    ("read", 0, 0),
    ("write", 0, 2, 9),
    ("apply", 2, 9),
    ("read", 1, 0),
    ("produce", 0, b"k1", b"1", 0),
    ("compact", 0),
    ("read", 1, 0),
    ("mark", 1, 0),
    ("write", 1, 2, 9),
    ("apply", 2, 9),
]
"""The second job never sees the move to partition 2, since the source has compacted that record, and says nothing there."""


def keyed_node(directory: Path, **more: Any) -> Node:
    view = {"kind": "latest", "keyBy": ["email"], **more}
    return open_node(directory, PARTITIONS, view=view, settings={"group_key_format": "string"})


def complete(replica: Replica) -> None:
    replica.apply((), replica.state._replace(complete=True))


def rows_of(node: Node) -> dict[bytes, bytes | None]:
    found = [row for replica in node.replicas.by_partition.values() for row in replica.store.rows()]
    return {key: decode_row(stored).value for key, stored in found}


def stored_in(node: Node) -> list[Any]:
    """Return all that a node has stored, with the rows behind those that it shows."""
    replicas = [node.replicas.by_partition[partition] for partition in range(PARTITIONS)]
    hidden = [[*replica.store.entries(FIRST, END)] for replica in replicas]
    return [[*replica.store.rows()] for replica in replicas] + hidden


class World:
    """Run two jobs over a source, and apply their internal topic to a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.source = Source(PARTITIONS)
        self.log: list[list[Message]] = [[] for _ in range(PARTITIONS)]
        self.compacted = False
        self._runs = count(1)
        for partition in range(PARTITIONS):
            self.replica(partition).rebuild()
        self.jobs: list[Run] = [self._start(0), self._start(0)]

    def replica(self, partition: int) -> RekeyedReplica:
        replica = self.node.replicas.by_partition[partition]
        assert isinstance(replica, RekeyedReplica)
        return replica

    def _start(self, before: int) -> Run:
        states = [
            ReplicaState(partition, replica.source_offsets, replica.sources.refused_runs)
            for partition in range(PARTITIONS)
            for replica in (self.replica(partition),)
        ]
        return start_run(next(self._runs), before, states, self.source.ends, PLACES_MAX)

    def act(self, action: tuple[Any, ...]) -> None:
        match action:
            case "produce", partition, record_key, new_key, timestamp_ms:
                self.source.append(partition, record_key, new_key, timestamp_ms)
            case "read", job, partition:
                self.jobs[job].read(self.source, partition)
            case "mark", job, partition:
                self.jobs[job].mark(partition)
            case "write", job, partition, number:
                pending = self.jobs[job].pending[partition]
                self.log[partition] += pending[:number]
                del pending[:number]
            case "hand over", job, partition:
                for to, pending in enumerate(self.jobs[job].pending):
                    self.log[to] += pending
                    pending.clear()
                self.jobs[job].hand_over(partition)
            case "apply", partition, number:
                self.apply(self.node, partition, self.replica(partition).position, number)
            case "repeat", partition, number:
                self.apply(self.node, partition, self.replica(partition).position - number, number + 1)
            case "restart", job:
                self.jobs[job] = self._start(self.jobs[job].run)
            case "compact", partition:
                self.source.compact(partition)
                self.compacted = True

    def apply(self, node: Node, partition: int, first: int, number: int) -> None:
        first = max(0, first)
        rows = [
            SliceRow(key, ROW_HEADER.pack(0, offset, 1, 0) + value, ROW, offset)
            for offset, (key, value) in enumerate(self.log[partition][first : first + number], first)
        ]
        if rows:
            node.slices.apply(slice_payload(*rows, partition=partition))

    def settle(self) -> None:
        """Let one job run alone until it has written everything."""
        before = self.jobs[0].run
        for _ in range(3):  # one refusal at most, and then a run that no replica refuses
            run = self._start(before)
            for partition, end in enumerate(self.source.ends):
                for _ in self.source.by_partition[partition]:
                    run.read(self.source, partition)
                run.mark(partition, end)
            for partition in range(PARTITIONS):
                self.log[partition] += run.pending[partition]
                self.apply(self.node, partition, self.replica(partition).position, 10_000)
            before = run.run

    def check(self) -> None:
        """Without compaction each replica has the rows of the records before its source positions."""
        if self.compacted:
            return
        for partition in range(PARTITIONS):
            offsets = self.replica(partition).source_offsets
            latest = latest_values(r for r in self.source.records if r.offset < offsets[r.partition])
            expected = {key: value for key, value in latest.items() if key[0] % PARTITIONS == partition}
            found = {key: decode_row(stored).value for key, stored in self.replica(partition).store.rows()}
            assert found == expected


def drawn(dice: random.Random) -> tuple[Any, ...]:
    """Return an action. Most of them are about one source partition, so that keys meet."""
    action, job, number = dice.choice(ACTIONS), dice.randrange(2), dice.randrange(1, 10)
    partition = dice.choice((0, 0, 0, 1, 2))
    match action:
        case "produce":
            return action, partition, dice.choice(RECORD_KEYS), dice.choice(NEW_KEYS), dice.randrange(-2, 3)
        case "read" | "mark" | "hand over":
            return action, job, partition
        case "write":
            return action, job, dice.randrange(PARTITIONS), number
        case "restart":
            return action, job
        case "compact":
            return action, partition
    return action, dice.randrange(PARTITIONS), number


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    opened = keyed_node(tmp_path_factory.mktemp("one")), keyed_node(tmp_path_factory.mktemp("two"))
    yield opened
    for node in opened:
        node.replicas.close()


def check(nodes: tuple[Node, Node], actions: Iterable[tuple[Any, ...]]) -> None:
    """Check the rows of one node on the way and at the end, and that the other one, which reads at once, stores the same."""
    node, other = nodes
    world = World(node)
    for action in actions:
        world.act(action)
        if action[0] == "apply":
            world.check()
    world.settle()
    for partition in range(PARTITIONS):
        assert world.replica(partition).source_offsets == tuple(world.source.ends)
        other.replicas.by_partition[partition].rebuild()
        world.apply(other, partition, 0, 10_000)
    assert rows_of(node) == latest_values(world.source.records)
    assert stored_in(other) == stored_in(node)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 200))
def test_rows_are_those_of_the_source_whatever_jobs_do(
    nodes: tuple[Node, Node], seed: int, length: int
) -> None:
    """Two jobs that restart and lose messages, a source that is compacted, and slices cut anywhere: the rows are the oracle's,
    and a replica that reads the internal topic in one piece stores the same."""
    dice = random.Random(seed)
    check(nodes, [drawn(dice) for _ in range(length)])


def test_move_that_a_job_never_saw_is_not_missed(nodes: tuple[Node, Node]) -> None:
    """A job that relies on what it remembers is refused where another job has brought a record since."""
    check(nodes, MISSED_MOVE)


def test_moved_and_deleted_records_leave_nothing_behind(nodes: tuple[Node, Node]) -> None:
    """After moves and tombstones neither rows nor entries are left."""
    world = World(nodes[0])
    for record in ((b"k1", b"0"), (b"k2", b"0"), (b"k2", b"1"), (b"k1", b"1"), (b"k1", None), (b"k2", None)):
        world.act(("produce", 0, *record, 0))
        world.settle()
    assert stored_in(nodes[0]) == [[] for _ in range(2 * PARTITIONS)]


@pytest.fixture(scope="module")
def logging_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    opened = tuple([keyed_node(tmp_path_factory.mktemp("logs"), changes=True) for _ in range(2)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logged_changes, "CHANGES_RETENTION_MS", FOREVER_MS)
        patch.setattr(replica_changes, "ENTRIES_MAX", 3)
        yield opened[0], opened[1]
    for node in opened:
        node.replicas.close()


@given(st.integers(0, 2**32), st.integers(1, 120))
def test_changes_fold_to_the_rows(logging_nodes: tuple[Node, Node], seed: int, length: int) -> None:
    """A reader that goes from replica to replica, and stays away for longer than the log is retained, has every row of a key
    that moved, was deleted or is shown again."""
    dice = random.Random(seed)
    node, other = logging_nodes
    world = World(node)
    readers = [FoldedChanges() for _ in range(PARTITIONS)]
    for partition in range(PARTITIONS):
        other.replicas.by_partition[partition].rebuild()
        for each in logging_nodes:
            complete(each.replicas.by_partition[partition])
    for _ in range(length):
        world.act(drawn(dice))
        partition, source = dice.randrange(PARTITIONS), dice.choice(logging_nodes)
        replica = source.replicas.by_partition[partition]
        match dice.choice(("read", "read", "copy", "forget")):
            case "read":
                readers[partition].read(replica)
            case "copy":
                world.apply(other, partition, other.replicas.by_partition[partition].position, 4)
            case "forget" if dice.random() < 0.2:
                replica_changes.remove_old_changes(replica.store, FOREVER_MS)
    world.settle()
    for partition, reader in enumerate(readers):
        copy = other.replicas.by_partition[partition]
        world.apply(other, partition, copy.position, 10_000)
        reader.read_to_end(copy)
        assert reader.rows == live_rows(copy) == live_rows(world.replica(partition))


def test_reader_may_leave_a_replica_that_takes_the_source_again(logging_nodes: tuple[Node, Node]) -> None:
    """A replica that takes the source again, since its internal topic was truncated, has no changes at offsets at which other
    replicas have none. So a reader that continues at another one misses nothing."""
    node, late = logging_nodes
    world, partition = World(node), b"0"[0] % PARTITIONS
    complete(world.replica(partition))
    for number in range(8):
        world.act(("produce", 0, b"k%d" % number, b"0%d" % number, 0))
    world.settle()
    truncated_until, replica = len(world.log[partition]), late.replicas.by_partition[partition]
    replica.rebuild()
    again = Run(100, PARTITIONS, [0] * PARTITIONS, [0] * PARTITIONS, PLACES_MAX)
    for _ in range(8):
        again.read(world.source, 0)
    world.log[partition] += again.pending[partition]
    world.apply(node, partition, truncated_until, 10_000)
    for first in range(truncated_until, len(world.log[partition]), 2):
        world.apply(late, partition, first, 2)
    complete(replica)
    reader = FoldedChanges()
    reader.read(replica)
    reader.read_to_end(world.replica(partition))
    assert len(reader.rows) == 8
    assert reader.rows.keys() == live_rows(world.replica(partition)).keys()
