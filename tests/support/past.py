"""Remember every record, and compute the past of a view from them in the simplest way."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from queryable_app.wire.partitioners import partition_for

PARTITIONS = 6


class Record(NamedTuple):
    key: str
    timestamp_ms: int
    clock_ms: int
    value: bytes | None


class Past:
    """Hold the log of each partition."""

    def __init__(self, partitions: int = PARTITIONS) -> None:
        self.logs: list[list[Record]] = [[] for _ in range(partitions)]

    def partition_of(self, key: str, partition: int | None = None) -> int:
        return partition_for(key.encode(), "murmur2", len(self.logs)) if partition is None else partition

    def add(self, key: str, partition: int, timestamp_ms: int, value: bytes | None) -> None:
        log = self.logs[partition]
        clock_ms = max(timestamp_ms, log[-1].clock_ms) if log else timestamp_ms
        log.append(Record(key, timestamp_ms, clock_ms, value))

    @property
    def keys(self) -> list[str]:
        return sorted({record.key for log in self.logs for record in log})

    def random_positions(self, rng: random.Random) -> dict[int, int]:
        return {p: rng.randrange(len(log) + 1) for p, log in enumerate(self.logs)}

    def positions_at(self, time_ms: int) -> dict[int, int]:
        """Return how many records of each partition count at a time."""
        return {p: sum(record.clock_ms <= time_ms for record in log) for p, log in enumerate(self.logs)}

    @staticmethod
    def text(positions: Mapping[int, int]) -> str:
        return ",".join(f"{partition}:{offset}" for partition, offset in positions.items())

    def value_at(self, key: str, positions: Mapping[int, int]) -> bytes | None:
        """Return the value of the newest record of a key below the positions: by timestamp, then offset, then partition."""
        newest: tuple[tuple[int, int, int], bytes | None] | None = None
        for partition, log in enumerate(self.logs):
            for offset in range(positions[partition] - 1, -1, -1):
                record = log[offset]
                if record.key == key:  # the last one of its partition
                    age = (record.timestamp_ms, offset, partition)
                    if newest is None or age > newest[0]:
                        newest = age, record.value
                    break
        return None if newest is None else newest[1]

    def rows_at(self, positions: Mapping[int, int], reverse: bool = False) -> list[tuple[str, Any]]:
        rows = [(key, self.value_at(key, positions)) for key in sorted(self.keys, reverse=reverse)]
        return [(key, json.loads(value)) for key, value in rows if value is not None]

    def versions(self, key: str, newest_first: bool = True) -> list[tuple[int, int, int, Any]]:
        found = [
            (
                partition,
                offset,
                record.timestamp_ms,
                None if record.value is None else json.loads(record.value),
            )
            for partition, log in enumerate(self.logs)
            for offset, record in enumerate(log)
            if record.key == key
        ]
        found.sort(key=lambda version: (-version[1], version[0]))
        return found if newest_first else found[::-1]
