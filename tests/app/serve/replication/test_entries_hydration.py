"""Test that a replica of a view of entries is copied from a peer with its entries, its clock and what a tombstone deleted."""

from __future__ import annotations

from pathlib import Path

from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.node import Node
from tests.support.entries import HOUR_MS, Record, folded, row_of, view
from tests.support.node import open_node, slice_payload
from tests.support.node_cluster import APPLICATION_ID
from tests.support.trio import Trio

NOON = 1_795_348_800_000
BEFORE = [
    *(Record(b"deleted", NOON + n) for n in range(700)),
    *(Record(b"kept", NOON + n) for n in range(250)),
    Record(b"deleted", 0, None),
    Record(b"deleted", NOON + 800),
]
AFTER = [
    Record(b"kept", NOON + HOUR_MS // 2),
    Record(b"kept", NOON + HOUR_MS + 100),
    Record(b"kept", NOON + 50),  # late by the clock that the copy has from its source
    Record(b"deleted", NOON + HOUR_MS),
]


def stored(node: Node) -> tuple[list[tuple[bytes, bytes]], int, int]:
    replica = node.replicas.by_partition[0]
    return [*replica.store.rows()], replica.max_event_ms, replica.late_records


def test_copied_replica_goes_on_as_its_source(tmp_path: Path) -> None:
    """A copy has the entries of its source without those that a tombstone deleted as a range, and takes later records by the same
    clock."""
    sent = BEFORE + AFTER
    with Trio(tmp_path / "nodes", view=view(retention="1h")) as trio:
        source = trio.nodes[0].node
        rows = [row_of(n, each) for n, each in enumerate(BEFORE)]
        trio.nodes[0].put_slice(*rows[:900])
        trio.nodes[0].put_slice(*rows[900:])
        trio.nodes[0].on_loop(
            lambda: source.replicas.by_partition[0].note_end_offset(monotonic_ms(), len(BEFORE))
        )
        trio.into = tmp_path / "data" / APPLICATION_ID / "p0000"
        assert trio.fetch()

        copy = open_node(tmp_path, view=view(retention="1h"))
        try:
            assert stored(copy) == trio.nodes[0].on_loop(lambda: stored(source))
            assert len(stored(copy)[0]) == 252  # with the row that the tombstone leaves
            copy.replicas.by_partition[0].accepts_slices = True
            later = [row_of(n, sent[n]) for n in range(len(BEFORE), len(sent))]
            copy.slices.apply(slice_payload(*later))
            trio.nodes[0].put_slice(*later)
            assert stored(copy) == trio.nodes[0].on_loop(lambda: stored(source))
            assert stored(copy)[2] == folded(sent, HOUR_MS).late == 1
        finally:
            copy.replicas.close()
