"""Answer the most frequent read, which names no option and finds a live row, with as little work as possible.

Strategy: the reads of one turn of the event loop come together. All are looked up, then all are rendered, because the processor's
caches hold either the store's code and data, or those of the answers. What the reads of a replica share is looked up once for all
of them. Every other case is left to `Reads.point`, which decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import time_ns

from queryable_app.errors import Failure
from queryable_app.platform.clock import monotonic_ms
from queryable_app.policy.routing import not_hosted_here
from queryable_app.serve.base.answer_reservation import SMALL_ANSWER_BYTES
from queryable_app.serve.node import Node
from queryable_app.serve.reads.point_answers import FOUND_END
from queryable_app.serve.reads.shared_by_reads import SharedByReads
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE

_Source = tuple[Callable[[bytes], bytes | None], bytes]
"""How to get a row of a replica, and what the answers with its rows begin with."""

_Row = tuple[bytes, bytes]
"""What the answer begins with, and what is stored."""


class PlainReads:
    """Answer plain reads of one node."""

    def __init__(self, node: Node, shared: SharedByReads) -> None:
        self.answers_at_once = False
        """Whether any read is answered: no plain read waits, and no connection is to be closed."""
        self._node = node
        self._replicas = node.replicas
        self._partitioner = node.replicas.partitioner
        self._counters = node.counters
        self._shared = shared
        self._keys_need_conversion = node.codec.format not in ("string", "bytes")
        self._render = node.render
        self._not_hosted: dict[int, Failure] = {}  # by partition

    def hosted_elsewhere(self, key: bytes) -> Failure | None:
        """Return why this node cannot answer a read of a key that only other nodes host. None: `Reads.point` must decide.

        `key` stands in the path as it is, without percent signs. The failure is shared, so it must not be raised.
        """
        if self._keys_need_conversion:
            return None
        partition = self._partitioner.partitioning.partition_of(key)
        if partition is None or partition in self._replicas.by_partition:
            return None
        return self._elsewhere(partition)

    def set_server_lines(self, lines: bytes) -> None:
        """Begin the header lines of the answers with those of the server, such as the date."""
        self._shared.set_server_lines(lines)

    def found_at_once(self, keys: Sequence[bytes]) -> list[bytes | Failure | None]:
        """Return for each key the bytes of the answer with its live row; None if `Reads.point` must decide, and the refusal if
        only other nodes host the key.

        `keys` stand in their paths as they are, without percent signs.
        """
        if not self.answers_at_once:
            return [None] * len(keys)
        now_ms = monotonic_ms()
        if self._keys_need_conversion:
            asked: Iterable[tuple[int | None, bytes]] = map(self._converted, keys)
        else:
            asked = zip(self._partitioner.partitioning.partitions_of_each(keys), keys, strict=True)
        sources: dict[int | None, _Source] = {}
        rows: list[_Row | Failure | None] = []
        for partition, disk_key in asked:
            try:
                source = sources.get(partition)
                if source is None:
                    found = self._source(partition, now_ms)
                    if not isinstance(found, tuple):
                        rows.append(found)
                        continue
                    source = sources[partition] = found
                get, begin = source
                stored = get(disk_key)
            except Exception:  # an unreadable block: `Reads.point` meets it again
                stored = None
            # No large row is held while others are read.
            rows.append(None if stored is None or len(stored) > SMALL_ANSWER_BYTES else (begin, stored))
        return self._rendered(rows)

    def _converted(self, key: bytes) -> tuple[int | None, bytes]:
        """Return the partition of a key as it stands in a path, and the key on disk. No partition: several may hold the key, or
        it is none of the format, which `Reads.point` meets again."""
        try:
            codec = self._node.codec
            record_key = codec.from_url_bytes(key)
            return self._partitioner.partitioning.partition_of(record_key), codec.to_disk(record_key)
        except Exception:
            return None, key

    def _source(self, partition: int | None, now_ms: int) -> _Source | Failure | None:
        """Return where the rows of a partition are. None: several may hold the keys, or the replica here may not answer."""
        if partition is None:
            return None
        replica = self._replicas.by_partition.get(partition)
        if replica is None:
            return self._elsewhere(partition)
        shared = self._shared.of(replica, now_ms)
        if shared.store is None:
            return None
        self._node.last_read_ms = now_ms
        return shared.store.get_unchecked, shared.begin

    def _elsewhere(self, partition: int) -> Failure:
        failure = self._not_hosted.get(partition)
        if failure is None:
            failure = self._not_hosted[partition] = not_hosted_here(partition)
        return failure

    def _rendered(self, rows: Iterable[_Row | Failure | None]) -> list[bytes | Failure | None]:
        """Return the answers with the rows, and what stands for the others as it is."""
        answers: list[bytes | Failure | None] = []
        render, live = self._render, 0
        for row in rows:
            if not isinstance(row, tuple):
                answers.append(row)
                continue
            begin, stored = row
            try:
                flags, offset, timestamp_ms, expiry_ms = ROW_HEADER.unpack_from(stored)
                if flags or (expiry_ms and expiry_ms <= time_ns() // 1_000_000):
                    answers.append(None)
                    continue
                body = stored[ROW_HEADER_SIZE:]
                if render is not None:
                    body = render(body)
            except Exception:  # `Reads.point` meets it again
                answers.append(None)
                continue
            answers.append(FOUND_END % (begin, offset, timestamp_ms, offset, timestamp_ms, len(body), body))
            live += 1
        self._counters.keys_found += live
        return answers
