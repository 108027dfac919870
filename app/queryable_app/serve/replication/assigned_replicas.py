"""Which copies this node holds: what it does when the placement changes.

Strategy: `follow` takes a newer placement at once, in one step of the event loop: it is on disk, reads of what is gone go
elsewhere, and what is new is there, not opened yet. What takes time follows for each copy by itself: a new copy is
fetched from a peer or begun empty; one that is gone lingers until the reads that had begun in it have ended, and comes
back as it is if it is placed here again before.

A copy that turns out to be damaged is not read from then on, and exchanged for one of another node. What is on disk goes
when the other one is whole, and is read again, as far as it can be, if none comes.

Everything is derived from the placement and the directory, again and again, so that a crash at any moment is made good by
the next start.
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
from queryable_app.serve.replication.staging import STAGING_SUFFIX
from queryable_app.serve.store.closing import close_when_unused, delete_directory, wait_until_unused
from queryable_app.serve.store.disk_probe import PROBE_SUFFIX, probe
from queryable_app.serve.store.replica import Replica, Role
from queryable_app.serve.store.replicas import Replicas
from queryable_app.serve.store.shared_memory import SharedMemory
from queryable_app.serve.store.store import Store
from queryable_app.serve.store.store_errors import StoreDamaged, StoreError, StoreUnavailable
from queryable_app.wire.disk_format import Identity, ReplicaState

REMOVAL_DELAY_SECONDS: Final = (
    5.0  # a read that has its copies, and not begun to read them, needs them as long
)
CLEANUP_DELAY_SECONDS: Final = 60.0
_REMOVAL_SECONDS_MAX: Final = 60.0
_OURS: Final = re.compile(r"p([0-9]{4,9})(\.incoming)?")
_FIRST_ASK_SECONDS: Final = 0.25  # then it serves by what it has
_ASK_SECONDS_MAX: Final = 2.0
_ASK_AGAIN_SECONDS: Final = 0.5
_REFUSED_SECONDS: Final = 30.0  # the same one is not worth a line each time
_OPENING: Final = "is being opened"
_LOOK_SECONDS: Final = 0.5  # between two looks for copies that are damaged
_MEND_AGAIN_SECONDS: Final = (
    300.0  # one that could not be exchanged is there meanwhile, as far as it can be read
)


class Hydration(Protocol):
    """Who gets a copy from another node, if there is one worth copying. Cancelled, it keeps what it has for later."""

    async def fetch(self, partition: int, into: Path, replace_damaged: bool = False) -> bool:
        """`replace_damaged` of the copy that is there, which stays if none is fetched; then no copy is too small."""


class PlacementPeers(Protocol):
    """Who hears of newer placements, and gets them; and of the copies that other nodes have."""

    on_newer_epoch: Callable[[int], None]

    def peer_with_newest_placement(self) -> int | None: ...

    def another_is_complete(self, partition: int) -> bool: ...

    async def fetch_placement(self, ordinal: int, deadline: float) -> Placement: ...


class PlacementRefused(Exception):
    """It is not one that this node can follow. The message says why."""


class AssignedReplicas:
    """Runs from `start` to `stop`. `changed` is called whenever ingest is to read something else."""

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
        self._topic = topic
        self._replicas = replicas
        self._memory = memory
        self._peers = peers
        self._hydration = hydration
        self._changed = changed
        self.removal_delay_seconds = removal_delay_seconds
        """How long a copy that has gone stays for reads that have begun."""
        self._cleanup_delay_seconds = cleanup_delay_seconds
        self._building: dict[int, asyncio.Task[None]] = {}
        self._ending: dict[int, asyncio.Task[None]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._mend_at: dict[int, float] = {}
        """When a copy may be exchanged again, in loop time."""
        self._stopping = False

    async def start(self) -> None:
        """Mend what another node has whole, and learn what was decided while this node was away: by the placement that it
        has, it could ask only nodes from which copies have gone."""
        for replica in self._replicas.by_partition.values():
            if self._elsewhere(replica.partition) and (not replica.opened or _empty(replica.state)):
                store = replica.detach_store(_OPENING)
                if store is not None:
                    store.close()
        self._build()
        self._tidying = asyncio.create_task(supervise("Holdings.tidy", self._tidy))
        self._looking = asyncio.create_task(supervise("Holdings.look", self._look))
        self._peers.on_newer_epoch = self._newer_elsewhere
        if (ordinal := self._peers.peer_with_newest_placement()) is not None:
            self._asking = asyncio.create_task(self._ask(ordinal))
            watch("Holdings.ask", self._asking)
            await asyncio.wait([self._asking], timeout=_FIRST_ASK_SECONDS)

    async def stop(self) -> None:
        self._stopping = True
        tasks = [*self._building.values(), *self._ending.values()]
        tasks += [task for task in (self._asking, self._tidying, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def follow(self, placement: Placement) -> int:
        """Returns the epoch that the node follows now: a lower or equal one changes nothing."""
        before = self._replicas.placement
        if why := refusal(placement, before):
            raise PlacementRefused(why)
        if placement.epoch <= before.epoch:
            return before.epoch
        self._write(placement)
        self._replicas.placement = placement
        held, had = set(placement.assigned_to(self._own)), set(self._replicas.by_partition)
        for partition in had - held:
            self._remove_replica(partition)
        for partition in held - had:
            self._add_replica(partition)
        for partition, replica in self._replicas.by_partition.items():
            replica.role = role_of(placement, partition, self._own)
        if held != had:
            self._memory.share(len(held))
            self._changed()
        event("placement", epoch=placement.epoch, gained=sorted(held - had), lost=sorted(had - held))
        self._build()
        return placement.epoch

    def pause(self, paused: Pause) -> None:
        """Of which copies ingest pauses. Copies that are being fetched wait, with what they have of it."""
        self._replicas.paused = paused
        if paused != "none":
            for building in self._building.values():
                building.cancel()
        self._build()
        self._changed()

    def _newer_elsewhere(self, ordinal: int) -> None:
        if not self._stopping and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask(ordinal))
            watch("Holdings.ask", self._asking)

    async def _ask(self, ordinal: int) -> None:
        """Every heartbeat says that there is a newer one, so what fails now is tried again soon."""
        try:
            deadline = asyncio.get_running_loop().time() + _ASK_SECONDS_MAX
            self.follow(await self._peers.fetch_placement(ordinal, deadline))
        except PeerUnavailable:
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
        except (PlacementRefused, OSError) as error:
            event("placement-refused", peer=ordinal, reason=str(error))
            await asyncio.sleep(_REFUSED_SECONDS)

    def _write(self, placement: Placement) -> None:
        """First on disk, then in use: after a crash the node follows what it had said that it has."""
        write_atomically(self._data_dir / PLACEMENT_FILE, placement.to_json())

    def _remove_replica(self, partition: int) -> None:
        replica = self._replicas.by_partition.pop(partition)
        self._mend_at.pop(partition, None)
        replica.accepts_slices = False
        replica.release_waiters()
        self._replicas.removing[partition] = replica
        before = [task for task in (self._ending.pop(partition, None),) if task is not None]
        if building := self._building.pop(partition, None):
            building.cancel()
            before.append(building)
        end = partial(self._end, replica, before)
        self._ending[partition] = asyncio.create_task(supervise("Holdings.end", end))

    def _add_replica(self, partition: int) -> None:
        replica = self._replicas.removing.get(partition)
        if replica is not None and replica.writable:
            self._ending.pop(partition).cancel()
            del self._replicas.removing[partition]
            replica.require_catch_up()
        else:
            replica = _unopened_replica(partition, "hydrating")
        self._replicas.by_partition[partition] = replica

    async def _end(self, replica: Replica, before: Sequence[asyncio.Task[None]]) -> None:
        """Close and delete, once nobody reads any more. `before` have to do with the same directory, and are ending."""
        if before:
            await asyncio.wait(before)
        if replica.opened:
            await asyncio.sleep(self.removal_delay_seconds)
            await wait_until_unused(replica.store, _REMOVAL_SECONDS_MAX)
            store = replica.detach_store("has moved to other nodes")
            assert store is not None
            await close_when_unused(store)
        partition, path = replica.partition, self._path(replica.partition)
        for directory in (path, path.with_suffix(STAGING_SUFFIX)):
            await in_thread(delete_directory, directory)
        if self._replicas.removing.get(partition) is replica:
            del self._replicas.removing[partition]
        event("copy-dropped", partition=partition)
        self._ended(partition)

    def _ended(self, partition: int) -> None:
        if self._ending.get(partition) is asyncio.current_task():
            del self._ending[partition]
        self._build()

    async def _tidy(self) -> None:
        """Delete what a crash left of copies that are not here any more. Not at once: after a power cut the newest placement,
        by which they may be here, has to be learnt from a peer."""
        await asyncio.sleep(self._cleanup_delay_seconds)
        for path in (self._data_dir / self._application_id).glob("p*"):
            ours = _OURS.fullmatch(path.name)
            if (
                ours is None
                or (partition := int(ours[1])) in self._replicas.by_partition | self._replicas.removing
            ):
                continue
            if partition not in self._ending and (task := asyncio.current_task()) is not None:
                self._ending[partition] = task
                try:
                    await in_thread(delete_directory, path)
                finally:
                    self._ended(partition)
                event("left-over-deleted", path=path)

    def _build(self) -> None:
        """Begin what is not begun."""
        if self._stopping:
            return
        for partition, replica in self._replicas.by_partition.items():
            if (
                replica.absent is not None
                and replica.retrying is None
                and partition not in self._building | self._ending
            ):
                self._begin(partition, self._fill(replica))

    def _begin(self, partition: int, work: Coroutine[Any, Any, None]) -> None:
        building = asyncio.create_task(work)
        self._building[partition] = building
        building.add_done_callback(partial(self._built, partition))

    async def _look(self) -> None:
        """For stores whose next attempt is due, and for copies that are damaged, once another node has a whole one."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = asyncio.get_running_loop().time()
            for partition, replica in self._replicas.by_partition.items():
                if partition not in self._building | self._ending:
                    with guarded("Holdings.look"):
                        self._look_at(replica, now)

    def _look_at(self, replica: Replica, now: float) -> None:
        partition = replica.partition
        if replica.retrying is not None and time.monotonic() >= replica.retrying.next_at:
            self._begin(partition, self._reopen(replica) if replica.opened else self._fill(replica))
            return
        stopped = not replica.opened and replica.absent is None
        if (
            (stopped or replica.damaged is not None)
            and self._replicas.paused == "none"
            and now >= self._mend_at.get(partition, now)
            and self._peers.another_is_complete(partition)
        ):
            self._mend_at[partition] = now + _MEND_AGAIN_SECONDS
            self._begin(partition, self._mend(replica))

    async def _mend(self, damaged: Replica) -> None:
        """Nobody reads it from now on: the others have what it has. A read that has it already must not meet the one that
        comes in its place, which may be behind what was said of it."""
        why = damaged.damaged
        replica = _unopened_replica(damaged.partition, damaged.role)
        self._replicas.by_partition[replica.partition] = replica
        if store := damaged.detach_store("on this node is damaged"):
            event("copy-damaged", partition=replica.partition, reason=why)
            self._changed()
            await close_when_unused(store)
            await self._fetch(replica, replace_damaged=True)
        await self._fill(replica)

    async def _reopen(self, replica: Replica) -> None:
        """Open a store again that refuses writes: nothing else ends that state of RocksDB. Reads go on until it is certain that
        the store can be opened."""
        try:
            await in_thread(
                probe, replica.store.path.with_suffix(PROBE_SUFFIX), replica.store.unflushed_bytes()
            )
        except OSError as error:
            replica.suspend(f"{replica.store.path} cannot be written ({error})")
            return
        if store := replica.detach_store("is being opened again"):
            await close_when_unused(store)
        await self._fill(replica)

    def _built(self, partition: int, done: asyncio.Task[None]) -> None:
        if self._building.get(partition) is done:
            del self._building[partition]
        if done.cancelled():
            self._build()
        elif error := done.exception():
            note_failure(type(self).__name__, error)
            if replica := self._replicas.by_partition.get(partition):
                replica.suspend(repr(error))

    async def _fill(self, replica: Replica) -> None:
        """Open what is on disk, or what another node has, or begin with nothing."""
        try:
            store = await self._kept(replica)
            if store is None and self._elsewhere(replica.partition):
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
            self._fail(replica, str(error))
            return
        replica.open(store)
        self._replicas.note_mismatches()
        self._changed()

    @staticmethod
    def _fail(replica: Replica | None, why: str) -> None:
        if replica is not None:
            replica.absent = None
            replica.fail(why)

    async def _kept(self, replica: Replica) -> Store | None:
        """What is on disk. None: there is nothing, or nothing that is worth keeping while another node has more."""
        path = self._path(replica.partition)
        if not path.exists():
            return None
        try:
            store = await self._open(replica.partition)
        except StoreDamaged as error:
            if not self._elsewhere(replica.partition):
                raise
            event("copy-thrown-away", partition=replica.partition, reason=str(error))
            replica.failed = None
        else:
            if not _empty(store.state) or not self._elsewhere(replica.partition):
                return store
            store.close()
        await in_thread(delete_directory, path)
        return None

    async def _fetch(self, replica: Replica, replace_damaged: bool = False) -> None:
        """There is a store afterwards, or there is none: then the topic builds the copy."""
        replica.absent = "is being copied from another node"
        try:
            await self._hydration.fetch(replica.partition, self._path(replica.partition), replace_damaged)
        except Exception as error:
            event("internal-error", part="hydration", partition=replica.partition, error=repr(error))

    async def _open(self, partition: int) -> Store:
        """In a thread: a store of some size takes as long as a hundred reads."""
        identity = Identity(self._application_id, self._topic, partition)
        opened: list[Store] = []
        try:
            await in_thread(lambda: opened.append(Store.open(self._path(partition), identity, self._memory)))
        except asyncio.CancelledError:
            for store in opened:
                store.close()
            raise
        return opened[0]

    def _elsewhere(self, partition: int) -> bool:
        """Whether another node serves the partition, so that there may be a copy to be had."""
        serving = self._replicas.placement.serving[partition]
        return any(ordinal != self._own for ordinal in serving)

    def _path(self, partition: int) -> Path:
        return store_path(self._data_dir, self._application_id, partition)


def _unopened_replica(partition: int, role: Role) -> Replica:
    replica = Replica(partition, role, None)
    replica.detach_store(_OPENING)
    return replica


def store_path(data_dir: Path, application_id: str, partition: int) -> Path:
    return data_dir / application_id / f"p{partition:04d}"


def role_of(placement: Placement, partition: int, ordinal: int) -> Role:
    serving = placement.serving[partition]
    if ordinal not in serving:
        return "hydrating"
    return "active" if serving[0] == ordinal else "standby"


def _empty(state: ReplicaState) -> bool:
    return state.position < 0 and not state.complete
