"""Track one replica: its store, how fresh it is, why it stopped, and the reads that wait for a position.

Strategy: only the Replica writes to its store, so the position in memory, the position on disk and the waiting reads always
agree. Freshness comes from samples "the end offset was n at moment m": once the position reaches n, the replica holds
everything that the log held at moment m.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from random import random
from typing import Any, Final, Literal

from queryable_app.aggregates.clock import NO_TIME_MS, Clock
from queryable_app.errors import Failure, Reason
from queryable_app.platform.log import event
from queryable_app.policy.freshness import NeededPosition, absent, lag_records, next_offset, records_short
from queryable_app.policy.retries import Retry, next_retry
from queryable_app.policy.source_positions import SourcePositions
from queryable_app.serve.store.store import Store
from queryable_app.serve.store.store_errors import StoreError, StoreUnavailable
from queryable_app.wire.disk_format import ReplicaState

Role = Literal["active", "standby", "hydrating"]
Phase = Literal["failed", "retrying", "hydrating", "behind", "caught-up"]

NO_PENDING_RECORD: Final = -2
"""Below every position."""

BEHIND_MS: Final = 10_000
"""The log and status call a replica behind when it is older than this."""

_SAMPLES_MAX: Final = 128
_RATE_SMOOTHING: Final = 0.3
_RATE_MIN: Final = 0.01  # smoothing never reaches zero by itself


class Replica:
    """Hold one replica of a partition. A failed or retrying replica takes no writes, and its rows stay readable."""

    def __init__(self, partition: int, role: Role, store: Store | None, failed: str | None = None) -> None:
        self.partition = partition
        self.role = role
        self.failed = failed
        """Why the replica stopped for good."""
        self.retrying: Retry | None = None
        """Set after a write or an opening fails, until the store is open again."""
        self.settled = True
        """False from when the replica becomes complete until the sweeper has settled its store."""
        self.absent: str | None = None
        """Why the replica has no store at present, such as "is being copied from another node"."""
        self.accepts_slices = True
        """False until the next start of the query: a query that started earlier does not read from this replica's position."""
        self.end_offset = -1
        """The end offset of the last lookup; -1: unknown."""
        self.fresh_as_of_ms = -1
        """The replica held the whole log at this moment of `platform/clock.py`; -1: never since the start."""
        self.records_per_second = 0.0
        """The smoothed rate at which the position moves."""
        self.position_changed_at = time.monotonic()
        self.pending_record_offset = NO_PENDING_RECORD
        """The offset of a record at or after the position that Kafka has and that has not arrived."""
        self.incarnation = object()
        """Changes whenever the replica starts over. Lookups that began before the change do not apply to it."""
        self.rows_since = object()
        """Changes whenever the replica may lack rows that it had. Reads that chose it before the change end."""
        self._was_complete = False  # before `require_catch_up`
        self._store = store
        self.waiting: list[tuple[NeededPosition, asyncio.Future[bool]]] = []
        """Waits for a position; `wait_for_position` and `wait_for_any` add them."""
        # (moment in ms, end offset) that the position has not reached
        self._samples: list[tuple[int, NeededPosition]] = []
        self._measured: tuple[float, int] | None = None  # (monotonic time, position)
        self._last_retry: Retry | None = None
        self._recovered_at: float | None = None  # monotonic
        self._detached_position = -1  # of the store that was detached last
        self._log_lost = False

    @property
    def store(self) -> Store:
        """Return the open store, or raise a Failure that says why there is none."""
        if self._store is not None:
            return self._store
        if self.absent is not None:
            raise absent(self, self.absent)
        raise Failure(
            Reason.NOT_AVAILABLE,
            f"the replica of partition {self.partition} could not be opened: {self.failed}",
            "repair the cause and ask again, see /v1/status",
            partition=self.partition,
        )

    def serves_from(self, store: Store) -> bool:
        """Return whether this is the open store. One that was detached is closed soon."""
        return self._store is store

    @property
    def opened(self) -> bool:
        return self._store is not None

    @property
    def writable(self) -> bool:
        return self.writable_store is not None

    @property
    def writable_store(self) -> Store | None:
        return self._store if self.failed is None and self.retrying is None else None

    @property
    def state(self) -> ReplicaState:
        return self._store.state if self._store else ReplicaState()

    @property
    def position(self) -> int:
        return self._store.state.position if self._store else -1

    @property
    def source_offsets(self) -> tuple[int, ...]:
        """Return the next offset of each source partition, in a rekeyed view."""
        return ()

    @property
    def source_ends(self) -> tuple[int, ...]:
        """Return the end offset of each source partition, in a rekeyed view; empty while they are unknown."""
        return ()

    @property
    def complete(self) -> bool:
        return self._store is not None and self._store.state.complete

    @property
    def keeps_all_rows(self) -> bool:
        """Return whether the replica has all rows up to its position: it is complete, or was so and only lacks the newest."""
        return self.complete or self._was_complete

    @property
    def max_event_ms(self) -> int:
        """Return the event time that the replica has reached, where the view has windows."""
        return self._store.clock.max_event_ms if self._store else NO_TIME_MS

    @property
    def late_records(self) -> int:
        """Return how many records came too late for every window, where the view has windows."""
        return self._store.clock.late if self._store else 0

    @property
    def damaged(self) -> str | None:
        """Return why some rows are unreadable for good, or None. The other rows stay readable."""
        return None if self._store is None else self._store.damaged

    def open(self, store: Store) -> None:
        """Serve from `store`. If it is behind the store that was detached, the replica is incomplete until it catches up."""
        self._store = store
        self.failed = self.absent = None
        self._log_lost = False
        self._begin_incarnation()
        if self.retrying is not None:
            event(
                "store-recovered",
                partition=self.partition,
                position=self.position,
                attempts=self.retrying.attempts,
            )
            self.retrying, self._recovered_at = None, time.monotonic()
        if self.position < self._detached_position:
            self.require_catch_up()
        self._lose_rows()

    def detach_store(self, why: str) -> Store | None:
        """Stop reads and writes, release waiting reads, and return the store for the caller to close. Slices are refused until
        the next start of the query."""
        self._detached_position = self.position
        store, self._store = self._store, None
        self.absent = why
        self.accepts_slices = False
        self.release_waiters()
        return store

    @property
    def remaining_seconds(self) -> float | None:
        """Estimate the time to reach the end offset, or None while that is unknown."""
        if self.end_offset < 0 or self.records_per_second < 1:
            return None
        return lag_records(self) / self.records_per_second

    def phase(self, now_ms: int) -> Phase:
        if self.failed is not None:
            return "failed"
        if self.retrying is not None:
            return "retrying"
        if not self.complete:
            return "hydrating"
        return "caught-up" if 0 <= now_ms - self.fresh_as_of_ms <= BEHIND_MS else "behind"

    def apply(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        state: ReplicaState,
        last_bad: dict[str, Any] | None = None,
        deletes: Iterable[bytes] = (),
        clock: Clock | None = None,
        sources: SourcePositions | None = None,
        entries: Iterable[tuple[bytes, bytes | None]] = (),
        deleted_ranges: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Write rows with their state, then wake the reads that wait for the position. If the write fails, only this replica
        stops; nothing is raised. `clock` and `sources` replace the event time and the source positions; `entries` are those
        behind the rows."""
        changes = (deletes, clock, sources, entries, deleted_ranges)
        if not state.complete and self._reaches_end(state, sources):
            state = state._replace(complete=True)
            self.settled = False
        if self.write(lambda store: store.apply(puts, state, last_bad, *changes)):
            self._position_changed()

    def _reaches_end(self, state: ReplicaState, sources: SourcePositions | None) -> bool:
        """Return whether a replica with this state has all records of the log."""
        return 0 <= self.end_offset <= max(0, state.position)

    def write(self, change: Callable[[Store], None]) -> bool:
        """Change the store. Return False if the write fails: the replica then fails, or waits for its next attempt."""
        store = self.store
        try:
            change(store)
        except StoreError as error:
            self.note_write_failure(error)
        except Failure as failure:  # the store is unreadable too
            self.fail(failure.detail)
        else:
            return True
        return False

    def note_write_failure(self, error: StoreError) -> None:
        if isinstance(error, StoreUnavailable):
            self.suspend(str(error))
        else:
            self.fail(str(error))

    def suspend(self, why: str) -> None:
        """Accept no writes until the store has been opened again."""
        now = time.monotonic()
        retry = next_retry(self._last_retry, why, now, random(), self._recovered_at)  # noqa: S311
        self.retrying, self._last_retry, self._recovered_at = retry, retry, None
        self.accepts_slices = False
        event(
            "store-unavailable",
            partition=self.partition,
            position=self.position,
            reason=why,
            attempts=retry.attempts,
            again_in_seconds=round(retry.next_at - now, 1),
        )
        self.release_waiters()

    def note_end_offset(self, as_of_ms: int, end_offset: int) -> None:
        """Record that the log ended at `end_offset` at `as_of_ms`, a moment of `platform/clock.py`."""
        if self._log_lost:
            return
        self.end_offset = end_offset
        self._note_end(as_of_ms, end_offset)
        if self.writable and self.store.history is not None:
            known = self.store.history.with_end_offset(end_offset, as_of_ms, self.position)
            if known is not None:
                self.write(lambda store: store.write_versions((), known))

    def note_compaction(self, compacted: bool) -> None:
        """Record whether the topic is compacted, or may be, before the next rows arrive."""
        if self.writable and self.store.history is not None:
            known = self.store.history.with_compaction(compacted)
            if known is not None:
                self.write(lambda store: store.write_versions((), known))

    def _note_end(self, as_of_ms: int, end_offset: NeededPosition) -> None:
        if not records_short(self, end_offset):
            self._samples.clear()
            self.fresh_as_of_ms = as_of_ms
            if self.writable and not self.complete:
                self.apply((), self.state)
            return
        self._samples.append((as_of_ms, end_offset))
        if len(self._samples) > _SAMPLES_MAX:  # far behind, coarser samples are enough
            del self._samples[1::2]

    def update_rate(self, now: float) -> None:
        """Update the rate. Called at intervals with the monotonic time."""
        position = sum(self.source_offsets) if self.source_offsets else next_offset(self)
        if self._measured is not None:
            then, before = self._measured
            if now <= then:
                return
            self.records_per_second += _RATE_SMOOTHING * (
                max(0, position - before) / (now - then) - self.records_per_second
            )
            if self.records_per_second < _RATE_MIN:
                self.records_per_second = 0.0
        self._measured = (now, position)

    def fail(self, why: str) -> None:
        if self.failed is None:
            event("failed", partition=self.partition, position=self.position, reason=why)
        self.failed, self.retrying = why, None
        self.release_waiters()

    def lose_log(self, why: str) -> None:
        """Fail for good: the rows are of a log that no longer exists. How far they are in the present one is unknown, since equal
        offsets mean nothing."""
        if not self._log_lost:
            self.fail(why)
            self._log_lost = True
            self._forget_end_offset()
            self._lose_rows()

    def rebuild(self) -> None:
        """Delete all rows, so that the replica starts over at the earliest record."""
        if self.write(Store.clear):
            self.failed, self._log_lost = None, False
            self._forget_end_offset()
            self._lose_rows()

    def require_catch_up(self) -> None:
        """Mark the replica incomplete until it reaches the next end offset: it missed records that other replicas applied. Reads
        that chose it before go on."""
        self._was_complete = self.keeps_all_rows
        self._forget_end_offset()
        self.apply((), self.state._replace(complete=False))

    def _forget_end_offset(self) -> None:
        self.end_offset = self.fresh_as_of_ms = -1
        self._samples.clear()
        self._measured = None
        self.records_per_second = 0.0
        self._begin_incarnation()

    def _lose_rows(self) -> None:
        self.rows_since, self._was_complete = object(), False

    def _begin_incarnation(self) -> None:
        self.pending_record_offset = NO_PENDING_RECORD
        self.incarnation = object()
        self.position_changed_at = time.monotonic()

    async def wait_for_position(self, position: NeededPosition, deadline: float) -> bool:
        """Return whether the replica reaches `position` before the deadline (loop time)."""
        if not records_short(self, position) or not self.writable:
            return not records_short(self, position)
        reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiter = (position, reached)
        self.waiting.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                return await reached
        except TimeoutError:
            return not records_short(self, position)
        finally:
            self.waiting.remove(waiter)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def release_waiters(self) -> None:
        """End all waits for a position, without success."""
        for _, reached in self.waiting:
            if not reached.done():
                reached.set_result(False)

    def _position_changed(self) -> None:
        self.position_changed_at = time.monotonic()
        while self._samples and not records_short(self, self._samples[0][1]):
            self.fresh_as_of_ms = self._samples.pop(0)[0]
        for needed, reached in self.waiting:
            if not reached.done() and not records_short(self, needed):
                reached.set_result(True)


async def wait_for_any(needed: Sequence[tuple[Replica, NeededPosition]], deadline: float) -> None:
    """Return when one of the replicas reaches its position or stops, or at the deadline (loop time)."""
    reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    if any(not records_short(replica, position) for replica, position in needed):
        return
    for replica, position in needed:
        replica.waiting.append((position, reached))
    try:
        async with asyncio.timeout_at(deadline):
            await reached
    except TimeoutError:
        pass
    finally:
        for replica, position in needed:
            replica.waiting.remove((position, reached))
