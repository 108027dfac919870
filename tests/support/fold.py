"""Compute the rows that a view of a topic must have, in the simplest way: the oracle that tests compare a store with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogRecord:
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None  # None: a tombstone


@dataclass(frozen=True, slots=True)
class FoldedRow:
    partition: int
    offset: int
    timestamp_ms: int
    value: bytes


def _every_record(record: LogRecord) -> bool:
    return True


def _unchanged(value: bytes) -> bytes:
    return value


def fold(
    records: Iterable[LogRecord],
    keep: Callable[[LogRecord], bool] = _every_record,
    transform: Callable[[bytes], bytes] = _unchanged,
) -> dict[bytes, FoldedRow]:
    """Return the live rows by record key.

    Within a partition the highest offset wins, whatever the timestamps are. A key in several partitions has the newest of their
    rows by timestamp, then offset, then partition. A tombstone deletes, and so does a record that `keep` refuses. Order and
    repetition of `records` do not matter.
    """
    last_of_partition: dict[tuple[int, bytes], LogRecord] = {}
    for record in records:
        if record.key is None:
            continue
        place = (record.partition, record.key)
        if place not in last_of_partition or last_of_partition[place].offset < record.offset:
            last_of_partition[place] = record

    newest: dict[bytes, LogRecord] = {}
    for (_, key), record in last_of_partition.items():
        if key not in newest or _age(newest[key]) < _age(record):
            newest[key] = record

    return {
        key: FoldedRow(record.partition, record.offset, record.timestamp_ms, transform(record.value))
        for key, record in newest.items()
        if record.value is not None and keep(record)
    }


def _age(record: LogRecord) -> tuple[int, int, int]:
    return record.timestamp_ms, record.offset, record.partition
