"""Test which replicas give changes, and that waiting for one that gives none costs nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queryable_app.serve.reads import change_sources
from queryable_app.serve.reads.change_sources import local_changes
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.replica_changes import Portion, read_changes
from queryable_app.wire.change_log import Mark
from tests.app.serve.replication.test_keyed_hydration import SETTINGS, VIEW, envelope, user
from tests.support.node import open_node, slice_payload

BEGINNING = {0: Mark(0)}


def test_rekeyed_replica_gives_changes_once_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is not complete takes records later than others do: a reader waits until it is, and then gets its rows."""
    node = open_node(tmp_path, view={**VIEW, "changes": True}, settings=SETTINGS)
    replica = node.replicas.by_partition[0]
    reads = Reads(node)
    looks: list[Mark] = []

    def counted(replica: Replica, mark: Mark) -> Portion:
        looks.append(mark)
        return read_changes(replica, mark)

    monkeypatch.setattr(change_sources, "read_changes", counted)
    node.slices.apply(slice_payload(envelope(0, b"", None), user(1, b"u1"), user(2, b"u2", b"bob@x")))

    waiting = asyncio.run(local_changes(reads, BEGINNING, 0.05))
    assert waiting == {0: Portion((), Mark(0))}
    assert len(looks) == 2

    replica.apply((), replica.state._replace(complete=True))
    given = asyncio.run(local_changes(reads, BEGINNING, 0.05))
    assert [key for key, _, _ in given[0].rows] == [b"ann@x", b"bob@x"]
    assert given[0].mark == Mark(3)
    node.replicas.close()
