"""Make one row of the two that a key has in two partitions, where mixed producers wrote it to both."""

from __future__ import annotations

from collections.abc import Callable

from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.wire.disk_format import ROW_HEADER

Combine = Callable[[RawRow, RawRow], RawRow]


def newer_row(one: RawRow, other: RawRow) -> RawRow:
    """Return the newer row: by timestamp, then offset, then partition."""
    return other if _age(other) > _age(one) else one


def added_counts(one: RawRow, other: RawRow) -> RawRow:
    """Return the sum of two numbers of rows that have the same indexed value."""
    count = int.from_bytes(one[2]) + int.from_bytes(other[2])
    return one[0], one[1], count.to_bytes(len(one[2]))


def merged_row(merge: Callable[[bytes, bytes], bytes]) -> Combine:
    """Return what merges the states of both rows. The result has the place of the newer one."""

    def combine(one: RawRow, other: RawRow) -> RawRow:
        earlier, later = (one, other) if _age(other) > _age(one) else (other, one)
        return later[0], later[1], merge(earlier[2], later[2])

    return combine


def _age(row: RawRow) -> tuple[int, int, int]:
    """Return what rows of one key are compared by: timestamp, offset and partition."""
    _, offset, timestamp_ms, _ = ROW_HEADER.unpack_from(row[2])
    return timestamp_ms, offset, row[1]
