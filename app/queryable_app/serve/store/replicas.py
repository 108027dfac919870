"""Keep this node's replicas, the placement they follow, and the partitioner in use."""

from __future__ import annotations

import time
from collections.abc import Iterable

from queryable_app.config.history import HistorySpec
from queryable_app.placement.assignment import Placement
from queryable_app.platform.clock import monotonic_ms
from queryable_app.platform.log import event
from queryable_app.policy.disk_mark import Pause
from queryable_app.policy.freshness import NeededPosition
from queryable_app.serve.store.partitioner_in_use import PartitionerInUse
from queryable_app.serve.store.replica import Phase, Replica
from queryable_app.wire.index_entries import RowIndexes
from queryable_app.wire.partitioners import MismatchCounts, Partitioning, sum_of_mismatches


class Replicas:
    """Hold every replica of this node, by partition."""

    def __init__(
        self,
        placement: Placement,
        assigned: Iterable[Replica],
        partitioner: PartitionerInUse,
        source_partitions: int = 0,
        indexes: RowIndexes | None = None,
        history: HistorySpec | None = None,
    ) -> None:
        """`source_partitions` are those of the source of a rekeyed view; 0: the view is not rekeyed."""
        self.indexes = indexes
        """The secondary indexes of the view; None: it has none."""
        self.history = history
        """Which versions the view keeps; None: the newest of each key alone."""
        self.source_partitions = source_partitions
        self.placement = placement
        self.by_partition = {replica.partition: replica for replica in assigned}
        self.removing: dict[int, Replica] = {}
        """Replicas that are no longer assigned to this node: running reads may end, and no read begins."""
        self.paused: Pause = "none"
        self.partitioner = partitioner
        self._phases: dict[int, Phase] = {}
        self.topic_partitions: int | None = None
        """The number of partitions that ingest last saw; None: it has not looked yet. `partitions` does not follow it."""
        self.note_mismatches()

    @property
    def partitions(self) -> int:
        """The number of partitions when the topic was placed, over all nodes."""
        return self.placement.partitions

    @property
    def unplaced_partitions(self) -> range:
        """Return the partitions that the topic got after it was placed. No node reads them, and keys may be in them."""
        return range(self.partitions, max(self.partitions, self.topic_partitions or 0))

    def note_topic_partitions(self, count: int) -> None:
        """Record the topic's number of partitions, and log a change: replicas are placed once for a revision."""
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
    def partitioning(self) -> Partitioning:
        """Which partitions may hold a key, by what this node knows now."""
        return self.partitioner.partitioning

    @property
    def mismatches(self) -> MismatchCounts:
        """The partitioner mismatches in the replicas of this node."""
        return sum_of_mismatches(replica.state.mismatches for replica in self.by_partition.values())

    def note_mismatches(self) -> None:
        """Report the mismatches of this node's replicas, after rows or replicas have been added."""
        self.partitioner.note_counts("this node", self.mismatches)

    async def wait_for(self, partition: int, position: NeededPosition, deadline: float) -> bool:
        """Return True once the replica reaches `position`; False when the deadline (loop time) passes, or the replica fails or
        is removed."""
        replica = self.by_partition.get(partition)
        return replica is not None and await replica.wait_for_position(position, deadline)

    @property
    def serving(self) -> list[Replica]:
        """Return the replicas that serve. Hydrating ones do not count for the node's readiness."""
        return [replica for replica in self.by_partition.values() if replica.role != "hydrating"]

    @property
    def ready(self) -> bool:
        """True if every serving replica is complete and none has failed."""
        return all(replica.complete and replica.failed is None for replica in self.serving)

    def is_paused(self, replica: Replica) -> bool:
        return self.paused == "all" or (self.paused == "hydrating" and not replica.complete)

    def partitions_to_ingest(self) -> list[int]:
        """Return the partitions that ingest should read."""
        return sorted(
            p for p, replica in self.by_partition.items() if replica.opened and not self.is_paused(replica)
        )

    def assigned_or_removing(self, partition: int) -> Replica | None:
        """Return the replica for a read that has begun, even if it is being removed."""
        return self.by_partition.get(partition) or self.removing.get(partition)

    def measure(self) -> None:
        """Update all rates, and log each replica that fell behind or caught up. Called at intervals."""
        now, now_ms = time.monotonic(), monotonic_ms()
        for partition in self._phases.keys() - self.by_partition.keys():
            del self._phases[partition]
        for partition, replica in self.by_partition.items():
            replica.update_rate(now)
            phase, before = replica.phase(now_ms), self._phases.get(partition)
            if phase != before:
                self._phases[partition] = phase
                if phase == "caught-up" or (phase == "behind" and before is not None):
                    event(phase, partition=partition, position=replica.position, end=replica.end_offset)

    def close(self) -> None:
        for replica in (*self.by_partition.values(), *self.removing.values()):
            replica.close()
