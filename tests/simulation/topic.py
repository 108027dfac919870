"""Simulate the topic: its records, when readers could see them, and a consumer.

A partition's list has a record or None at each offset. None is a transaction marker, a record of an aborted transaction, or a
record that was compacted.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError

from queryable_app.contract import ObservedTopic
from queryable_app.wire.partitioners import partition_for
from tests.simulation.clock import Scheduler
from tests.support.fold import LogRecord

_ASKED_SECONDS = (0.001, 0.01)
_TOLD_SECONDS = 2.0
"""How old the end offset may be that a node knows."""


class Topic:
    """Hold the log. `row_after` says what row a key of the view has after a record (views.py)."""

    def __init__(
        self,
        scheduler: Scheduler,
        partitions: int,
        row_after: Callable[[Sequence[LogRecord], LogRecord], LogRecord | None] = lambda _, record: record,
    ) -> None:
        self._scheduler = scheduler
        self._row_after = row_after
        self.records: list[list[LogRecord | None]] = [[] for _ in range(partitions)]
        self.written: list[list[LogRecord]] = [[] for _ in range(partitions)]
        """All records that were ever written, also those that were compacted since."""
        self.starts = [0] * partitions
        """The earliest offset of each partition. Earlier records were deleted from outside."""
        self._grown: list[list[tuple[float, int]]] = [[] for _ in range(partitions)]
        self.of_key: dict[bytes, list[LogRecord]] = {}
        """The row of each key after each of its records, in the order in which they were written."""
        self._records_of_key: dict[bytes, list[LogRecord]] = {}
        self._outages: list[list[float]] = []
        """From when to when Kafka did not answer; the last one may have no end yet."""
        self.compacted = False
        """Its `cleanup.policy` says that it is compacted."""

    @property
    def partitions(self) -> int:
        return len(self.records)

    def partition_of(self, key: bytes) -> int:
        """Return the partition of the assumed partitioner."""
        return partition_for(key, "murmur2", self.partitions)

    @property
    def away(self) -> bool:
        """Kafka does not answer."""
        return bool(self._outages) and len(self._outages[-1]) == 1

    @away.setter
    def away(self, away: bool) -> None:
        if away and not self.away:
            self._outages.append([self._scheduler.now])
        elif not away and self.away:
            self._outages[-1].append(self._scheduler.now)

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int, marker: bool = False
    ) -> int:
        """Append a record, and return its offset."""
        log = self.records[partition]
        offset = len(log)
        record = LogRecord(partition, offset, timestamp_ms, key, value)
        log.append(record)
        self.written[partition].append(record)
        if key is not None:
            before = self._records_of_key.setdefault(key, [])
            row = self._row_after(before, record)
            before.append(record)
            if row is not None:
                self.of_key.setdefault(key, []).append(row)
        if marker:
            log.append(None)
        self._grown[partition].append((self._scheduler.now, len(log)))
        return offset

    def skip(self, partition: int, offsets: int) -> None:
        """Append an aborted transaction."""
        self.records[partition] += [None] * offsets
        self._grown[partition].append((self._scheduler.now, len(self.records[partition])))

    def written_at(self, partition: int, offset: int) -> LogRecord:
        """Return a record, also if it was compacted since."""
        written = self.written[partition]
        return written[bisect_left(written, offset, key=lambda record: record.offset)]

    def compact(self, partition: int, until: int) -> None:
        """Remove the records before an offset that a later one before it replaces. The last one of a key stays."""
        log = self.records[partition]
        last = {record.key: record.offset for record in log[:until] if record is not None}
        for offset, record in enumerate(log[:until]):
            if record is not None and record.key is not None and last[record.key] > offset:
                log[offset] = None

    def truncate(self, partition: int, until: int) -> None:
        """Delete the records before an offset."""
        self.starts[partition] = max(self.starts[partition], until)

    def observed(self, topic_id: str) -> ObservedTopic:
        """Return what ingest sees of the topic."""
        partitions = range(self.partitions)
        ends = {partition: self.end(partition) for partition in partitions}
        return ObservedTopic(topic_id, self.partitions, dict(enumerate(self.starts)), ends, self.compacted)

    def end(self, partition: int) -> int:
        return len(self.records[partition])

    def end_told_at(self, partition: int, moment: float) -> int:
        """Return the least end offset that a node may know at a moment: it keeps the last one while Kafka is away."""
        told = moment - _TOLD_SECONDS
        for began, *ended in reversed(self._outages):
            if began <= moment and (not ended or ended[0] >= told):
                told = min(told, began - _TOLD_SECONDS)
        return self.end_at(partition, told)

    def end_at(self, partition: int, moment: float) -> int:
        """Return the end offset at an earlier moment."""
        grown = self._grown[partition]
        index = bisect_right(grown, (moment, 1 << 62))
        return grown[index - 1][1] if index else 0

    def last_before(self, partition: int, key: bytes, position: int) -> LogRecord | None:
        """Return the row of the key in one partition, as of a position: the fold of its records there."""
        found = None
        for record in self.of_key.get(key, ()):
            if record.partition == partition and record.offset < position:
                found = record
        return found


@dataclass(frozen=True, slots=True)
class _Seen:
    offset: int


class TopicConsumer:
    """Implement what `EndOffsets` and `OffsetGaps` use of aiokafka's consumer."""

    def __init__(self, topics: Mapping[str, Topic], seed: random.Random) -> None:
        self._topics = topics
        self._random = seed
        self._position = 0

    async def start(self) -> None:
        await self._ask()

    async def stop(self) -> None:
        pass

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        await self._ask()
        ends = {where: self._topics[where.topic].end(where.partition) for where in partitions}
        await self._ask()
        return ends

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        await self._ask()
        return {where: self._topics[where.topic].starts[where.partition] for where in partitions}

    def assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def unsubscribe(self) -> None:
        pass

    def seek(self, where: TopicPartition, offset: int) -> None:
        self._position = offset

    async def position(self, where: TopicPartition) -> int:
        return self._position

    async def getmany(
        self, where: TopicPartition, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[Any]]:
        await self._ask()
        log = self._topics[where.topic].records[where.partition]
        for offset in range(self._position, len(log)):
            if log[offset] is not None:
                self._position = offset + 1
                return {where: [_Seen(offset)]}
        self._position = len(log)
        return {}

    async def _ask(self) -> None:
        await asyncio.sleep(self._random.uniform(*_ASKED_SECONDS))
        if any(topic.away for topic in self._topics.values()):
            raise KafkaConnectionError("Kafka is away")
