"""Changes that are read in portions, from any replicas in turn, are those of the log, and rebuild the rows."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from time import time_ns
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.serve.feed.logged_changes import CHANGES_RETENTION_MS
from queryable_app.serve.node import Node
from queryable_app.serve.store import replica_changes
from queryable_app.serve.store.replica_changes import read_changes, remove_old_changes
from queryable_app.wire.change_log import Mark
from queryable_app.wire.disk_format import decode_row
from tests.support.node import open_node, put, slice_payload

KEYS = [b"a", b"b", b"c", b"d"]
OLD_MS = time_ns() // 1_000_000 - CHANGES_RETENTION_MS - 3_600_000

APPLY, READ, TRIM = "apply", "read", "trim"
STEPS = st.lists(
    st.tuples(
        st.sampled_from([APPLY, APPLY, READ, READ, TRIM]),
        st.integers(0, 1),  # the replica
        st.lists(st.tuples(st.sampled_from(KEYS), st.booleans(), st.booleans()), min_size=1, max_size=4),
    ),
    max_size=25,
)


class World:
    """Two replicas of one partition, and a reader that uses either of them."""

    def __init__(self, directory: Path) -> None:
        self.log: list[tuple[bytes, bytes | None, int]] = []
        self.nodes: list[Node] = []
        for name in ("one", "two"):
            (directory / name).mkdir()
            self.nodes.append(open_node(directory / name, view={"changes": True}))
        self.mark = Mark(0)
        self.seen: dict[bytes, bytes | None] = {}
        self.offsets: list[int] = []
        self.compacted = False

    def produce(self, records: list[tuple[bytes, bool, bool]]) -> None:
        for key, deleted, old in records:
            value = None if deleted else b"%d" % len(self.log)
            self.log.append((key, value, OLD_MS if old else 0))

    def apply(self, ordinal: int) -> None:
        """Let a replica apply all that it does not have yet."""
        position = max(0, self.nodes[ordinal].replicas.by_partition[0].position)
        now = time_ns() // 1_000_000
        rows = [
            put(offset, key, value, time_ms or now)
            for offset, (key, value, time_ms) in enumerate(self.log)
            if offset >= position
        ]
        if rows:
            self.nodes[ordinal].slices.apply(slice_payload(*rows))

    def read(self, ordinal: int) -> bool:
        """Read a portion. Return whether there was anything."""
        portion = read_changes(self.nodes[ordinal].replicas.by_partition[0], self.mark)
        self.compacted |= portion.compacted_until >= 0
        for key, _, stored in portion.rows:
            row = decode_row(stored)
            self.seen[key] = row.value
            if not self.mark.catching_up and portion.compacted_until < 0:
                self.offsets.append(row.offset)
        before, self.mark = self.mark, portion.mark
        return before != self.mark

    def close(self) -> None:
        for node in self.nodes:
            node.replicas.close()


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_reader_ends_with_the_rows_of_the_topic(
    steps: list[tuple[str, int, list[tuple[bytes, bool, bool]]]],
) -> None:
    """Whatever is removed from the logs, and whichever replica answers, the reader ends with the last value of each key, and
    has every change if no log was behind it."""
    with TemporaryDirectory() as directory, patch.object(replica_changes, "ENTRIES_MAX", 2):
        world = World(Path(directory))
        for step, ordinal, records in steps:
            if step == APPLY:
                world.produce(records)
                world.apply(ordinal)
            elif step == READ:
                world.read(ordinal)
            else:
                store = world.nodes[ordinal].replicas.by_partition[0].store
                remove_old_changes(store, time_ns() // 1_000_000 + 1000)
        for ordinal in (0, 1):
            world.apply(ordinal)
        while world.read(0) or world.read(1):
            pass
        world.close()
        expected = {key: value for key, value, _ in world.log}
        assert world.mark == Mark(len(world.log))
        assert {key: world.seen[key] for key in expected} == expected
        assert world.offsets == sorted(set(world.offsets))
        if not world.compacted:
            assert world.offsets == list(range(len(world.log)))


def test_replica_that_lags_is_not_taken_for_one_without_changes(tmp_path: Path) -> None:
    """A reader that catches up from rows waits for a replica that lacks some of them."""
    with patch.object(replica_changes, "ENTRIES_MAX", 2):
        world = World(tmp_path)
        world.produce([(b"a", False, False)])
        world.apply(1)
        world.produce([(key, False, False) for key in KEYS])
        world.apply(0)
        remove_old_changes(world.nodes[0].replicas.by_partition[0].store, time_ns() // 1_000_000 + 1000)
        world.read(0)
        assert world.mark.catching_up
        assert not world.read(1)
        world.apply(1)
        while world.read(1):
            pass
        world.close()
    assert world.seen == {key: value for key, value, _ in world.log}
