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
from queryable_app.serve.base.background import guarded, in_thread, note_failure, supervise, watch
from queryable_app.serve.base.whole_file import write_whole
from queryable_app.serve.peers.client import PeerAway
from queryable_app.serve.replication.staging import INCOMING_SUFFIX
from queryable_app.serve.store.closing import closed, delete, unused
from queryable_app.serve.store.disk_probe import PROBE_SUFFIX, probe
from queryable_app.serve.store.replicas import Copies, Copy, Role
from queryable_app.serve.store.store import SharedMemory, Store, StoreDamaged, StoreError, StoreUnavailable
from queryable_app.wire.disk_format import CopyState, Identity

LINGER_SECONDS: Final = 5.0  # a read that has its copies, and not begun to read them, needs them as long
TIDY_SECONDS: Final = 60.0
_LINGER_SECONDS_MAX: Final = 60.0
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

    async def fetch(self, partition: int, into: Path, instead: bool = False) -> bool:
        """`instead` of the copy that is there, which stays if none is fetched; then no copy is too small."""


class Others(Protocol):
    """Who hears of newer placements, and gets them; and of the copies that other nodes have."""

    newer_epoch: Callable[[int], None]

    def ahead(self) -> int | None: ...

    def one_is_whole(self, partition: int) -> bool: ...

    async def fetch_placement(self, ordinal: int, deadline: float) -> Placement: ...


class PlacementRefused(Exception):
    """It is not one that this node can follow. The message says why."""


