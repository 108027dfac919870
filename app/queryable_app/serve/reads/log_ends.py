"""Find positions beyond the end of the log: they are of a topic that was deleted and made again.

Strategy: a position that a replica has not reached is usually one of a fresher replica. So a strong read decides: after it a
replica has everything that Kafka had when the read began, and a position from before is not beyond that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from queryable_app.errors import Failure
from queryable_app.policy.freshness import Consistency, ReadOptions
from queryable_app.serve.reads.coverage import coverage
from queryable_app.serve.reads.point import Reads


class LogEnds:
    """Compare positions with the ends of the partitions."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    async def latest(self) -> Sequence[int]:
        """Return the positions of fresh replicas. Raises Failure."""
        return await self._positions(self._reads.defaults)

    async def beyond(self, positions: Sequence[int]) -> Mapping[int, int]:
        """Return the partitions whose positions are beyond the end of the log, with that end. If Kafka or a replica is
        unavailable, nothing is known, and none is returned."""
        if (
            self._reads.rekeyed
        ):  # its strong reads are measured in the source topic, and not in these positions
            return {}
        try:
            if not _lower(await self.latest(), positions):
                return {}
            return _lower(
                await self._positions(replace(self._reads.defaults, consistency=Consistency.STRONG)),
                positions,
            )
        except Failure:
            return {}

    async def _positions(self, options: ReadOptions) -> Sequence[int]:
        deadline = asyncio.get_running_loop().time() + options.deadline_ms / 1000
        covered = await coverage(self._reads, range(self._reads.replicas.partitions), options, deadline, None)
        return [each.position for each in covered.progress]


def _lower(ends: Sequence[int], positions: Sequence[int]) -> Mapping[int, int]:
    pairs = zip(ends, positions, strict=True)
    return {partition: end for partition, (end, position) in enumerate(pairs) if end < position}
