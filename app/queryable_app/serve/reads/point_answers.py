"""Build the answers to reads of one key: the row, or its absence, with where and how fresh it is.

Strategy: header lines are rendered with as few formats as possible, because each costs as much as a look-up in a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time_ns
from typing import Final
from zlib import crc32

from queryable_app.errors import Failure, Reason
from queryable_app.policy.freshness import lag_ms, lag_records, position_text
from queryable_app.serve.node import Node
from queryable_app.serve.reads.replica_progress import ReplicaProgress, positions_text
from queryable_app.serve.reads.stored_row import StoredRow
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.http_text import AVRO, JSON, Answer, header_text, matches_etag, problem_answer

_FRESHNESS: Final = b"qt-position: %b\r\nqt-role: %b\r\nqt-lag-records: %d\r\nqt-lag-ms: %d\r\nqt-epoch: %d\r\nqt-hops: %d\r\n"
_ETAG: Final = b'"%b-%d-%d-%x%b"'
_RECORD: Final = b"%bqt-partition: %d\r\netag: " + _ETAG + b"\r\nqt-offset: %d\r\nqt-timestamp: %d\r\n"
# One format, because three take twice the time.
_FOUND: Final = _RECORD + b"content-type: %b\r\ncontent-length: %d\r\n"
# The same answer in two parts. The first one is the same for all rows of a replica, for a while.
_FOUND_BEGIN: Final = b'HTTP/1.1 200 OK\r\n%b%bqt-partition: %d\r\netag: "%b-%d-'
FOUND_END: Final = (
    b'%b%d-%x"\r\nqt-offset: %d\r\nqt-timestamp: %d\r\ncontent-type: '
    + JSON.encode()
    + b"\r\ncontent-length: %d\r\n\r\n%b"
)

_ABSENT_ADVICE: Final = (
    "it was never written, was deleted, was filtered out or has expired; "
    "to wait for a write of your own, read with min-position=<the position that it answered>"
)


class PointAnswers:
    """Build the answers of one node."""

    def __init__(self, node: Node) -> None:
        application = node.settings.application_id
        self.identity = b"qt-served-by: %b\r\nqt-application: %b\r\n" % (
            header_text(node.settings.name),
            header_text(application),
        )
        # An entity tag names record and revision: another revision's SQL gives the same record another value.
        self.revision = b"%08x" % crc32(application.encode())
        self._replicas = node.replicas
        self._counters = node.counters
        self._render = node.render
        self._avro_forms = node.avro_forms
        self._is_aggregated = node.spec.aggregate is not None
        self._caching = b"cache-control: no-cache\r\nvary: accept\r\n" + self.identity

    def shared_lines(self, progress: Sequence[ReplicaProgress], hops: int) -> bytes:
        """Return the header lines that do not depend on the row."""
        return self.freshness_lines(progress, hops) + self._caching

    def lines_of_one(self, replica: Replica, now_ms: int) -> bytes:
        """Return the same lines for one replica of this node, at a moment of `platform/clock.py`."""
        about = position_text(replica), replica.role, lag_records(replica), lag_ms(replica, now_ms)
        return self._freshness(*about, 0) + self._caching

    def begin_of_found(self, partition: int, server_lines: bytes, lines: bytes) -> bytes:
        """Return what the answers for all live rows of a replica begin with; `FOUND_END` completes one."""
        return _FOUND_BEGIN % (server_lines, lines, partition, self.revision, partition)

    def of_newest(
        self,
        newest: StoredRow | None,
        progress: Sequence[ReplicaProgress],
        hops: int,
        form: str,
        if_none_match: str | None,
        as_of: str | None = None,
    ) -> Answer:
        """Return the answer for a key, given its newest row in the replicas that were read, of the moment `as_of` if there is
        one."""
        headers = self.shared_lines(progress, hops)
        if newest is None or not newest.is_live(time_ns() // 1_000_000):
            return self.absent(progress, headers, as_of=as_of)
        value = newest.value
        merged = (
            b"-%08x" % crc32(value) if self._is_aggregated and self._replicas.partitioning.scattered else b""
        )
        return self.found(
            newest.partition,
            newest.offset,
            newest.timestamp_ms,
            value,
            headers,
            form,
            if_none_match,
            merged,
        )

    def found(
        self,
        partition: int,
        offset: int,
        timestamp_ms: int,
        value: bytes,
        headers: bytes,
        form: str,
        if_none_match: str | None,
        merged: bytes = b"",
    ) -> Answer:
        """Return 200 with the value, or 304 if the caller has it.

        `merged` is a digest of states merged over partitions, which the record alone does not identify.
        """
        self._counters.keys_found += 1
        if form == JSON:
            body = value if self._render is None else self._render(value)
            variant = merged
        elif form in self._avro_forms:
            body = self._avro_forms[form](value)
            variant = b"-a" if form == AVRO else b"-j"
        else:
            body = self._render(value) if self._render is not None and self._is_aggregated else value
            variant = merged + b"-b"  # another representation is another entity
        tag = (self.revision, partition, offset, timestamp_ms, variant)
        if if_none_match is not None and matches_etag(if_none_match, (_ETAG % tag).decode()):
            return Answer(304, _RECORD % (headers, partition, *tag, offset, timestamp_ms), b"")
        about = (headers, partition, *tag, offset, timestamp_ms, form.encode(), len(body))
        return Answer(200, _FOUND % about, body)

    def absent(
        self,
        progress: Sequence[ReplicaProgress],
        headers: bytes,
        advice: str = _ABSENT_ADVICE,
        as_of: str | None = None,
    ) -> Answer:
        """Return 404 key_not_found. Raises Failure unless the replicas that were read are all of the topic, and complete."""
        for replica in progress:
            if not replica.complete:
                raise Failure(
                    Reason.NOT_AVAILABLE,
                    f"the key is not in the rows so far of partition {replica.partition}, which is still hydrating",
                    "retry after 1000 ms",
                    partition=replica.partition,
                    retry_after_ms=1000,
                )
        unplaced = self._replicas.unplaced_partitions
        if unplaced:
            raise Failure(
                Reason.NOT_AVAILABLE,
                f"the key is not in the partitions that this view reads, and the topic has got {len(unplaced)} more",
                "make a new revision of the view, which reads the topic as it is now",
                missing=tuple(unplaced),
            )
        self._counters.keys_absent += 1
        position = positions_text(progress)
        failure = Failure(
            Reason.KEY_NOT_FOUND,
            f"the key was not in the view as of {as_of}"
            if as_of
            else f"the key is not in the view as of position {position}",
            advice,
            partition=progress[0].partition if len(progress) == 1 else None,
            position=position,
        )
        return problem_answer(failure, headers)

    def freshness_lines(self, progress: Sequence[ReplicaProgress], hops: int) -> bytes:
        """Return the header lines with every position, and the lag of the replica that lags most."""
        roles = {replica.role for replica in progress}
        lags = [replica.lag_records for replica in progress]
        lags_ms = [replica.lag_ms for replica in progress]
        return self._freshness(
            positions_text(progress),
            roles.pop() if len(roles) == 1 else "standby",
            -1 if -1 in lags else max(lags, default=-1),
            -1 if -1 in lags_ms else max(lags_ms, default=-1),
            hops,
        )

    def _freshness(self, positions: str, role: str, lag: int, lag_in_ms: int, hops: int) -> bytes:
        epoch = self._replicas.placement.epoch
        return _FRESHNESS % (positions.encode(), role.encode(), lag, lag_in_ms, epoch, hops)
