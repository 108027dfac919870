"""Three nodes: two serve the one partition, and a third one builds its copy. Real stores, real ports, no Kafka."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
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
from tests.support.served import Served, served
from tests.support.waiting import eventually

IDENTITY = Identity("tests.users.r1", "users", 0)
ROWS = 300
LARGE = [b"%08d" % number for number in range(ROWS)]


class StoreContent(NamedTuple):
    rows: dict[bytes, bytes]
    state: ReplicaState


class Trio:
    """Two nodes with the one partition, complete, and a third one that builds its copy."""

    def __init__(self, directory: Path, mb_per_second: int = 1000) -> None:
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        self.addresses = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
        self._placement = Placement(1, "tests.users.r1", tuple(self.addresses), ((0, 1),), ((2,),))
        (directory / "token").write_text("between-nodes")
        self._settings = {
            "internal_token_path": str(directory / "token"),
            "peer_copy_mb_per_second_max": mb_per_second,
        }
        self._stacks = [ExitStack() for _ in listeners]
        self.directory = directory
        self.nodes = [self._open(ordinal, listener) for ordinal, listener in enumerate(listeners)]
        replicas = [node.node.replicas.by_partition[0] for node in self.nodes]
        eventually("every node has begun its copy", lambda: all(replica.opened for replica in replicas))
        self.into = directory / "fetched" / "p0000"
        self.hydration = self.new_hydration()

    def _open(self, ordinal: int, listener: socket.socket) -> Served:
        node = served(
            self.directory / f"node-{ordinal}",
            ordinal=ordinal,
            placement=self._placement,
            listener=listener,
            complete=False,
            settings=self._settings,
        )
        return self._stacks[ordinal].enter_context(node)

    def new_hydration(self, **options: Any) -> PeerHydration:
        """As a process that has just been started has it."""
        receiving = self.nodes[2].node
        options = {"records_min": 1, "stalled_seconds": 3.0, **options}
        return PeerHydration(receiving.peers, "tests.users.r1", "users", **options)

    def fill(self, ordinal: int, rows: int = ROWS) -> None:
        """20 KB a row that no compression makes smaller: some megabytes, in several ranges."""
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

    def stop(self, ordinal: int) -> None:
        self._stacks[ordinal].close()

    def start(self, ordinal: int) -> None:
        port = int(self.addresses[ordinal].rpartition(":")[2])
        self.nodes[ordinal] = self._open(ordinal, socket.create_server(("127.0.0.1", port)))

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
        return list((self.directory / f"node-{ordinal}/data/tests.users.r1").glob("checkpoints/*"))

    def __enter__(self) -> Trio:
        return self

    def __exit__(self, *_: object) -> None:
        for stack in self._stacks:
            stack.close()


def complete(source: StoreContent) -> StoreContent:
    """What a copy of it is: the same, not complete as far as this node knows."""
    return StoreContent(source.rows, replace(source.state, complete=False))


def leftovers_are_gone(trio: Trio) -> bool:
    return not trio.into.exists() and not trio.into.with_name("p0000.incoming").exists()


Change = Callable[[Path, Manifest], Manifest]


def change_checkpoints(monkeypatch: pytest.MonkeyPatch, node: Served, change: Change) -> list[str]:
    """`change` gets the directory of each checkpoint that the node makes, and its manifest. Returns the leases of all that
    it will have made."""
    checkpoints = node.node.checkpoints
    create, manifest = checkpoints.create, checkpoints.manifest
    directory = Path(node.node.settings.data_dir, "tests.users.r1", "checkpoints")

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
