"""Test how far a replica of a rekeyed view is in its source, and that it is on disk with the rows."""

from __future__ import annotations

from pathlib import Path

from queryable_app.policy.source_positions import SourcePositions
from queryable_app.serve.store.rekeyed_replica import RekeyedReplica
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import Identity
from queryable_app.wire.envelopes import Envelope


def _store(path: Path) -> Store:
    return Store.open(path / "p0000", Identity("app", "app.rekey", 0), SharedMemory(8, 8, 1, 100))


def _apply(replica: RekeyedReplica, offsets: tuple[int, int]) -> None:
    """Apply a slice that takes the replica to these source offsets."""
    sources = SourcePositions.none(2)
    for partition, offset in enumerate(offsets):
        sources.take(Envelope(partition, 0, 0, 0, 1, 0, 0))
        sources.take(Envelope(partition, offset, 0, 0, 1, 1, 0))
    replica.apply((), replica.state._replace(position=replica.position + 1), sources=sources)


def test_source_positions_survive_a_restart(tmp_path: Path) -> None:
    """A store that is opened again has the source positions of its last slice; an emptied one has none."""
    replica = RekeyedReplica(0, "active", _store(tmp_path), 2)
    _apply(replica, (5, 7))
    replica.close()
    again = RekeyedReplica(0, "active", _store(tmp_path), 2)
    assert again.source_offsets == (5, 7)
    again.rebuild()
    assert again.source_offsets == (0, 0)
    again.close()
    emptied = RekeyedReplica(0, "active", _store(tmp_path), 2)
    assert emptied.source_offsets == (0, 0)
    emptied.close()


def test_replica_is_complete_when_it_reaches_the_end_of_every_source_partition(tmp_path: Path) -> None:
    """One source partition that is ahead does not make up for another one that is behind."""
    replica = RekeyedReplica(0, "active", _store(tmp_path), 2)
    replica.note_source_ends(1000, (5, 7))
    seen = []
    for offsets in ((9, 6), (9, 7)):
        _apply(replica, offsets)
        seen.append((replica.complete, replica.fresh_as_of_ms))
    assert seen == [(False, -1), (True, 1000)]
    replica.close()
