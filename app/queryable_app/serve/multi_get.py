"""Many keys in one read: looked up partition by partition, answered in the order they were asked in.

Strategy: keys of one partition go to RocksDB together, a batch at a time, with the event loop free in between. Values are
copied into the answer as text, and what they may weigh together is bounded before they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from time import time_ns
from typing import Final, NamedTuple

from queryable_app.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE
from queryable_app.errors import Failure, Reason
from queryable_app.partitioners import SCATTER, partition_for
from queryable_app.serde import KeyCodec, value_to_json
from queryable_app.serve.copies import Copy
from queryable_app.serve.reads import found
from queryable_app.serve.scans import key_json
from queryable_app.serve.turns import Pause
from queryable_app.topic_spec import ValueFormat

VALUE_BYTES_MAX: Final = 64 << 20
_BATCH_KEYS: Final = 64  # of values of 5 MB, no more than can be in memory at once
KEYS_WITHOUT_PAUSE: Final = 512  # a few milliseconds; with more of them it is a long read

Rows = dict[bytes, tuple[int, bytes]]
"""On-disk key → partition and stored bytes of its newest row; it may be a tombstone."""
Keys = Mapping[int, Sequence[bytes]]
"""Partition → the on-disk keys to look up in it."""


class Sought(NamedTuple):
    """A key, and where it is looked up."""

    record_key: bytes
    disk_key: bytes
    partition: int | None  # None: in all of them


def seek(record_keys: Sequence[bytes], codec: KeyCodec, algorithm: str, partitions: int) -> list[Sought]:
    to_disk = codec.to_disk
    if algorithm == SCATTER:
        return [Sought(key, to_disk(key), None) for key in record_keys]
    return [Sought(key, to_disk(key), partition_for(key, algorithm, partitions)) for key in record_keys]


def keys_by_partition(sought: Sequence[Sought], partitions: int) -> dict[int, list[bytes]]:
    keys: dict[int, list[bytes]] = {}
    for _, disk_key, partition in sought:
        for each in range(partitions) if partition is None else (partition,):
            keys.setdefault(each, []).append(disk_key)
    return keys


def keep_newest(rows: Rows, disk_key: bytes, partition: int, stored: bytes) -> None:
    before = rows.get(disk_key)
    if before is None or found(*before) < found(partition, stored):
        rows[disk_key] = partition, stored


async def rows_of_keys(copies: Mapping[int, Copy], keys: Keys, pause: Pause) -> Rows:
    rows: Rows = {}
    size = since_pause = 0
    for partition, copy in copies.items():
        wanted = keys.get(partition, ())
        for start in range(0, len(wanted), _BATCH_KEYS):
            if since_pause >= KEYS_WITHOUT_PAUSE:
                since_pause = 0
                await pause()
            batch = wanted[start : start + _BATCH_KEYS]
            since_pause += len(batch)
            for key, stored in zip(batch, copy.store.multi_get(list(batch)), strict=True):
                if stored is None:
                    continue
                keep_newest(rows, key, partition, stored)
                size += len(stored)
            if size > VALUE_BYTES_MAX:
                raise Failure(
                    Reason.TOO_LARGE,
                    f"the values of these keys are larger than {VALUE_BYTES_MAX} bytes together",
                    "ask for fewer keys at once",
                )
    return rows


def to_items(
    sought: Sequence[Sought], rows: Rows, unknown: Collection[int], codec: KeyCodec, format: ValueFormat
) -> list[bytes]:
    """An item for each key, as JSON. Of a key that is not in an `unknown` partition nobody can say that it is not there."""
    now_ms = time_ns() // 1_000_000
    items = []
    for record_key, disk_key, partition in sought:
        row = rows.get(disk_key)
        if row is not None:
            flags, offset, timestamp_ms, expiry_ms = ROW_HEADER.unpack_from(row[1])
            if not flags & TOMBSTONE and not 0 < expiry_ms <= now_ms:
                items.append(
                    b'{"key":%b,"found":true,"value":%b,"partition":%d,"offset":%d,"timestamp":%d}'
                    % (
                        key_json(codec, record_key),
                        value_to_json(row[1][ROW_HEADER_SIZE:], format),
                        row[0],
                        offset,
                        timestamp_ms,
                    )
                )
                continue
        known = partition not in unknown if partition is not None else not unknown
        where = b"" if partition is None else b',"partition":%d' % partition
        items.append(
            b'{"key":%b,"found":%b%b}' % (key_json(codec, record_key), b"false" if known else b"null", where)
        )
    return items
