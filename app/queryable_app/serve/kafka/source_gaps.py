"""Move the source positions of a rekeyed view over gaps: source offsets without a readable record.

Strategy: as in `gaps.py`, a consumer reads from a position that does not move although it is below the end offset. Where there
is no record, no job will ever write anything, so the position may move. Where there is one, the job has to bring it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from queryable_app.serve.kafka.gaps import OffsetGaps, first_record
from queryable_app.serve.store.rekeyed_replica import RekeyedReplica

_LOOK_SECONDS: Final = 0.2
_QUIET_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 2.0


class SourceGaps(OffsetGaps):
    """Prove gaps of the source empty from `start` to `stop`. The topic is the source of the view."""

    async def _run(self) -> None:
        seen: dict[
            int, tuple[int, float]
        ] = {}  # by source partition: the least offset, and since when it is that
        pending: dict[int, int] = {}  # by source partition: the offset of a record that has not arrived
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for partition, (least, end) in self._behind().items():
                offset, since = seen.get(partition, (-1, 0.0))
                if offset != least:
                    seen[partition] = least, time.monotonic()
                elif time.monotonic() - since > _QUIET_SECONDS and pending.get(partition, -1) < least:
                    try:
                        reached, found = await self._reached(partition, least, end)
                    except (KafkaError, OSError, TimeoutError):
                        await self._consumer.drop()
                        await asyncio.sleep(_RETRY_SECONDS)
                        continue
                    if found:
                        pending[partition] = reached
                    self._move(partition, least, min(reached, end))

    async def _reached(self, partition: int, begin: int, end: int) -> tuple[int, bool]:
        consumer = await self._consumer.connected()
        where = TopicPartition(self._topic, partition)
        earliest = (await consumer.beginning_offsets([where]))[where]
        return await first_record(consumer, where, max(begin, earliest) if begin == 0 else begin, end)

    def _behind(self) -> dict[int, tuple[int, int]]:
        """Return the least offset, and the end offset, of each source partition in which a replica is behind."""
        found: dict[int, tuple[int, int]] = {}
        for replica in self._rekeyed():
            for partition, (offset, end) in enumerate(
                zip(replica.source_offsets, replica.source_ends, strict=False)
            ):
                if offset < end:
                    found[partition] = min(offset, found.get(partition, (offset, end))[0]), end
        return found

    def _move(self, partition: int, begin: int, reached: int) -> None:
        """Move the replicas that are within the gap to its end."""
        for replica in self._rekeyed():
            if begin <= replica.source_offsets[partition] < reached:
                sources = replica.sources.copy()
                sources.by_partition[partition].skip_to(reached)
                replica.apply((), replica.state, sources=sources)

    def _rekeyed(self) -> Sequence[RekeyedReplica]:
        return [
            replica
            for replica in self._replicas.by_partition.values()
            if isinstance(replica, RekeyedReplica) and replica.writable
        ]
