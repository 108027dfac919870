"""Many keys in one read: looked up partition by partition, answered in the order they were asked in.

Strategy: keys of one partition go to RocksDB together, a batch at a time, with the event loop free in between. Values are
copied into the answer as text, and what they may weigh together is bounded before they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from time import time_ns
from typing import Final

from queryable_app.errors import Failure, Reason
from queryable_app.serde import KeyCodec, value_to_json
from queryable_app.serve.copies import Copy
from queryable_app.serve.reads import Found, found
from queryable_app.serve.scans import key_json
from queryable_app.topic_spec import ValueFormat

VALUE_BYTES_MAX: Final = 64 << 20
_BATCH_KEYS: Final = 64  # of values of 5 MB, no more than can be in memory at once
_BATCHES_WITHOUT_PAUSE: Final = 8  # a few milliseconds

Rows = dict[bytes, Found]
"""On-disk key → its newest row; it may be a tombstone."""
Keys = Mapping[int, Sequence[bytes]]
"""Partition → the on-disk keys to look up in it."""


def keep_newest(rows: Rows, disk_key: bytes, partition: int, stored: bytes) -> None:
    row = found(partition, stored)
    if disk_key not in rows or rows[disk_key] < row:
        rows[disk_key] = row


async def rows_of_keys(copies: Mapping[int, Copy], keys: Keys) -> Rows:
    rows: Rows = {}
    size = batches = 0
    for partition, copy in copies.items():
        wanted = keys.get(partition, ())
        for start in range(0, len(wanted), _BATCH_KEYS):
            batch = wanted[start : start + _BATCH_KEYS]
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
            batches += 1
            if batches % _BATCHES_WITHOUT_PAUSE == 0:
                await asyncio.sleep(0)
    return rows


def to_items(
    record_keys: Sequence[bytes],
    rows: Rows,
    unknown: Collection[int],
    partition_of: Mapping[bytes, int | None],
    codec: KeyCodec,
    format: ValueFormat,
) -> list[bytes]:
    """An item for each key, as JSON. `partition_of` says where a key is looked up, None everywhere; of a key that is not in
    an `unknown` partition nobody can say that it is not there."""
    now_ms = time_ns() // 1_000_000
    items = []
    for record_key in record_keys:
        disk_key = codec.to_disk(record_key)
        row, partition = rows.get(disk_key), partition_of[record_key]
        if row is not None and row.live(now_ms):
            items.append(
                b'{"key":%b,"found":true,"value":%b,"partition":%d,"offset":%d,"timestamp":%d}'
                % (
                    key_json(codec, record_key),
                    value_to_json(row.value, format),
                    row.partition,
                    row.offset,
                    row.timestamp_ms,
                )
            )
            continue
        known = partition not in unknown if partition is not None else not unknown
        where = b"" if partition is None else b',"partition":%d' % partition
        items.append(
            b'{"key":%b,"found":%b%b}' % (key_json(codec, record_key), b"false" if known else b"null", where)
        )
    return items
