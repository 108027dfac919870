"""Notices replicas that stand still while ingest says that it streams, and has their query started again.

Strategy: nothing that may rightly wait is a stall. `gaps` asks Kafka what follows the position of a quiet replica, so a record is
known to be there: offsets without records, filtered ones and open transactions are not. Replicas that are paused, failed,
retried, absent, or that wait for the dead letter topic are not expected to move. `policy/stalls.py` decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Final

from queryable_app.platform.log import event
from queryable_app.policy.stalls import LOOK_SECONDS, Watch, is_due, look, restarted
from queryable_app.serve.base.background import Background
from queryable_app.serve.store.replicas import NO_RECORD, Copies, Copy

STREAMING: Final = "streaming"


class Watchdog(Background):
    """Runs from `start` to `stop`. `restart` has ingest start its query again."""

    def __init__(
        self,
        copies: Copies,
        state: Callable[[], str],
        waiting: Collection[int],
        restart: Callable[[], None],
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._copies = copies
        self._state = state
        self._waiting = waiting
        self.restart = restart
        self._look_seconds = look_seconds
        self._watches: dict[
            int, tuple[object, Watch]
        ] = {}  # by partition: the replica's incarnation, and its watch
        self.restarts = 0
        """How often a query was started again because a replica stood still."""

    @property
    def stalled(self) -> dict[int, Watch]:
        """By partition, from the first restart until the position moves."""
        return {partition: watch for partition, (_, watch) in self._watches.items() if watch.stalled}

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        watches: dict[int, tuple[object, Watch]] = {}
        due = False
        for partition, copy in self._copies.by_partition.items():
            of, before = self._watches.get(partition, (None, None))
            watch = look(before if of is copy.incarnation else None, copy.position, self._expected(copy), now)
            if before is not None and before.stalled and not watch.stalled:
                event("stall-ended", partition=partition, position=copy.position)
            if is_due(watch):
                due = True
                event(
                    "stalled",
                    partition=partition,
                    position=copy.position,
                    record=copy.record_ahead,
                    end=copy.end,
                    seconds=round(watch.waited_seconds, 1),
                    restarts=watch.restarts,
                    reason="Kafka has a record for the replica, ingest says that it streams, and nothing arrives; "
                    "its query is started again",
                )
                watch = restarted(watch)
                copy.record_ahead = NO_RECORD  # it may have been compacted away since: Kafka is asked again
            watches[partition] = copy.incarnation, watch
        self._watches = watches
        if due:
            self.restarts += 1
            self.restart()

    def _expected(self, copy: Copy) -> bool:
        return (
            self._state() == STREAMING
            and copy.writable
            and copy.takes_slices
            and not self._copies.is_paused(copy)
            and copy.partition not in self._waiting
            and copy.record_ahead >= max(copy.position, 0)
        )
