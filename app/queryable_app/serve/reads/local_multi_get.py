"""Answer a small multi-get with default options from this node's replicas, in one step of the event loop.

Strategy: the keys of each partition go to RocksDB in one call, and all items are formatted in one call. Whatever needs more (a
replica on another node, a wait, a large answer, an error) gets no answer here: `multi_get` and `covered_reads` take any request.
Both write the same bytes, which a test compares.
"""

from __future__ import annotations

from time import time_ns
from typing import Any, Final

from queryable_app.errors import Failure
from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.base.answer_reservation import SMALL_ANSWER_BYTES
from queryable_app.serve.reads.coverage import Coverage
from queryable_app.serve.reads.multi_get import KEYS_BETWEEN_YIELDS
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.replica_progress import progress_of
from queryable_app.serve.reads.scans import are_plain_keys, key_json
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE, TOMBSTONE
from queryable_app.wire.http_text import JSON, Answer, body_answer
from queryable_app.wire.json_text import BadJson, decoded, parse_text
from queryable_app.wire.partitioners import partitions_for

BODY_BYTES_MAX: Final = 16 * 1024  # its values are few enough to be parsed in one step

_FOUND: Final = b'{"key":%b,"found":true,"value":%b,"partition":%d,"offset":%d,"timestamp":%d}'
_ABSENT: Final = b'{"key":%b,"found":false,"partition":%d}'
_FOUND_PLAIN: Final = _FOUND.replace(b"%b", b'"%b"', 1)
_ABSENT_PLAIN: Final = _ABSENT.replace(b"%b", b'"%b"', 1)


class LocalMultiGets:
    """Answer the multi-gets of one node."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._codec = reads.node.codec
        self._render = reads.node.render
        # A view with windows or entries has no multi-gets; the router says so.
        most = min(KEYS_BETWEEN_YIELDS, reads.node.settings.multi_get_keys_max)
        self._keys_max = most if reads.node.has_single_rows else 0

    def answer(self, body: bytes) -> Answer | None:
        """Return the answer to a body of at most `BODY_BYTES_MAX` bytes, or None if it needs more than is done here."""
        try:
            given = parse_text(decoded(body), unique_names=True)
            keys = given["keys"] if isinstance(given, dict) and len(given) == 1 else None
            if not isinstance(keys, list) or not 0 < len(keys) <= self._keys_max:
                return None
            return self._answer(self._codec.all_from_json(keys))
        except (BadJson, Failure, KeyError):
            return None

    def _answer(self, record_keys: list[bytes]) -> Answer | None:
        reads, codec = self._reads, self._codec
        partitioning = reads.partitioning
        if partitioning.scattered or reads.replicas.unplaced_partitions:
            return None
        partitions = partitions_for(record_keys, partitioning.algorithm, partitioning.partitions)
        indexes: dict[int, list[int]] = {}
        for index, partition in enumerate(partitions):
            if partition in indexes:
                indexes[partition].append(index)
            else:
                indexes[partition] = [index]
        now_ms = monotonic_ms()
        replicas = [reads.readable_replica(each, reads.defaults, {}, now_ms) for each in sorted(indexes)]
        progress = tuple([progress_of(replica, now_ms) for replica in replicas])
        if not all([replica.complete for replica in progress]):
            return None
        disk_keys = record_keys if codec.stores_record_keys else [codec.to_disk(key) for key in record_keys]
        rows: list[bytes | None] = [None] * len(record_keys)
        for replica in replicas:
            of_partition = indexes[replica.partition]
            found = replica.store.multi_get([disk_keys[index] for index in of_partition])
            for index, stored in zip(of_partition, found, strict=True):
                rows[index] = stored
        items = self._items(record_keys, partitions, rows)
        if items is None:
            return None
        headers = reads.answers.freshness_lines(progress, 0) + reads.identity
        covered = Coverage({}, {}, (), progress, headers, frozenset())
        return body_answer(b'{"items":[%b]%b' % (items, covered.fields()), JSON, headers)

    def _items(
        self, record_keys: list[bytes], partitions: list[int], rows: list[bytes | None]
    ) -> bytes | None:
        """Return the items with commas between them, or None if they are large."""
        now_ms = time_ns() // 1_000_000
        codec, render, unpack = self._codec, self._render, ROW_HEADER.unpack_from
        if are_plain_keys(codec, record_keys):
            shown, found, absent = record_keys, _FOUND_PLAIN, _ABSENT_PLAIN
        else:
            shown, found, absent = [key_json(codec, key) for key in record_keys], _FOUND, _ABSENT
        templates: list[bytes] = []
        fields: list[Any] = []
        size = 0
        for key, partition, stored in zip(shown, partitions, rows, strict=True):
            if stored is not None:
                flags, offset, timestamp_ms, expiry_ms = unpack(stored)
                if not flags & TOMBSTONE and not 0 < expiry_ms <= now_ms:
                    value = stored[ROW_HEADER_SIZE:]
                    size += len(value)
                    if size > SMALL_ANSWER_BYTES:
                        return None
                    if render is not None:
                        value = render(value)
                    templates.append(found)
                    fields += (key, value, partition, offset, timestamp_ms)
                    continue
            templates.append(absent)
            fields += (key, partition)
        return b",".join(templates) % tuple(fields)
