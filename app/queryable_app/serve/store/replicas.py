"""Keep this node's replicas, the placement they follow, and the partitioner in use."""

from __future__ import annotations

import time
from collections.abc import Iterable

from queryable_app.placement.assignment import Placement
from queryable_app.platform.clock import monotonic_ms
from queryable_app.platform.log import event
from queryable_app.policy.disk_mark import Pause
from queryable_app.serve.store.partitioner_mismatches import PartitionerInUse
from queryable_app.serve.store.replica import Phase, Replica
from queryable_app.wire.partitioners import ALGORITHMS, algorithm_in_use


class Replicas:
    """Hold every replica of this node, by partition."""

    def __init__(
        self,
        placement: Placement,
        declared_partitioner: str,
        held: Iterable[Replica],
        contradictions: PartitionerInUse,
    ) -> None:
        self.placement = placement
        self.by_partition = {replica.partition: replica for replica in held}
        self.removing: dict[int, Replica] = {}
        """Replicas that are no longer assigned to this node: running reads may end, and no read begins."""
        self.paused: Pause = "none"
        self._declared = declared_partitioner
        self._partitioner = contradictions
        self._phases: dict[int, Phase] = {}
        self.mismatches_elsewhere = (0, 0, 0)
        """As `mismatches`, over the copies of the other nodes, as they last said."""
        self.topic_partitions: int | None = None
        """The number of partitions that ingest last saw; None: it has not looked yet. `partitions` does not follow it."""
        self.algorithm = ""
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
