"""Detect stalled replicas while ingest reports that it streams, and restart its query.

Strategy: a replica is stalled only if Kafka has a record for it. `kafka/gaps.py` finds that record after the position of a quiet
replica; gaps, filtered records and open transactions do not count. Replicas that are paused, failed, retrying, absent or waiting
for the dead letter topic are not expected to move. `policy/stalls.py` decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Final

from queryable_app.platform.log import event
from queryable_app.policy.stalls import CHECK_SECONDS, StallWatch, after_restart, next_watch, restart_is_due
from queryable_app.serve.base.background import Background
from queryable_app.serve.store.replica import NO_PENDING_RECORD, Replica
from queryable_app.serve.store.replicas import Replicas

STREAMING: Final = "streaming"


class Watchdog(Background):
    """Watch all replicas from `start` to `stop`. `restart` makes ingest restart its query."""

    def __init__(
        self,
        replicas: Replicas,
        state: Callable[[], str],
        waiting: Collection[int],
        restart: Callable[[], None],
        look_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._replicas = replicas
        self._state = state
        self._waiting = waiting
        self.restart = restart
        self._look_seconds = look_seconds
        self._watches: dict[
            int, tuple[object, StallWatch]
        ] = {}  # by partition: the replica's incarnation, and its watch
        self.restarts = 0
        """The number of restarts for stalled replicas."""

    @property
    def stalled(self) -> dict[int, StallWatch]:
        """Return the stalled replicas by partition, from the first restart until the position moves."""
        return {partition: watch for partition, (_, watch) in self._watches.items() if watch.stalled}

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        watches: dict[int, tuple[object, StallWatch]] = {}
        due = False
        for partition, replica in self._replicas.by_partition.items():
            of, before = self._watches.get(partition, (None, None))
            watch = next_watch(
                before if of is replica.incarnation else None, replica.position, self._expected(replica), now
            )
            if before is not None and before.stalled and not watch.stalled:
                event("stall-ended", partition=partition, position=replica.position)
            if restart_is_due(watch):
                due = True
                event(
                    "stalled",
                    partition=partition,
                    position=replica.position,
                    record=replica.pending_record_offset,
                    end=replica.end_offset,
                    seconds=round(watch.waited_seconds, 1),
                    restarts=watch.restarts,
                    reason="Kafka has a record for the replica, ingest says that it streams, and nothing arrives; "
                    "its query is started again",
                )
                watch = after_restart(watch)
                replica.pending_record_offset = NO_PENDING_RECORD  # it may be compacted away; look again
            watches[partition] = replica.incarnation, watch
        self._watches = watches
        if due:
            self.restarts += 1
            self.restart()

    def _expected(self, replica: Replica) -> bool:
        return (
            self._state() == STREAMING
            and replica.writable
            and replica.accepts_slices
            and not self._replicas.is_paused(replica)
            and replica.partition not in self._waiting
            and replica.pending_record_offset >= max(replica.position, 0)
        )
