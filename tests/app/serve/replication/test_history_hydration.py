"""Test that a replica of a view with history is copied from a peer with its versions and its floor."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.node import Node
from queryable_app.serve.store.history_sweep import raise_floor
from tests.support.node import open_node
from tests.support.node_cluster import APPLICATION_ID
from tests.support.trio import Trio

VIEW: Final[dict[str, Any]] = {"kind": "history", "history": {"retention": "2s"}}


def past(node: Node) -> object:
    """Return all versions of the first partition, and what is known of them."""
    store = node.replicas.by_partition[0].store
    assert store.history is not None
    return [*store.versions(b"", b"\2", False)], store.history.state


def test_copied_replica_has_the_versions_and_the_floor_of_its_source(tmp_path: Path) -> None:
    """A copy answers for the same moments as the replica that it was copied from."""
    with Trio(tmp_path / "nodes", view=VIEW) as trio:
        for moment in range(1, 9):
            trio.nodes[0].put(b"a", b"%d" % moment, partition=0, timestamp_ms=moment * 1000)
        source = trio.nodes[0].node
        trio.nodes[0].on_loop(
            lambda: source.replicas.by_partition[0].note_end_offset(monotonic_ms(), 8)  # it is complete
        )
        trio.nodes[0].on_loop(lambda: raise_floor(source.replicas.by_partition[0].store, 5500))
        trio.into = tmp_path / "data" / APPLICATION_ID / "p0000"
        assert trio.fetch()

        copy = open_node(tmp_path, view=VIEW)
        try:
            assert past(copy) == trio.nodes[0].on_loop(lambda: past(source))
            history = copy.replicas.by_partition[0].store.history
            assert history is not None
            assert history.state.floor_position == 3
        finally:
            copy.replicas.close()
