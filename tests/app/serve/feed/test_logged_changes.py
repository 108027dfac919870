"""Test the change log of views whose records change several rows each: of two replicas, whatever their slices were."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.serve.feed import logged_changes
from queryable_app.serve.node import Node
from queryable_app.serve.store import replica_changes
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.row_frames import SliceRow
from tests.support.folded_changes import FoldedChanges, live_rows
from tests.support.node import open_node, slice_payload
from tests.support.windows import Record, row_of, view

VIEWS = {
    "tumbling": view(size="20ms", grace="1h", retention="1d"),
    "hopping": view(size="20ms", slide="5ms", grace="1h", retention="1d"),
    "sessions": view(sessionGap="10ms", grace="1h", retention="1d"),
}
FOREVER_MS = 1 << 60


@pytest.fixture(scope="module", autouse=True)
def small_portions() -> Iterator[None]:
    """Log records of any age, and read few changes at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logged_changes, "CHANGES_RETENTION_MS", FOREVER_MS)
        patch.setattr(replica_changes, "ENTRIES_MAX", 3)
        yield


@pytest.fixture(scope="module", params=VIEWS)
def nodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    of_view = VIEWS[request.param] | {"changes": True}
    opened = [open_node(tmp_path_factory.mktemp("node"), view=of_view) for _ in range(2)]
    yield opened
    for node in opened:
        node.replicas.close()


def replicas_of(nodes: list[Node]) -> list[Replica]:
    return [node.replicas.by_partition[0] for node in nodes]


def check(nodes: list[Node], row: Callable[[int], SliceRow], records: int, dice: random.Random) -> None:
    """Apply records to two replicas, each in slices of its own, and let a reader go from one to the other."""
    replicas, reader = replicas_of(nodes), FoldedChanges()
    for replica in replicas:
        replica.rebuild()
    while any(replica.position < records for replica in replicas):
        which = dice.randrange(2)
        node, replica = nodes[which], replicas[which]
        match dice.choice(("apply", "apply", "read", "read", "forget")):
            case "apply":
                first = max(0, replica.position)
                rows = [row(offset) for offset in range(first, min(records, first + dice.randrange(1, 9)))]
                if rows:
                    node.slices.apply(slice_payload(*rows))
            case "read":
                reader.read(replica)
            case "forget" if dice.random() < 0.2:
                replica_changes.remove_old_changes(replica.store, FOREVER_MS)
    for replica in replicas:
        late = FoldedChanges()
        late.read_to_end(replica)
        assert late.rows == live_rows(replica)
    reader.read_to_end(replicas[0])
    assert reader.rows == live_rows(replicas[0]) == live_rows(replicas[1])


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_changes_of_windows_fold_to_the_windows(nodes: list[Node], seed: int, records: int) -> None:
    """A reader that goes from replica to replica has each window as the view has it, and none that was merged away."""
    dice = random.Random(seed)
    log = [
        Record(dice.choice((b"a", b"a\0", b"")), n * 3 + dice.randrange(-30, 30), dice.randrange(9))
        for n in range(records)
    ]
    check(nodes, lambda offset: row_of(offset, log[offset]), records, dice)


def test_changes_of_one_record_come_together(tmp_path: Path) -> None:
    """A portion ends at no offset of which some changes are left: a mark could not say which."""
    node = open_node(tmp_path, view=VIEWS["hopping"] | {"changes": True})
    replica = node.replicas.by_partition[0]
    node.slices.apply(slice_payload(row_of(0, Record(b"a", 100, 1)), row_of(1, Record(b"b", 100, 1))))
    reader = FoldedChanges()

    reader.read(replica)

    assert len(reader.rows) == 4
    assert reader.mark.position == 1
    node.replicas.close()
