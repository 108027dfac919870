"""The copies this node holds, and how far each one is.

Strategy: a Copy is the only one who writes to its store, so its position, what waits for a position, and what was on
disk can never disagree. Freshness is learned by samples: "at that moment the log ended there". Once the position has
reached a sample's end, the copy holds all that was in the log at the sample's moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import random
from typing import Any, Final, Literal

from queryable_app.errors import Failure, Reason
from queryable_app.placement.assignment import Placement
from queryable_app.platform.clock import monotonic_ms
from queryable_app.platform.log import event
from queryable_app.policy.disk_mark import Pause
from queryable_app.policy.freshness import absent, next_offset
from queryable_app.policy.retries import Retry, next_retry
from queryable_app.serve.store.partitioner_mismatches import PartitionerInUse
from queryable_app.serve.store.store import Store, StoreError, StoreUnavailable
from queryable_app.wire.disk_format import ReplicaState
from queryable_app.wire.partitioners import ALGORITHMS, algorithm_in_use

Role = Literal["active", "standby", "hydrating"]
Phase = Literal["failed", "retrying", "hydrating", "behind", "caught-up"]

NO_PENDING_RECORD: Final = -2  # below every position
BEHIND_MS: Final = 10_000  # a copy older than that is called behind, in the log and in status
_SAMPLES_MAX: Final = 128
_RATE_SMOOTHING: Final = 0.3
_RATE_MIN: Final = 0.01  # less is what smoothing leaves of a rate that has ended


class Replica:
    """One partition's copy. `failed` says why it stopped for good, `retrying` why it takes nothing at present; what is there
    stays readable."""

    def __init__(self, partition: int, role: Role, store: Store | None, failed: str | None = None) -> None:
        self.partition = partition
        self.role = role
        self.failed = failed
        self.retrying: Retry | None = None
        """Set from a write or an opening that failed until the store has been opened again."""
        self.absent: str | None = None
        """Why nothing of it is here for the moment, such as "is being copied from ..."."""
        self.accepts_slices = True
        """A query that was started before the copy was opened does not begin where the copy does."""
        self.end = -1
        """The log's end when Kafka was last asked; -1: not known."""
        self.fresh_as_of_ms = -1
        """The replica held the whole log at this moment of `platform/clock.py`; -1: never since the start."""
        self.rate = 0.0
        """Records a second by which the position moves, smoothed."""
        self.position_changed_at = time.monotonic()
        """When the position last moved, monotonic."""
        self.pending_record_offset = NO_PENDING_RECORD
        """Offset of a record that Kafka has shown from the position on, and that had not arrived then."""
        self.incarnation = object()
        """Another one whenever the copy begins anew: what was asked of Kafka before says nothing of it."""
        self._store = store
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []
        self._samples: list[tuple[int, int]] = []  # (moment in ms, end), ends not reached yet
        self._measured: tuple[float, int] | None = None  # (monotonic time, position)
        self._last_retry: Retry | None = None
        self._recovered_at: float | None = None  # monotonic
        self._detached_position = -1  # the position of the store that was closed last

    @property
    def store(self) -> Store:
        if self._store is not None:
            return self._store
        if self.absent is not None:
            raise absent(self, self.absent)
        raise Failure(
            Reason.NOT_AVAILABLE,
            f"the copy of partition {self.partition} could not be opened: {self.failed}",
            "ask again when what stopped it is mended, see /v1/status",
            partition=self.partition,
        )

    @property
    def opened(self) -> bool:
        return self._store is not None

    @property
    def writable(self) -> bool:
        return self._store is not None and self.failed is None and self.retrying is None

    @property
    def state(self) -> ReplicaState:
        return self._store.state if self._store else ReplicaState()

    @property
    def position(self) -> int:
        return self._store.state.position if self._store else -1

    @property
    def complete(self) -> bool:
        return self._store is not None and self._store.state.complete

    @property
    def damaged(self) -> str | None:
        """Why a part of it can never be read again. The rest can be."""
        return None if self._store is None else self._store.damaged

    def open(self, store: Store) -> None:
        """From now on this is what the copy holds. If it lacks something that the copy had, the copy is complete only when it
        has reached the log's end again."""
        self._store = store
        self.failed = self.absent = None
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

    def detach_store(self, why: str) -> Store | None:
        """Nobody reads or writes any more, whoever waits is told, and slices are not taken before the next start of the
        query. Returns what has to be closed."""
        self._detached_position = self.position
        store, self._store = self._store, None
        self.absent = why
        self.accepts_slices = False
        self.release_waiters()
        return store

    @property
    def remaining_seconds(self) -> float | None:
        """Until the log's end at the present rate; None when nobody can tell."""
        if self.end < 0 or self.rate < 1:
            return None
        return max(0, self.end - next_offset(self)) / self.rate

    def phase(self, now_ms: int) -> Phase:
        if self.failed is not None:
            return "failed"
        if self.retrying is not None:
            return "retrying"
        if not self.complete:
            return "hydrating"
        return "caught-up" if 0 <= now_ms - self.fresh_as_of_ms <= BEHIND_MS else "behind"

    def apply(
        self, puts: Iterable[tuple[bytes, bytes]], state: ReplicaState, last_bad: dict[str, Any] | None = None
    ) -> None:
        """Write rows and their state; then wake who waits for the position. If the store cannot be written this copy stops,
        and nothing is raised: the others go on."""
        if 0 <= self.end <= max(0, state.position) and not state.complete:
            state = replace(state, complete=True)
        if self.write(lambda store: store.apply(puts, state, last_bad)):
            self._position_changed()

    def write(self, change: Callable[[Store], None]) -> bool:
        """Change the store. Return False if it cannot be written: the copy then stops, or waits for its next attempt."""
        store = self.store
        try:
            change(store)
        except StoreError as error:
            self.note_write_failure(error)
        except Failure as failure:  # it could not be read either
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
        """Take nothing until the store has been opened again. A later attempt may succeed."""
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

    def sample(self, as_of_ms: int, end: int) -> None:
        """The log ended at `end` when asked at `as_of_ms`, a moment of `platform/clock.py`."""
        self.end = end
        if next_offset(self) >= end:
            self._samples.clear()
            self.fresh_as_of_ms = as_of_ms
            if self.writable and not self.complete:
                self.apply((), self.state)
            return
        self._samples.append((as_of_ms, end))
        if len(self._samples) > _SAMPLES_MAX:  # far behind: coarser steps will do
            del self._samples[1::2]

    def measure(self, now: float) -> None:
        """Called at intervals: updates the rate. `now` is monotonic."""
        position = next_offset(self)
        if self._measured is not None:
            then, before = self._measured
            if now <= then:
                return
            self.rate += _RATE_SMOOTHING * (max(0, position - before) / (now - then) - self.rate)
            if self.rate < _RATE_MIN:
                self.rate = 0.0
        self._measured = (now, position)

    def fail(self, why: str) -> None:
        if self.failed is None:
            event("failed", partition=self.partition, position=self.position, reason=why)
        self.failed, self.retrying = why, None
        self.release_waiters()

    def rebuild(self) -> None:
        """Empty the copy; it starts again at the earliest record."""
        if self.write(Store.clear):
            self.failed = None
            self._forget_end_offset()

    def require_catch_up(self) -> None:
        """It was about to go, and nothing has come in since then: it is complete when it has reached the end anew, and does
        not answer before, in place of copies that went on."""
        self._forget_end_offset()
        self.apply((), replace(self.state, complete=False))

    def _forget_end_offset(self) -> None:
        self.end = self.fresh_as_of_ms = -1
        self._samples.clear()
        self._measured = None
        self.rate = 0.0
        self._begin_incarnation()

    def _begin_incarnation(self) -> None:
        self.pending_record_offset = NO_PENDING_RECORD
        self.incarnation = object()
        self.position_changed_at = time.monotonic()

    async def wait_for_position(self, position: int, deadline: float) -> bool:
        if next_offset(self) >= position or not self.writable:
            return next_offset(self) >= position
        waiter: tuple[int, asyncio.Future[bool]] = (position, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                return await waiter[1]
        except TimeoutError:
            return next_offset(self) >= position
        finally:
            self._waiting.remove(waiter)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def release_waiters(self) -> None:
        for _, reached in self._waiting:
            if not reached.done():
                reached.set_result(False)

    def _position_changed(self) -> None:
        position = self.position
        self.position_changed_at = time.monotonic()
        while self._samples and position >= self._samples[0][1]:
            self.fresh_as_of_ms = self._samples.pop(0)[0]
        for needed, reached in self._waiting:
            if position >= needed and not reached.done():
                reached.set_result(True)


class Replicas:
    """Every copy this node holds, the placement they follow from, and the partitioner they have seen."""

    def __init__(
        self,
        placement: Placement,
        declared_partitioner: str,
        held: Iterable[Replica],
        contradictions: PartitionerInUse,
    ) -> None:
        self.placement = placement
        self.by_partition = {replica.partition: replica for replica in held}
        self.leaving: dict[int, Replica] = {}
        """Copies that are no longer held here: no read begins in them, and those that had begun may end."""
        self.paused: Pause = "none"
        self._declared = declared_partitioner
        self._partitioner = contradictions
        self._phases: dict[int, Phase] = {}
        self.mismatches_elsewhere = (0, 0, 0)
        """As `mismatches`, over the copies of the other nodes, as they last said."""
        self.topic_partitions: int | None = None
        """As many as the topic had when ingest last looked; None: it has not yet. `partitions` does not follow it."""
        self.algorithm = ""
        self.note_mismatches()

    @property
    def partitions(self) -> int:
        """Of the topic when it was placed, not of this node."""
        return self.placement.partitions

    @property
    def unplaced_partitions(self) -> range:
        """Those that the topic got after it was placed. A key may be in them, and nobody here can tell."""
        return range(self.partitions, max(self.partitions, self.topic_partitions or 0))

    def note_topic_partitions(self, count: int) -> None:
        """Copies are placed once for a revision; a topic that has grown or shrunk since is somebody's business to know."""
        if count not in (self.partitions, self.topic_partitions):
            what = "are not read, and keys may have moved to them" if count > self.partitions else "are gone"
            event(
                "partitions-changed",
                topic_partitions=count,
                placed_partitions=self.partitions,
                reason=f"partitions from {min(count, self.partitions)} on {what}",
                advice="make a new revision of the view, which reads the topic as it is now; "
                "`qtopic run` does so when it is started again",
            )
        self.topic_partitions = count

    @property
    def mismatches(self) -> tuple[int, int, int]:
        """Records that contradict murmur2, crc32 and fnv1a, over the copies of this node."""
        murmur2 = crc32 = fnv1a = 0
        for replica in self.by_partition.values():
            seen = replica.state.mismatches
            murmur2, crc32, fnv1a = murmur2 + seen[0], crc32 + seen[1], fnv1a + seen[2]
        return murmur2, crc32, fnv1a

    @property
    def mismatched(self) -> frozenset[str]:
        """The partitioners that some record went against."""
        return self._partitioner.known

    def note_mismatched(self, algorithms: frozenset[str]) -> None:
        """Another node knows them."""
        if not algorithms <= self.mismatched:
            self._partitioner.add(algorithms & {*ALGORITHMS})
            self.note_mismatches()

    def note_mismatches(self) -> None:
        """Decide anew which partitioner is in use; a change is logged, since reads go elsewhere from now on."""
        here, elsewhere = self.mismatches, self.mismatches_elsewhere
        mismatches = (here[0] + elsewhere[0], here[1] + elsewhere[1], here[2] + elsewhere[2])
        self._partitioner.add(frozenset(a for a, n in zip(ALGORITHMS, mismatches, strict=True) if n))
        # In a topic of one partition every algorithm is right, and the first one is as good as any.
        algorithm = algorithm_in_use(self._declared, self._partitioner.known)
        if algorithm != self.algorithm:
            if self.algorithm:
                murmur2, crc32, fnv1a = mismatches
                event(
                    "partitioner",
                    declared=self._declared,
                    was=self.algorithm,
                    now=algorithm,
                    contradicting_murmur2=murmur2,
                    contradicting_crc32=crc32,
                    contradicting_fnv1a=fnv1a,
                )
            self.algorithm = algorithm

    async def wait_for(self, partition: int, position: int, deadline: float) -> bool:
        """True as soon as the copy's position is at least `position`; False when the deadline (loop time) passes, or
        the copy fails or leaves."""
        replica = self.by_partition.get(partition)
        return replica is not None and await replica.wait_for_position(position, deadline)

    @property
    def serving(self) -> list[Replica]:
        """Those that others count on; what is being built beside them takes nothing away from the node."""
        return [replica for replica in self.by_partition.values() if replica.role != "hydrating"]

    @property
    def ready(self) -> bool:
        """Every copy that serves is complete, and none has failed for good."""
        return all(replica.complete and replica.failed is None for replica in self.serving)

    def is_paused(self, replica: Replica) -> bool:
        return self.paused == "all" or (self.paused == "hydrating" and not replica.complete)

    def wanted(self) -> list[int]:
        """The partitions that ingest is to read."""
        return sorted(
            p for p, replica in self.by_partition.items() if replica.opened and not self.is_paused(replica)
        )

    def held(self, partition: int) -> Replica | None:
        """The copy of a read that has begun, although it may be leaving."""
        return self.by_partition.get(partition) or self.leaving.get(partition)

    def measure(self) -> None:
        """Called at intervals: rates, and an event for each copy that fell behind or caught up."""
        now, now_ms = time.monotonic(), monotonic_ms()
        for partition in self._phases.keys() - self.by_partition.keys():
            del self._phases[partition]
        for partition, replica in self.by_partition.items():
            replica.measure(now)
            phase, before = replica.phase(now_ms), self._phases.get(partition)
            if phase != before:
                self._phases[partition] = phase
                if phase == "caught-up" or (phase == "behind" and before is not None):
                    event(phase, partition=partition, position=replica.position, end=replica.end)

    def close(self) -> None:
        for replica in (*self.by_partition.values(), *self.leaving.values()):
            replica.close()
