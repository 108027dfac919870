"""Detect a run of the rekey job that stands still before a record, as the watchdog does for replicas (policy/stalls.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from queryable_app.platform.log import event
from queryable_app.policy.stalls import StallWatch, after_restart, next_watch, restart_is_due


class RunStalls:
    """Watch the source partitions over all runs of a job."""

    def __init__(self) -> None:
        self._watches: dict[int, StallWatch] = {}

    def look(
        self, offsets: Sequence[int], next_record: Callable[[int], int], now: float, *, reads: bool = True
    ) -> str | None:
        """Return why the run must end, or None. `offsets` are the next ones of the run, and `next_record` is the offset of the
        record that the source has there. `reads` is false until tasks have begun on every executor: no restart helps before."""
        due = None
        for partition, offset in enumerate(offsets):
            expected = reads and next_record(partition) >= offset
            watch = next_watch(self._watches.get(partition), offset, expected, now)
            if restart_is_due(watch):
                due = f"the query does not read the record at offset {offset} of source partition {partition}"
                event(
                    "stalled",
                    source_partition=partition,
                    position=offset,
                    record=next_record(partition),
                    seconds=round(watch.waited_seconds, 1),
                    restarts=watch.restarts,
                    reason=f"{due}; it is started again",
                )
                watch = after_restart(watch)
            self._watches[partition] = watch
        return due