class Holdings:
    """Runs from `start` to `stop`. `changed` is called whenever ingest is to read something else."""

    def __init__(
        self,
        settings: NodeSettings,
        topic: str,
        copies: Copies,
        memory: SharedMemory,
        peers: Others,
        hydration: Hydration,
        changed: Callable[[], None],
        linger_seconds: float = LINGER_SECONDS,
        tidy_seconds: float = TIDY_SECONDS,
    ) -> None:
        self._own = settings.ordinal
        self._data_dir = Path(settings.data_dir)
        self._application_id = settings.application_id
        self._topic = topic
        self._copies = copies
        self._memory = memory
        self._peers = peers
        self._hydration = hydration
        self._changed = changed
        self.linger_seconds = linger_seconds
        """How long a copy that has gone stays for reads that have begun."""
        self._tidy_seconds = tidy_seconds
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
        for copy in self._copies.by_partition.values():
            if self._elsewhere(copy.partition) and (not copy.opened or _empty(copy.state)):
                store = copy.leave(_OPENING)
                if store is not None:
                    store.close()
        self._build()
        self._tidying = asyncio.create_task(supervise("Holdings.tidy", self._tidy))
        self._looking = asyncio.create_task(supervise("Holdings.look", self._look))
        self._peers.newer_epoch = self._newer_elsewhere
        if (ordinal := self._peers.ahead()) is not None:
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
        before = self._copies.placement
        if why := refusal(placement, before):
            raise PlacementRefused(why)
        if placement.epoch <= before.epoch:
            return before.epoch
        self._write(placement)
        self._copies.placement = placement
        held, had = set(placement.held_by(self._own)), set(self._copies.by_partition)
        for partition in had - held:
            self._let_go(partition)
        for partition in held - had:
            self._take_up(partition)
        for partition, copy in self._copies.by_partition.items():
            copy.role = role_of(placement, partition, self._own)
        if held != had:
            self._memory.share(len(held))
            self._changed()
        event("placement", epoch=placement.epoch, gained=sorted(held - had), lost=sorted(had - held))
        self._build()
        return placement.epoch

    def pause(self, paused: Pause) -> None:
        """Of which copies ingest pauses. Copies that are being fetched wait, with what they have of it."""
        self._copies.paused = paused
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
        except PeerAway:
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
        except (PlacementRefused, OSError) as error:
            event("placement-refused", peer=ordinal, reason=str(error))
            await asyncio.sleep(_REFUSED_SECONDS)

    def _write(self, placement: Placement) -> None:
        """First on disk, then in use: after a crash the node follows what it had said that it has."""
        write_whole(self._data_dir / PLACEMENT_FILE, placement.to_json())

    def _let_go(self, partition: int) -> None:
        copy = self._copies.by_partition.pop(partition)
        self._mend_at.pop(partition, None)
        copy.takes_slices = False
        copy.release_waiting()
        self._copies.leaving[partition] = copy
        before = [task for task in (self._ending.pop(partition, None),) if task is not None]
        if building := self._building.pop(partition, None):
            building.cancel()
            before.append(building)
        end = partial(self._end, copy, before)
        self._ending[partition] = asyncio.create_task(supervise("Holdings.end", end))

    def _take_up(self, partition: int) -> None:
        copy = self._copies.leaving.get(partition)
        if copy is not None and copy.writable:
            self._ending.pop(partition).cancel()
            del self._copies.leaving[partition]
            copy.come_back()
        else:
            copy = _to_be_opened(partition, "hydrating")
        self._copies.by_partition[partition] = copy

    async def _end(self, copy: Copy, before: Sequence[asyncio.Task[None]]) -> None:
        """Close and delete, once nobody reads any more. `before` have to do with the same directory, and are ending."""
        if before:
            await asyncio.wait(before)
        if copy.opened:
            await asyncio.sleep(self.linger_seconds)
            await unused(copy.store, _LINGER_SECONDS_MAX)
            store = copy.leave("has moved to other nodes")
            assert store is not None
            await closed(store)
        partition, path = copy.partition, self._path(copy.partition)
        for directory in (path, path.with_suffix(INCOMING_SUFFIX)):
            await in_thread(delete, directory)
        if self._copies.leaving.get(partition) is copy:
            del self._copies.leaving[partition]
        event("copy-dropped", partition=partition)
        self._ended(partition)

    def _ended(self, partition: int) -> None:
        if self._ending.get(partition) is asyncio.current_task():
            del self._ending[partition]
        self._build()

    async def _tidy(self) -> None:
        """Delete what a crash left of copies that are not here any more. Not at once: after a power cut the newest placement,
        by which they may be here, has to be learnt from a peer."""
        await asyncio.sleep(self._tidy_seconds)
        for path in (self._data_dir / self._application_id).glob("p*"):
            ours = _OURS.fullmatch(path.name)
            if (
                ours is None
                or (partition := int(ours[1])) in self._copies.by_partition | self._copies.leaving
            ):
                continue
            if partition not in self._ending and (task := asyncio.current_task()) is not None:
                self._ending[partition] = task
                try:
                    await in_thread(delete, path)
                finally:
                    self._ended(partition)
                event("left-over-deleted", path=path)

    def _build(self) -> None:
        """Begin what is not begun."""
        if self._stopping:
            return
        for partition, copy in self._copies.by_partition.items():
            if (
                copy.absent is not None
                and copy.retrying is None
                and partition not in self._building | self._ending
            ):
                self._begin(partition, self._fill(copy))

    def _begin(self, partition: int, work: Coroutine[Any, Any, None]) -> None:
        building = asyncio.create_task(work)
        self._building[partition] = building
        building.add_done_callback(partial(self._built, partition))

    async def _look(self) -> None:
        """For stores whose next attempt is due, and for copies that are damaged, once another node has a whole one."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = asyncio.get_running_loop().time()
            for partition, copy in self._copies.by_partition.items():
                if partition not in self._building | self._ending:
                    with guarded("Holdings.look"):
                        self._look_at(copy, now)

    def _look_at(self, copy: Copy, now: float) -> None:
        partition = copy.partition
        if copy.retrying is not None and time.monotonic() >= copy.retrying.next_at:
            self._begin(partition, self._reopen(copy) if copy.opened else self._fill(copy))
            return
        stopped = not copy.opened and copy.absent is None
        if (
            (stopped or copy.damaged is not None)
            and self._copies.paused == "none"
            and now >= self._mend_at.get(partition, now)
            and self._peers.one_is_whole(partition)
        ):
            self._mend_at[partition] = now + _MEND_AGAIN_SECONDS
            self._begin(partition, self._mend(copy))

    async def _mend(self, damaged: Copy) -> None:
        """Nobody reads it from now on: the others have what it has. A read that has it already must not meet the one that
        comes in its place, which may be behind what was said of it."""
        why = damaged.damaged
        copy = _to_be_opened(damaged.partition, damaged.role)
        self._copies.by_partition[copy.partition] = copy
        if store := damaged.leave("on this node is damaged"):
            event("copy-damaged", partition=copy.partition, reason=why)
            self._changed()
            await closed(store)
            await self._fetch(copy, instead=True)
        await self._fill(copy)

    async def _reopen(self, copy: Copy) -> None:
        """Open a store again that refuses writes: nothing else ends that state of RocksDB. Reads go on until it is certain that
        the store can be opened."""
        try:
            await in_thread(probe, copy.store.path.with_suffix(PROBE_SUFFIX), copy.store.unflushed_bytes())
        except OSError as error:
            copy.suspend(f"{copy.store.path} cannot be written ({error})")
            return
        if store := copy.leave("is being opened again"):
            await closed(store)
        await self._fill(copy)

    def _built(self, partition: int, done: asyncio.Task[None]) -> None:
        if self._building.get(partition) is done:
            del self._building[partition]
        if done.cancelled():
            self._build()
        elif error := done.exception():
            note_failure(type(self).__name__, error)
            if copy := self._copies.by_partition.get(partition):
                copy.suspend(repr(error))

    async def _fill(self, copy: Copy) -> None:
        """Open what is on disk, or what another node has, or begin with nothing."""
        try:
            store = await self._kept(copy)
            if store is None and self._elsewhere(copy.partition):
                if self._copies.paused != "none":
                    copy.absent = "waits for room on the disk before it is copied from another node"
                    return
                await self._fetch(copy)
            store = store or await self._open(copy.partition)
        except (StoreUnavailable, OSError) as error:
            copy.absent = f"cannot be opened at present: {error}"
            copy.suspend(str(error))
            return
        except StoreError as error:
            self._fail(copy, str(error))
            return
        copy.open(store)
        self._copies.note_mismatches()
        self._changed()

    @staticmethod
    def _fail(copy: Copy | None, why: str) -> None:
        if copy is not None:
            copy.absent = None
            copy.fail(why)

    async def _kept(self, copy: Copy) -> Store | None:
        """What is on disk. None: there is nothing, or nothing that is worth keeping while another node has more."""
        path = self._path(copy.partition)
        if not path.exists():
            return None
        try:
            store = await self._open(copy.partition)
        except StoreDamaged as error:
            if not self._elsewhere(copy.partition):
                raise
            event("copy-thrown-away", partition=copy.partition, reason=str(error))
            copy.failed = None
        else:
            if not _empty(store.state) or not self._elsewhere(copy.partition):
                return store
            store.close()
        await in_thread(delete, path)
        return None

    async def _fetch(self, copy: Copy, instead: bool = False) -> None:
        """There is a store afterwards, or there is none: then the topic builds the copy."""
        copy.absent = "is being copied from another node"
        try:
            await self._hydration.fetch(copy.partition, self._path(copy.partition), instead)
        except Exception as error:
            event("internal-error", part="hydration", partition=copy.partition, error=repr(error))

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
        serving = self._copies.placement.serving[partition]
        return any(ordinal != self._own for ordinal in serving)

    def _path(self, partition: int) -> Path:
        return store_path(self._data_dir, self._application_id, partition)


def _to_be_opened(partition: int, role: Role) -> Copy:
    copy = Copy(partition, role, None)
    copy.leave(_OPENING)
    return copy


def store_path(data_dir: Path, application_id: str, partition: int) -> Path:
    return data_dir / application_id / f"p{partition:04d}"


def role_of(placement: Placement, partition: int, ordinal: int) -> Role:
    serving = placement.serving[partition]
    if ordinal not in serving:
        return "hydrating"
    return "active" if serving[0] == ordinal else "standby"


def _empty(state: CopyState) -> bool:
    return state.position < 0 and not state.complete
