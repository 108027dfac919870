"""Give a replica its store: the one on disk, a peer's checkpoint, or an empty one that the topic fills.

Strategy: everything follows from the placement and the directory, each time anew, so a start after a crash at any moment repairs
what was left.

A damaged replica is not read any more, and a peer's replica replaces it. Its files stay until the new ones are complete. If no
peer sends a replica, the damaged one is opened again and serves the rows that are readable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import Placement
from queryable_app.platform.log import event
from queryable_app.serve.base.background import in_thread
from queryable_app.serve.store.closing import close_when_unused, delete_directory
from queryable_app.serve.store.disk_probe import PROBE_SUFFIX, probe
from queryable_app.serve.store.rekeyed_replica import new_replica
from queryable_app.serve.store.replica import Replica, Role
from queryable_app.serve.store.replicas import Replicas
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.serve.store.store_errors import StoreDamaged, StoreError, StoreUnavailable
from queryable_app.wire.disk_format import Identity, ReplicaState

_OPENING: Final = "is being opened"


class Hydration(Protocol):
    """Fetch a replica from a peer, if there is one worth fetching. After a cancellation the next call continues."""

    async def fetch(self, partition: int, into: Path, replace_damaged: bool = False) -> bool:
        """Return whether a store was fetched. With `replace_damaged` no replica is too small, and the store at `into` stays if
        none is fetched."""


class ReplicaBuilder:
    """Build the replicas of one node. `changed` is called whenever ingest should read other partitions."""

    def __init__(
        self,
        settings: NodeSettings,
        topic: str,
        replicas: Replicas,
        memory: SharedMemory,
        hydration: Hydration,
        changed: Callable[[], None],
    ) -> None:
        self.hydration = hydration
        self._own = settings.ordinal
        self._data_dir = Path(settings.data_dir)
        self._application_id = settings.application_id
        self._topic = topic
        self._replicas = replicas
        self._memory = memory
        self._changed = changed

    def path(self, partition: int) -> Path:
        return store_path(self._data_dir, self._application_id, partition)

    def prefer_peers(self) -> None:
        """Close every empty store that a peer may have, so that `build` fetches it."""
        for replica in self._replicas.by_partition.values():
            if self._served_by_peer(replica.partition) and (not replica.opened or _is_empty(replica.state)):
                store = replica.detach_store(_OPENING)
                if store is not None:
                    store.close()

    async def build(self, replica: Replica) -> None:
        """Open the store on disk, or fetch one from a peer, or create an empty one."""
        try:
            store = await self._open_retained(replica)
            if store is None and self._served_by_peer(replica.partition):
                if self._replicas.paused != "none":
                    replica.absent = "waits for room on the disk before it is copied from another node"
                    return
                await self._fetch(replica)
            store = store or await self._open(replica.partition)
        except (StoreUnavailable, OSError) as error:
            replica.absent = f"cannot be opened at present: {error}"
            replica.suspend(str(error))
            return
        except StoreError as error:
            fail_unopened(replica, str(error))
            return
        replica.open(store)
        self._replicas.note_mismatches()
        self._changed()

    async def reopen(self, replica: Replica) -> None:
        """Open a store again that refuses writes: nothing else ends that state of RocksDB. Reads continue until a probe has shown
        that the store can be opened."""
        path = replica.store.path
        try:
            await in_thread(probe, path.with_suffix(PROBE_SUFFIX), replica.store.unflushed_bytes())
        except OSError as error:
            replica.suspend(f"{path} cannot be written ({error})")
            return
        if store := replica.detach_store("is being opened again"):
            await close_when_unused(store)
        await self.build(replica)

    async def replace_damaged(self, damaged: Replica) -> None:
        """Replace a damaged replica by a peer's. A read that uses the damaged one never sees the new one, which may be behind."""
        why = damaged.damaged
        replica = unopened_replica(damaged.partition, damaged.role, self._replicas.source_partitions)
        self._replicas.by_partition[replica.partition] = replica
        if store := damaged.detach_store("on this node is damaged"):
            event("copy-damaged", partition=replica.partition, reason=why)
            self._changed()
            await close_when_unused(store)
            await self._fetch(replica, replace_damaged=True)
        await self.build(replica)

    async def _open_retained(self, replica: Replica) -> Store | None:
        """Open the store on disk. If there is none, or a peer may have more than it, return None."""
        path = self.path(replica.partition)
        if not path.exists():
            return None
        try:
            store = await self._open(replica.partition)
        except StoreDamaged as error:
            if not self._served_by_peer(replica.partition):
                raise
            event("copy-thrown-away", partition=replica.partition, reason=str(error))
            replica.failed = None
        else:
            if not _is_empty(store.state) or not self._served_by_peer(replica.partition):
                return store
            store.close()
        await in_thread(delete_directory, path)
        return None

    async def _fetch(self, replica: Replica, replace_damaged: bool = False) -> None:
        """Fetch a store from a peer, if there is one. Otherwise the topic hydrates the replica."""
        replica.absent = "is being copied from another node"
        try:
            await self.hydration.fetch(replica.partition, self.path(replica.partition), replace_damaged)
        except Exception as error:
            event("internal-error", part="hydration", partition=replica.partition, error=repr(error))

    async def _open(self, partition: int) -> Store:
        """Open the store in a thread: a large one takes as long as a hundred reads."""
        identity = Identity(self._application_id, self._topic, partition)
        opened: list[Store] = []
        try:
            path, indexes, history = self.path(partition), self._replicas.indexes, self._replicas.history
            await in_thread(lambda: opened.append(Store.open(path, identity, self._memory, indexes, history)))
        except asyncio.CancelledError:
            for store in opened:
                store.close()
            raise
        return opened[0]

    def _served_by_peer(self, partition: int) -> bool:
        """Return whether another node serves the partition and may have its rows."""
        return any(ordinal != self._own for ordinal in self._replicas.placement.serving[partition])


def unopened_replica(partition: int, role: Role, source_partitions: int) -> Replica:
    replica = new_replica(partition, role, None, source_partitions)
    replica.detach_store(_OPENING)
    return replica


def fail_unopened(replica: Replica, why: str) -> None:
    """Fail a replica whose store cannot be opened."""
    replica.absent = None
    replica.fail(why)


def store_path(data_dir: Path, application_id: str, partition: int) -> Path:
    return data_dir / application_id / f"p{partition:04d}"


def role_of(placement: Placement, partition: int, ordinal: int) -> Role:
    """Return the role of a node for a partition that is assigned to it."""
    serving = placement.serving[partition]
    if ordinal not in serving:
        return "hydrating"
    return "active" if serving[0] == ordinal else "standby"


def _is_empty(state: ReplicaState) -> bool:
    return state.position < 0 and not state.complete
