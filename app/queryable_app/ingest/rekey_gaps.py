"""Find where a source partition has no record left although its end is further: transaction markers and aborted records.

Strategy: Spark never shows such offsets, so a run would stay below the end for ever. If it stands still there, a consumer reads
on from its offset. Where it finds no record, the run may move, and its markers say so. They come through the internal topic, in
the order of all rows, so every replica moves at the same place in one log. A replica never moves by itself: the rows that an
earlier run wrote may still be ahead of it, although the source has compacted their records since.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from queryable_app.ingest.java_classes import java_class, java_list, java_map
from queryable_app.ingest.kafka_admin import WITHOUT_METRICS, topic_partition

LOOK_SECONDS: Final = 0.5
_PROOFS_SECONDS_MAX: Final = 1.0
_POLL_MS: Final = 100
_SETTINGS: Final = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "none",  # an offset out of range proves nothing
    "enable.auto.commit": "false",
    "max.poll.records": "1",  # one is enough
    "max.partition.fetch.bytes": "65536",
    "fetch.max.wait.ms": str(_POLL_MS),
    "default.api.timeout.ms": "3000",
}


class SourceGaps:
    """Look at the ends of the source partitions of one run. Call `look` every LOOK_SECONDS, and `close` at the end."""

    def __init__(self, jvm: Any, bootstrap_servers: str, config: Mapping[str, str], topic: str) -> None:
        self._jvm = jvm
        self._settings = {**WITHOUT_METRICS, **config, "bootstrap.servers": bootstrap_servers, **_SETTINGS}
        self._topic = topic
        self._consumer: Any = None
        self._seen: Sequence[int] = ()
        self._records: dict[
            int, int
        ] = {}  # by partition: the offset of a record that the run has yet to write

    def look(self, offsets: Sequence[int]) -> dict[int, int]:
        """Return the offsets to which partitions may move that stand still at `offsets`. Empty if Kafka does not answer."""
        still = [
            partition
            for partition, (offset, before) in enumerate(zip(offsets, self._seen, strict=False))
            if offset == before and self._records.get(partition, -1) < offset
        ]
        self._seen = offsets
        if not still:
            return {}
        try:
            return self._proven(still, offsets)
        except Py4JJavaError:
            self.close()
            return {}

    def next_record(self, partition: int) -> int:
        """Return the offset of a record that was seen where the partition stood still; -1: none was."""
        return self._records.get(partition, -1)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close(java_class(self._jvm, "java.time.Duration").ofMillis(0))
            self._consumer = None

    def _proven(self, partitions: Sequence[int], offsets: Sequence[int]) -> dict[int, int]:
        consumer = self._connected()
        ends = consumer.endOffsets(self._listed(partitions))
        until = time.monotonic() + _PROOFS_SECONDS_MAX
        proven = {}
        for partition in partitions:
            offset, end = offsets[partition], int(ends.get(self._where(partition)))
            if offset < end and time.monotonic() < until:
                reached = self._first_record(consumer, partition, offset, end, until)
                if reached > offset:
                    proven[partition] = reached
        return proven

    def _first_record(self, consumer: Any, partition: int, offset: int, end: int, until: float) -> int:
        """Return up to which offset there is no record, and remember the record that is there."""
        where = self._where(partition)
        consumer.assign(self._listed([partition]))
        consumer.seek(where, offset)
        reached = offset
        while reached < end and time.monotonic() < until:
            found = consumer.poll(java_class(self._jvm, "java.time.Duration").ofMillis(_POLL_MS))
            if not found.isEmpty():
                self._records[partition] = reached = int(found.iterator().next().offset())
                break
            reached = int(consumer.position(where))
        return min(reached, end)

    def _connected(self) -> Any:
        if self._consumer is None:
            settings = java_map(self._jvm, self._settings.items())
            bytes_of = java_class(self._jvm, "org.apache.kafka.common.serialization.ByteArrayDeserializer")
            self._consumer = java_class(self._jvm, "org.apache.kafka.clients.consumer.KafkaConsumer")(
                settings, bytes_of(), bytes_of()
            )
        return self._consumer

    def _where(self, partition: int) -> Any:
        return topic_partition(self._jvm, self._topic, partition)

    def _listed(self, partitions: Sequence[int]) -> Any:
        return java_list(self._jvm, map(self._where, partitions))
