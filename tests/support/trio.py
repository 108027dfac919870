"""Start three nodes, of which one hydrates its replica from the other two."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from queryable_app.placement.assignment import Placement
from queryable_app.serve.replication.hydration import PeerHydration
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.wire.checkpoint_files import CheckpointInProgress, Manifest
from queryable_app.wire.disk_format import Identity, ReplicaState, Row, encode_row
from tests.support.damage import damage_rows
from tests.support.node_cluster import APPLICATION_ID, NodeCluster
from tests.support.served import Served
from tests.support.waiting import eventually

IDENTITY = Identity(APPLICATION_ID, "users", 0)
ROWS = 300
LARGE = [b"%08d" % number for number in range(ROWS)]


class StoreContent(NamedTuple):
    rows: dict[bytes, bytes]
    state: ReplicaState


class Trio(NodeCluster):
    """Two nodes serve the one partition, and a third one hydrates its replica."""

    def __init__(
        self,
        directory: Path,
        mb_per_second: int = 1000,
        settings: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> None:
        placement = Placement(1, APPLICATION_ID, (), ((0, 1),), ((2,),))
        settings = {"peer_copy_mb_per_second_max": mb_per_second, **(settings or {})}
        super().__init__(directory, [placement] * 3, complete=(), settings=settings, **spec)
        replicas = [node.node.replicas.by_partition[0] for node in self.nodes]
        eventually("every node has opened its replica", lambda: all(replica.opened for replica in replicas))
        self.into = directory / "fetched" / "p0000"
        self.hydration = self.new_hydration()

    def new_hydration(self, **options: Any) -> PeerHydration:
        """Return the hydration of a process that has just started."""
        hydrating = self.nodes[2].node
        options = {"records_min": 1, "stalled_seconds": 3.0, **options}
        return PeerHydration(hydrating.peers, APPLICATION_ID, hydrating.spec.topic, **options)

    def fill(self, ordinal: int, rows: int = ROWS) -> None:
        """Write rows of 20 KB that do not compress: some megabytes, in several ranges."""
        puts = [(key, encode_row(Row(n, 1, 0, os.urandom(20_000)))) for n, key in enumerate(LARGE[:rows])]
        replica = self.nodes[ordinal].node.replicas.by_partition[0]
        self.nodes[ordinal].on_loop(lambda: replica.apply(puts, ReplicaState(rows, True, rows)))

    def damage(self, ordinal: int) -> None:
        store = self.nodes[ordinal].node.replicas.by_partition[0].store
        self.nodes[ordinal].on_loop(store.flush)
        damage_rows(store.path)

    def fetch(self, **options: Any) -> bool:
        hydration = self.new_hydration(**options) if options else self.hydration
        return self.nodes[2].begin(hydration.fetch(0, self.into)).result(60)

    def source(self, ordinal: int) -> StoreContent:
        store = self.nodes[ordinal].node.replicas.by_partition[0].store
        return self.nodes[ordinal].on_loop(lambda: StoreContent(dict(store.rows()), store.state))

    def fetched(self) -> StoreContent:
        store = Store.open(self.into, IDENTITY, SharedMemory(8, 8))
        try:
            return StoreContent(dict(store.rows()), store.state)
        finally:
            store.close()

    def leases(self, ordinal: int) -> list[Path]:
        return list((self.directory / f"node-{ordinal}/data/{APPLICATION_ID}").glob("checkpoints/*"))


def complete(source: StoreContent) -> StoreContent:
    """Return what a hydrated replica contains: the same rows, and not yet complete."""
    return StoreContent(source.rows, source.state._replace(complete=False))


def leftovers_are_gone(trio: Trio) -> bool:
    return not trio.into.exists() and not trio.into.with_name("p0000.incoming").exists()


Change = Callable[[Path, Manifest], Manifest]


def change_checkpoints(monkeypatch: pytest.MonkeyPatch, node: Served, change: Change) -> list[str]:
    """Change each checkpoint that the node makes: `change` gets its directory and manifest. Returns the leases, as they come."""
    checkpoints = node.node.checkpoints
    create, manifest = checkpoints.create, checkpoints.manifest
    directory = Path(node.node.settings.data_dir, APPLICATION_ID, "checkpoints")

    def noted(partition: int, records_min: int) -> CheckpointInProgress:
        leases.append(create(partition, records_min).lease)
        return CheckpointInProgress(leases[-1], 0)

    async def changed(lease: str) -> Manifest | CheckpointInProgress:
        made = await manifest(lease)
        return made if isinstance(made, CheckpointInProgress) else change(directory / lease, made)

    leases: list[str] = []
    monkeypatch.setattr(checkpoints, "create", noted)
    monkeypatch.setattr(checkpoints, "manifest", changed)
    return leases
