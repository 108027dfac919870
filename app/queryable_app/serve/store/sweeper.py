"""Delete dead rows: expired ones, and old tombstones. Remove old changes from the log, and old versions. Settle new stores.

Strategy: a pass walks every store in steps of at most 2 ms and rests nine times as long after each, so it takes at most a tenth
of the event loop. A step deletes rows without yielding to the loop, so no newer row of a key can arrive between the check and the
delete. After a pass that deleted many rows, a thread compacts the range and frees the space.

Windows and entries expire by the event time of their partition, so that a replica that hydrates late deletes none that still
counts.

When all replicas of the node are complete, the stores of those that became so are settled, one by one, each in a thread.

A pass sees every key. So right after a store was opened, one pass completes the estimate of its keys.

While keys may be in several partitions, tombstones stay: without its tombstone an older record in another partition would become
visible again.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol
from weakref import WeakSet

from queryable_app.errors import Failure
from queryable_app.serve.base.background import Background, guarded, in_thread
from queryable_app.serve.store.history_sweep import VersionWalk, raise_floor
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.replica_changes import remove_old_changes
from queryable_app.serve.store.replicas import Replicas
from queryable_app.serve.store.store import Store
from queryable_app.serve.store.store_errors import StoreError
from queryable_app.wire.disk_format import ROW_HEADER, TOMBSTONE, TOMBSTONE_RETENTION_MS

STEP_SECONDS: Final = 0.002
_REST_FACTOR: Final = 9
_COMPACT_ROWS_MIN: Final = 10_000
_LOOK_SECONDS: Final = 1.0
_PASS_SECONDS_MIN: Final = 1.0
_PASS_SECONDS_MAX: Final = 600.0


class EventTimeExpiry(Protocol):
    """Decide which rows have expired by the event time of their partition, not by the machine's clock."""

    def watermark(self, max_event_ms: int) -> int:
        """Return the watermark, given the time that the partition's clock shows."""

    def live_from(self, watermark: int) -> int:
        """Return the least expiry of a row that is still readable."""


class Sweeper(Background):
    """Sweep all replicas from `start` to `stop`."""

    def __init__(
        self,
        replicas: Replicas,
        ttl_ms: int | None,
        event_time: EventTimeExpiry | None = None,
        changes_ms: int | None = None,
    ) -> None:
        """`ttl_ms` is the time to live of rows, or how long windows or entries are retained; None: rows do not expire.
        `event_time` says when windows and entries have expired. `changes_ms` is how long changes stay in the log; None: the view
        has none."""
        self._replicas = replicas
        self._event_time = event_time
        self._changes_ms = changes_ms
        # Expired rows are invisible at once. Their space may stay for another quarter of their time to live.
        wanted = _PASS_SECONDS_MAX if ttl_ms is None else ttl_ms / 4000
        self._pass_seconds = min(max(wanted, _PASS_SECONDS_MIN), _PASS_SECONDS_MAX)
        self._walked: WeakSet[Store] = WeakSet()

    async def _run(self) -> None:
        next_pass = time.monotonic() + self._pass_seconds
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            everything = time.monotonic() >= next_pass
            await self.settle()
            for replica in list(self._replicas.by_partition.values()):
                if replica.writable and (everything or self._is_uncounted(replica.store)):
                    with guarded("Sweeper"):
                        await self.sweep(replica)
                        await self._sweep_changes(replica)
                        await self._sweep_versions(replica)
            if everything:
                next_pass = time.monotonic() + self._pass_seconds

    def _is_uncounted(self, store: Store) -> bool:
        """Return True once for each store that opened with rows. If that walk fails, the next pass repeats it."""
        return not store.keys.whole and store not in self._walked

    async def settle(self) -> None:
        """Settle the stores of replicas that have become complete, unless another one still needs the cores to hydrate."""
        writable = [replica for replica in self._replicas.by_partition.values() if replica.writable]
        if not all(replica.complete for replica in writable):
            return
        for replica in writable:
            if not replica.settled and replica.writable:
                replica.settled = True
                with guarded("Sweeper"):
                    await in_thread(replica.store.settle, on_cancel=replica.store.cancel_compaction)

    async def sweep(self, replica: Replica) -> int:
        """Walk one replica, and return how many rows were deleted."""
        next_key: bytes | None = b""
        walked = replica.store if replica.opened else None
        if walked is not None:
            self._walked.add(walked)
        deleted, first, last = 0, b"", b""
        try:
            while next_key is not None:
                started = time.monotonic()
                dead, next_key = self.delete_dead_rows(replica, next_key)
                if dead:
                    first, last = (first if deleted else dead[0]), dead[-1]
                    deleted += len(dead)
                await asyncio.sleep(_REST_FACTOR * (time.monotonic() - started))
        except StoreError as error:
            replica.note_write_failure(error)
        except Failure:
            pass  # the replica was removed
        else:
            if walked is not None and replica.opened and replica.store is walked:
                walked.keys.whole = True
            if deleted >= _COMPACT_ROWS_MIN and replica.opened:
                store = replica.store
                await in_thread(store.compact, first, last + b"\0", on_cancel=store.cancel_compaction)
        return deleted

    async def _sweep_versions(self, replica: Replica) -> None:
        """Remove versions that are older than the view retains, or more than it retains."""
        if not replica.opened or replica.store.history is None:
            return
        walk = VersionWalk(self._replicas.partitioning.scattered)
        try:
            more, incarnation = replica.writable, replica.incarnation
            raise_floor(replica.store, time.time_ns() // 1_000_000)
            while more and replica.writable and replica.incarnation is incarnation:
                started = time.monotonic()
                more = walk.step(replica.store, started + STEP_SECONDS)
                await asyncio.sleep(_REST_FACTOR * (time.monotonic() - started))
        except StoreError as error:
            replica.note_write_failure(error)
        except Failure:
            pass  # the replica was removed

    async def _sweep_changes(self, replica: Replica) -> None:
        """Remove changes from the log that are older than it retains."""
        more = self._changes_ms is not None
        while more and self._changes_ms is not None and replica.writable:
            started = time.monotonic()
            before_ms = time.time_ns() // 1_000_000 - self._changes_ms
            try:
                more = remove_old_changes(replica.store, before_ms)
            except StoreError as error:
                replica.note_write_failure(error)
            await asyncio.sleep(_REST_FACTOR * (time.monotonic() - started))

    def delete_dead_rows(self, replica: Replica, start: bytes) -> tuple[list[bytes], bytes | None]:
        """Delete dead rows from `start` on. Return their keys and the next key to look at, or None at the end."""
        store, now_ms = replica.store, time.time_ns() // 1_000_000
        times = self._event_time
        live_from = now_ms + 1 if times is None else times.live_from(times.watermark(replica.max_event_ms))
        tombstones_before_ms = 0 if self._replicas.partitioning.scattered else now_ms - TOMBSTONE_RETENTION_MS
        deadline = time.monotonic() + STEP_SECONDS
        dead: list[bytes] = []
        next_key = None
        note = store.keys.note
        for key, stored in store.rows(start, caches=False):
            note(key, stored)
            flags, _, timestamp_ms, expiry_ms = ROW_HEADER.unpack_from(stored)
            if 0 < expiry_ms < live_from or (flags & TOMBSTONE and timestamp_ms < tombstones_before_ms):
                dead.append(key)
            if time.monotonic() > deadline:
                next_key = key + b"\0"
                break
        if dead:
            store.delete(dead)
        return dead, next_key
