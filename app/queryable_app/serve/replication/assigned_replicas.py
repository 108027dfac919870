"""Follow the placement: add, remove and repair this node's replicas when the placement or a disk changes.

Strategy: `follow` applies a newer placement in one step of the event loop. The placement is on disk, reads of removed replicas
are forwarded, and added replicas exist, not opened yet. The slow work follows for each replica by itself. An added replica is
built (`replica_builder`). A removed one stays until the reads that began in it have ended, and is used again as it is if the
placement assigns it again before.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from queryable_app.contract import PLACEMENT_FILE, NodeSettings
from queryable_app.placement.assignment import Placement, refusal
from queryable_app.platform.log import event
from queryable_app.policy.disk_mark import Pause
from queryable_app.serve.base.atomic_file import write_atomically
from queryable_app.serve.base.background import guarded, in_thread, note_failure, supervise, watch
from queryable_app.serve.peers.client import PeerUnavailable
from queryable_app.serve.replication.replica_builder import (
    Hydration,
    ReplicaBuilder,
    role_of,
    unopened_replica,
)
from queryable_app.serve.replication.staging import STAGING_SUFFIX
from queryable_app.serve.store.closing import close_when_unused, delete_directory, wait_until_unused
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.replicas import Replicas
from queryable_app.serve.store.shared_memory import SharedMemory

REMOVAL_DELAY_SECONDS: Final = 5.0  # a read that chose a replica may begin this much later
CLEANUP_DELAY_SECONDS: Final = 60.0
_REMOVAL_SECONDS_MAX: Final = 60.0
_REPLICA_DIRECTORY: Final = re.compile(r"p([0-9]{4,9})(\.incoming)?")
_FIRST_FETCH_SECONDS: Final = 0.25  # after that the node serves by the placement it has
_FETCH_SECONDS_MAX: Final = 2.0
_FETCH_RETRY_SECONDS: Final = 0.5
_REFUSED_SECONDS: Final = 30.0  # a refused placement is logged once in this time
_CHECK_SECONDS: Final = 0.5
_REPLACE_RETRY_SECONDS: Final = 300.0  # meanwhile the damaged replica serves the rows that are readable


class PlacementPeers(Protocol):
    """Report newer placements and complete replicas of other nodes."""

    on_newer_epoch: Callable[[int], None]

    def peer_with_newest_placement(self) -> int | None: ...

    def another_is_complete(self, partition: int) -> bool: ...

    async def fetch_placement(self, ordinal: int, deadline: float) -> Placement: ...


class PlacementRefused(Exception):
    """This node cannot follow the placement. The message says why."""


class AssignedReplicas:
    """Follow placements from `start` to `stop`. `changed` is called whenever ingest should read other partitions."""

    def __init__(
        self,
        settings: NodeSettings,
        topic: str,
        replicas: Replicas,
        memory: SharedMemory,
        peers: PlacementPeers,
        hydration: Hydration,
        changed: Callable[[], None],
        removal_delay_seconds: float = REMOVAL_DELAY_SECONDS,
        cleanup_delay_seconds: float = CLEANUP_DELAY_SECONDS,
    ) -> None:
        self._own = settings.ordinal
        self._data_dir = Path(settings.data_dir)
        self._application_id = settings.application_id
        self._replicas = replicas
        self._memory = memory
        self._peers = peers
        self._changed = changed
        self._builder = ReplicaBuilder(settings, topic, replicas, memory, hydration, lambda: self._changed())
        self.removal_delay_seconds = removal_delay_seconds
        """How long a removed replica stays for reads that are about to begin."""
        self._cleanup_delay_seconds = cleanup_delay_seconds
        self._builds: dict[int, asyncio.Task[None]] = {}
        self._removals: dict[int, asyncio.Task[None]] = {}
        self._placement_fetch: asyncio.Task[None] | None = None
        self._cleanup: asyncio.Task[None] | None = None
        self._checks: asyncio.Task[None] | None = None
        self._replace_at: dict[int, float] = {}
        """The earliest time at which a damaged replica is replaced again, in loop time."""
        self._stopping = False

    async def start(self) -> None:
        """Begin to build replicas, and fetch a newer placement first if a peer has one: by an old placement this node may forward
        reads only to nodes that no longer have the replicas."""
        self._builder.prefer_peers()
        self._begin_builds()
        self._cleanup = asyncio.create_task(supervise("AssignedReplicas.cleanup", self._delete_leftovers))
        self._checks = asyncio.create_task(supervise("AssignedReplicas.check", self._check_all))
        self._peers.on_newer_epoch = self._fetch_placement_from
        if (ordinal := self._peers.peer_with_newest_placement()) is not None:
            self._fetch_placement_from(ordinal)
            assert self._placement_fetch is not None
            await asyncio.wait([self._placement_fetch], timeout=_FIRST_FETCH_SECONDS)

    async def stop(self) -> None:
        self._stopping = True
        tasks = [*self._builds.values(), *self._removals.values()]
        tasks += [task for task in (self._placement_fetch, self._cleanup, self._checks) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def follow(self, placement: Placement) -> int:
        """Follow a newer placement, and return the epoch that the node follows now. A lower or equal epoch changes nothing."""
        before = self._replicas.placement
        if why := refusal(placement, before):
            raise PlacementRefused(why)
        if placement.epoch <= before.epoch:
            return before.epoch
        # On disk first: after a crash the node follows the epoch that it has reported.
        write_atomically(self._data_dir / PLACEMENT_FILE, placement.to_json())
        self._replicas.placement = placement
        assigned, had = set(placement.assigned_to(self._own)), set(self._replicas.by_partition)
        for partition in had - assigned:
            self._remove_replica(partition)
        for partition in assigned - had:
            self._add_replica(partition)
        for partition, replica in self._replicas.by_partition.items():
            replica.role = role_of(placement, partition, self._own)
        if assigned != had:
            self._memory.share(len(assigned))
            self._changed()
        event("placement", epoch=placement.epoch, gained=sorted(assigned - had), lost=sorted(had - assigned))
        self._begin_builds()
        return placement.epoch

    def pause(self, paused: Pause) -> None:
        """Pause ingest of some or all replicas. Running fetches stop, and continue later with what has arrived."""
        self._replicas.paused = paused
        if paused != "none":
            for build in self._builds.values():
                build.cancel()
        self._begin_builds()
        self._changed()

    def _fetch_placement_from(self, ordinal: int) -> None:
        if not self._stopping and (self._placement_fetch is None or self._placement_fetch.done()):
            self._placement_fetch = asyncio.create_task(self._fetch_placement(ordinal))
            watch("AssignedReplicas.fetch", self._placement_fetch)

    async def _fetch_placement(self, ordinal: int) -> None:
        """Fetch the placement once. Every heartbeat of a newer epoch starts another fetch, so a failure is retried soon."""
        try:
            deadline = asyncio.get_running_loop().time() + _FETCH_SECONDS_MAX
            self.follow(await self._peers.fetch_placement(ordinal, deadline))
        except PeerUnavailable:
            await asyncio.sleep(_FETCH_RETRY_SECONDS)
        except (PlacementRefused, OSError) as error:
            event("placement-refused", peer=ordinal, reason=str(error))
            await asyncio.sleep(_REFUSED_SECONDS)

    def _remove_replica(self, partition: int) -> None:
        replica = self._replicas.by_partition.pop(partition)
        self._replace_at.pop(partition, None)
        replica.accepts_slices = False
        replica.release_waiters()
        self._replicas.removing[partition] = replica
        before = [task for task in (self._removals.pop(partition, None),) if task is not None]
        if build := self._builds.pop(partition, None):
            build.cancel()
            before.append(build)
        remove = partial(self._remove, replica, before)
        self._removals[partition] = asyncio.create_task(supervise("AssignedReplicas.remove", remove))

    def _add_replica(self, partition: int) -> None:
        replica = self._replicas.removing.get(partition)
        if replica is not None and replica.writable:
            self._removals.pop(partition).cancel()
            del self._replicas.removing[partition]
            replica.require_catch_up()
        else:
            replica = unopened_replica(partition, "hydrating", self._replicas.source_partitions)
        self._replicas.by_partition[partition] = replica

    async def _remove(self, replica: Replica, before: Sequence[asyncio.Task[None]]) -> None:
        """Close and delete the store once no read uses it. First wait for `before`, tasks that still use the directory."""
        if before:
            await asyncio.wait(before)
        if replica.opened:
            await asyncio.sleep(self.removal_delay_seconds)
            await wait_until_unused(replica.store, _REMOVAL_SECONDS_MAX)
            store = replica.detach_store("has moved to other nodes")
            assert store is not None
            await close_when_unused(store)
        partition, path = replica.partition, self._builder.path(replica.partition)
        for directory in (path, path.with_suffix(STAGING_SUFFIX)):
            await in_thread(delete_directory, directory)
        if self._replicas.removing.get(partition) is replica:
            del self._replicas.removing[partition]
        event("copy-dropped", partition=partition)
        self._removed(partition)

    def _removed(self, partition: int) -> None:
        if self._removals.get(partition) is asyncio.current_task():
            del self._removals[partition]
        self._begin_builds()

    async def _delete_leftovers(self) -> None:
        """Delete directories that a crash left of removed replicas. Wait first: after a power cut this node may have lost the
        newest placement, which may assign them, and has to fetch it from a peer."""
        await asyncio.sleep(self._cleanup_delay_seconds)
        for path in (self._data_dir / self._application_id).glob("p*"):
            match = _REPLICA_DIRECTORY.fullmatch(path.name)
            if match is None:
                continue
            partition = int(match[1])
            if partition in self._replicas.by_partition | self._replicas.removing:
                continue
            if partition not in self._removals and (task := asyncio.current_task()) is not None:
                self._removals[partition] = task
                try:
                    await in_thread(delete_directory, path)
                finally:
                    self._removed(partition)
                event("left-over-deleted", path=path)

    def _begin_builds(self) -> None:
        """Begin to build every replica without a store that is not being built, removed or retried."""
        if self._stopping:
            return
        for partition, replica in self._replicas.by_partition.items():
            if (
                replica.absent is not None
                and replica.retrying is None
                and partition not in self._builds | self._removals
            ):
                self._begin_build(partition, self._builder.build(replica))

    def _begin_build(self, partition: int, work: Coroutine[Any, Any, None]) -> None:
        build = asyncio.create_task(work)
        self._builds[partition] = build
        build.add_done_callback(partial(self._built, partition))

    def _built(self, partition: int, done: asyncio.Task[None]) -> None:
        if self._builds.get(partition) is done:
            del self._builds[partition]
        if done.cancelled():
            self._begin_builds()
        elif error := done.exception():
            note_failure(type(self).__name__, error)
            if replica := self._replicas.by_partition.get(partition):
                replica.suspend(repr(error))

    async def _check_all(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            now = asyncio.get_running_loop().time()
            for partition, replica in self._replicas.by_partition.items():
                if partition not in self._builds | self._removals:
                    with guarded("AssignedReplicas.check"):
                        self._check(replica, now)

    def _check(self, replica: Replica, now: float) -> None:
        """Open a store again when its retry is due, or replace a damaged replica once a peer has a complete one."""
        partition = replica.partition
        if replica.retrying is not None and time.monotonic() >= replica.retrying.next_at:
            again = self._builder.reopen if replica.opened else self._builder.build
            self._begin_build(partition, again(replica))
            return
        stopped = not replica.opened and replica.absent is None
        if (
            (stopped or replica.damaged is not None)
            and self._replicas.paused == "none"
            and now >= self._replace_at.get(partition, now)
            and self._peers.another_is_complete(partition)
        ):
            self._replace_at[partition] = now + _REPLACE_RETRY_SECONDS
            self._begin_build(partition, self._builder.replace_damaged(replica))
