"""Many keys in one read: looked up partition by partition, answered in the order they were asked in.

Strategy: keys of one partition go to RocksDB together, a batch at a time, with the event loop free in between. A large JSON
value becomes a piece of the answer as it lies in memory, without a copy.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from time import time_ns
from typing import Final, NamedTuple

from queryable_app.config.topic_spec import ValueFormat
from queryable_app.errors import Failure, Reason
from queryable_app.serve.base.admission import YieldSlot
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads.point import found
from queryable_app.serve.reads.scans import key_json
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE
from queryable_app.wire.partitioners import SCATTER, partition_for
from queryable_app.wire.serde import KeyCodec, value_to_json

VALUE_BYTES_MAX: Final = 64 << 20
"""The bound of one answer, over all nodes."""
_BATCH_KEYS: Final = 64
_FIRST_BATCH_KEYS: Final = 4  # how large values are is not known before
_BATCH_BYTES: Final = 1 << 20  # which batches aim at
_COPIED_BYTES_MAX: Final = 4096  # a larger value is a piece of its own
KEYS_BETWEEN_YIELDS: Final = 512  # a few milliseconds; with more of them it is a long read

Rows = dict[bytes, tuple[int, bytes]]
"""On-disk key → partition and stored bytes of its newest row; it may be a tombstone."""
Piece = bytes | memoryview
"""The bound of an answer's body."""
Keys = Mapping[int, Sequence[bytes]]
"""Partition → the on-disk keys to look up in it."""


class KeyLookup(NamedTuple):
    """A key, and where it is looked up."""

    record_key: bytes
    disk_key: bytes
    partition: int | None  # None: in all of them


def plan_lookups(
    record_keys: Sequence[bytes], codec: KeyCodec, algorithm: str, partitions: int
) -> list[KeyLookup]:
    to_disk = codec.to_disk
    if algorithm == SCATTER:
        return [KeyLookup(key, to_disk(key), None) for key in record_keys]
    return [KeyLookup(key, to_disk(key), partition_for(key, algorithm, partitions)) for key in record_keys]


def keys_by_partition(lookups: Sequence[KeyLookup], partitions: int) -> dict[int, list[bytes]]:
    """Each key once in a partition."""
    keys: dict[int, dict[bytes, None]] = {}
    for _, disk_key, partition in lookups:
        for each in range(partitions) if partition is None else (partition,):
            keys.setdefault(each, {})[disk_key] = None
    return {partition: list(wanted) for partition, wanted in keys.items()}


def merge_newest(rows: Rows, batch: Sequence[RawRow]) -> int:
    """Add what is newer than what is there; the bytes by which `rows` has grown."""
    grown = 0
    for disk_key, partition, stored in batch:
        before = rows.get(disk_key)
        if before is None or found(*before) < found(partition, stored):
            rows[disk_key] = partition, stored
            grown += len(stored) - (0 if before is None else len(before[1]))
    return grown


async def rows_of_keys(
    replicas: Mapping[int, Replica], keys: Keys, yield_slot: YieldSlot
) -> AsyncGenerator[tuple[int, list[RawRow]], None]:
    """The rows in batches of about a megabyte, each with the number of keys that were looked up for it, in their order."""
    since_pause, batch_keys = 0, _FIRST_BATCH_KEYS
    for partition, replica in replicas.items():
        wanted = keys.get(partition, ())
        start = 0
        while start < len(wanted):
            if since_pause >= KEYS_BETWEEN_YIELDS:
                since_pause = 0
                await yield_slot()
            batch = wanted[start : start + batch_keys]
            start += len(batch)
            since_pause += len(batch)
            rows = [
                (key, partition, stored)
                for key, stored in zip(batch, replica.store.multi_get(list(batch)), strict=True)
                if stored is not None
            ]
            size = sum([len(stored) for _, _, stored in rows])
            batch_keys = max(1, min(_BATCH_KEYS, _BATCH_BYTES * len(batch) // max(1, size)))
            yield len(batch), rows


def values_too_large() -> Failure:
    return Failure(
        Reason.TOO_LARGE,
        f"the values of these keys are larger than {VALUE_BYTES_MAX} bytes together",
        "ask for fewer keys at once",
    )


def items_json(
    lookups: Sequence[KeyLookup],
    rows: Rows,
    unknown: Collection[int],
    codec: KeyCodec,
    format: ValueFormat,
    share: AnswerReservation,
) -> list[Piece]:
    """An item for each key, as JSON, with commas between. Of a key that is not in an `unknown` partition nobody can say that
    it is not there."""
    now_ms = time_ns() // 1_000_000
    pieces: list[Piece] = []
    comma = b""
    size = 0
    for record_key, disk_key, partition in lookups:
        row = rows.get(disk_key)
        if row is not None:
            flags, offset, timestamp_ms, expiry_ms = ROW_HEADER.unpack_from(row[1])
            if not flags & TOMBSTONE and not 0 < expiry_ms <= now_ms:
                value: Piece = memoryview(row[1])[ROW_HEADER_SIZE:]
                if format != "json":
                    value = value_to_json(bytes(value), format)
                    share.take(len(value))
                size += len(value)
                if size > VALUE_BYTES_MAX:
                    raise values_too_large()
                key = key_json(codec, record_key)
                where = (row[0], offset, timestamp_ms)
                if len(value) > _COPIED_BYTES_MAX:
                    pieces.append(b'%b{"key":%b,"found":true,"value":' % (comma, key))
                    pieces.append(value)
                    pieces.append(b',"partition":%d,"offset":%d,"timestamp":%d}' % where)
                else:
                    pieces.append(
                        b'%b{"key":%b,"found":true,"value":%b,"partition":%d,"offset":%d,"timestamp":%d}'
                        % (comma, key, bytes(value), *where)
                    )
                comma = b","
                continue
        known = partition not in unknown if partition is not None else not unknown
        at = b"" if partition is None else b',"partition":%d' % partition
        pieces.append(
            b'%b{"key":%b,"found":%b%b}'
            % (comma, key_json(codec, record_key), b"false" if known else b"null", at)
        )
        comma = b","
    return pieces
