"""Read the changes of partitions from the replicas that have them, here or on other nodes.

Strategy: a mark means the same to every replica of a partition. So a reader whose source is lost continues at another one, and
misses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from queryable_app.errors import Failure
from queryable_app.policy.routing import not_hosted_here
from queryable_app.serve.reads import peer_reads
from queryable_app.serve.reads.peer_reads import ReplicasLost
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.store.replica import Replica, wait_for_any
from queryable_app.serve.store.replica_changes import Portion, gives_changes, needed_position, read_changes
from queryable_app.wire.change_log import Mark

HERE: Final = -1
"""The source that is this node; others are ordinals."""
_BYTES_MAX: Final = 2 << 20
"""The changes of all partitions that one call returns. The portion that exceeds it is the last."""
_AVOID_SECONDS: Final = 2.0

Marks = Mapping[int, Mark]
Portions = Mapping[int, Portion]


class SourceLost(Exception):
    """A source cannot be read any more."""


class ChangeSources:
    """Choose the source of each partition, and read it."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._avoided: dict[int, float] = {}
        """Sources that were lost, until this loop time."""

    def source_of(self, partition: int) -> int:
        """Return the node to read a partition from: this one if its replica is complete, else the best of the others."""
        replica = self._reads.replicas.by_partition.get(partition)
        hosted = replica is not None and replica.opened
        if (
            hosted
            and replica is not None
            and replica.complete
            and replica.writable
            and not self._avoids(HERE)
        ):
            return HERE
        others = self._reads.node.peers.candidates(partition)
        preferred = [ordinal for ordinal in others if not self._avoids(ordinal)]
        complete = [o for o in preferred if self._reads.node.peers.has_complete_replica(o, partition)]
        if preferred:
            return (complete or preferred)[0]
        return HERE if hosted or not others else others[0]

    async def read(self, source: int, marks: Marks, wait_seconds: float) -> Portions:
        """Return the next changes of partitions, and wait for some if there are none. Raises SourceLost."""
        try:
            if source == HERE:
                return await local_changes(self._reads, marks, wait_seconds)
            return await peer_reads.changes(self._reads.node.peers, source, marks, wait_seconds)
        except (ReplicasLost, Failure) as error:
            self._avoided[source] = asyncio.get_running_loop().time() + _AVOID_SECONDS
            raise SourceLost(str(error)) from None

    def _avoids(self, source: int) -> bool:
        return self._avoided.get(source, 0.0) > asyncio.get_running_loop().time()


async def local_changes(reads: Reads, marks: Marks, wait_seconds: float) -> Portions:
    """Return the next changes of replicas here, and wait for some if there are none. Raises Failure."""
    deadline = asyncio.get_running_loop().time() + wait_seconds
    while True:
        portions: dict[int, Portion] = {}
        size = 0
        for partition, mark in marks.items():
            portions[partition] = portion = (
                read_changes(_replica(reads, partition), mark) if size <= _BYTES_MAX else Portion((), mark)
            )
            size += sum([len(stored) for _, _, stored in portion.rows])
            await reads.node.read_admission.yield_slot()
        if any(portions[partition].mark != mark for partition, mark in marks.items()):
            return portions
        if asyncio.get_running_loop().time() >= deadline:
            return portions
        replicas = [(_replica(reads, partition), needed_position(mark)) for partition, mark in marks.items()]
        waited = [(replica, position) for replica, position in replicas if gives_changes(replica)]
        await wait_for_any(waited, deadline)  # until the deadline if there are none


def _replica(reads: Reads, partition: int) -> Replica:
    replica = reads.replicas.by_partition.get(partition)
    if replica is None:
        raise not_hosted_here(partition)
    _ = replica.store  # raises if it is not open
    return replica
