"""Model a compacted source topic, rekey jobs that write its records under new keys, and their internal topic."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from queryable_app.policy.source_positions import SourceStart, least_starts, trusted_offsets
from queryable_app.wire.envelopes import MARKER_KEY, Envelope, encode_envelope
from queryable_app.wire.keyed_contents import KEYLESS, LEFT, ROW, KeyedContent, encode_keyed

NOWHERE = -1


class SourceRecord(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int
    record_key: bytes | None
    new_key: bytes | None
    """None: a tombstone, or a record without a row."""

    @property
    def value(self) -> bytes:
        return f"{self.partition}/{self.offset}".encode()


Message = tuple[bytes, bytes]
"""Key and value of a record of the internal topic."""


def latest_values(records: Iterable[SourceRecord]) -> dict[bytes, bytes]:
    """Return the rows of the view, in the simplest way."""
    latest: dict[tuple[int, bytes | None, bytes], SourceRecord] = {}
    for each in records:
        keyless = b"" if each.record_key is not None else str(each.offset).encode()
        latest[each.partition, each.record_key, keyless] = each
    rows: dict[bytes, SourceRecord] = {}
    for each in latest.values():
        if each.new_key is None:
            continue
        shown = rows.get(each.new_key)
        if shown is None or _version(shown) < _version(each):
            rows[each.new_key] = each
    return {key: each.value for key, each in rows.items()}


def _version(record: SourceRecord) -> tuple[int, int, int]:
    return record.timestamp_ms, record.partition, record.offset


class Source:
    """Hold the records of the source topic by partition. Compaction leaves gaps."""

    def __init__(self, partitions: int) -> None:
        self.by_partition: list[list[SourceRecord]] = [[] for _ in range(partitions)]
        self.ends = [0] * partitions

    def append(
        self, partition: int, record_key: bytes | None, new_key: bytes | None, timestamp_ms: int
    ) -> None:
        record = SourceRecord(partition, self.ends[partition], timestamp_ms, record_key, new_key)
        self.by_partition[partition].append(record)
        self.ends[partition] += 1

    def compact(self, partition: int) -> None:
        records = self.by_partition[partition]
        last = {each.record_key: each.offset for each in records}
        self.by_partition[partition] = [
            each for each in records if each.record_key is None or each.offset == last[each.record_key]
        ]

    @property
    def records(self) -> list[SourceRecord]:
        return [each for partition in self.by_partition for each in partition]


class Places:
    """Remember where a run has written the newest row of each record key of one source partition, as `KeyPlaces` does."""

    def __init__(self, partitions: int, trusted: int, keys_max: int) -> None:
        self._partitions = partitions
        self._trusted = trusted
        self._keys_max = keys_max
        self._places: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self._complete = trusted == 0
        self._relies_from: list[int | None] = [None] * partitions

    def for_another_owner(self) -> Places:
        """Return what another executor knows, which goes on with the source partition: nothing."""
        places = Places(self._partitions, self._trusted, self._keys_max)
        places._complete = self._complete and not self._places
        places._relies_from = self._relies_from
        return places

    def move(self, record_key: bytes, offset: int, to: int) -> list[int]:
        """Note where the record of a key goes. Return the other partitions that must be told that it has left."""
        known = self._places.get(record_key)
        if known is None and self._complete:
            known = NOWHERE, 0
        told = []
        for other in range(self._partitions):
            if other == to:
                continue
            if known is None or known[0] == other:
                told.append(other)
            else:
                relies_from = self._relies_from[other]
                self._relies_from[other] = known[1] if relies_from is None else min(relies_from, known[1])
        if offset >= self._trusted:
            self._places[record_key] = to, offset
            self._places.move_to_end(record_key)
            if len(self._places) > self._keys_max:
                self._places.popitem(last=False)
                self._complete = False
        return told

    def alone_from(self, to: int, offset: int) -> int:
        """Return the offset since which the next envelope to a partition relies on its run alone."""
        relies_from, self._relies_from[to] = self._relies_from[to], None
        return offset if relies_from is None else min(offset, relies_from)


class Run:
    """Write as `RekeyRun` does. What was sent to a partition and is not written yet may be lost."""

    def __init__(
        self, run: int, partitions: int, covered: Sequence[int], trusted: Sequence[int], places_max: int
    ) -> None:
        self.run = run
        self.pending: list[list[Message]] = [[] for _ in range(partitions)]
        self._next = list(covered)
        self._places = [Places(partitions, each, places_max) for each in trusted]
        self._sequence = [[0] * partitions for _ in covered]
        for source, offset in enumerate(covered):
            for to in range(partitions):
                self._send(source, to, MARKER_KEY, offset, 0, 0)

    def read(self, source: Source, partition: int) -> None:
        """Write the next record of a source partition, if there is one."""
        found = [each for each in source.by_partition[partition] if each.offset >= self._next[partition]]
        if found:
            self._write(found[0])

    def hand_over(self, partition: int) -> None:
        """Let another executor go on with a source partition. Everything that was sent is written."""
        assert not any(self.pending)
        self._places[partition] = self._places[partition].for_another_owner()

    def mark(self, partition: int, end: int | None = None) -> None:
        """Write markers of a source partition: up to its `end`, where nothing is left before it."""
        self._next[partition] = max(self._next[partition], end or 0)
        for to in range(len(self.pending)):
            self._send(partition, to, MARKER_KEY, self._next[partition], 0, 0)

    def _write(self, record: SourceRecord) -> None:
        partition, offset, timestamp_ms, record_key, new_key = record
        to = NOWHERE if new_key is None else new_key[0] % len(self.pending)
        if record_key is not None:
            left = KeyedContent(LEFT, record_key, b"")
            for other in self._places[partition].move(record_key, offset, to):
                self._send(partition, other, MARKER_KEY, offset, 1, timestamp_ms, left)
        if new_key is not None:
            content = KeyedContent(KEYLESS if record_key is None else ROW, record_key or b"", record.value)
            self._send(partition, to, new_key, offset, 1, timestamp_ms, content)
        self._next[partition] = offset + 1

    def _send(
        self,
        source: int,
        to: int,
        key: bytes,
        offset: int,
        rows: int,
        timestamp_ms: int,
        content: KeyedContent | None = None,
    ) -> None:
        alone_from = self._places[source].alone_from(to, offset)
        envelope = Envelope(source, offset, 0, rows, self.run, self._sequence[source][to], timestamp_ms)
        self._sequence[source][to] += 1
        self.pending[to].append((key, encode_envelope(envelope, encode_keyed(alone_from, content))))


class ReplicaState(NamedTuple):
    partition: int
    offsets: tuple[int, ...]
    refused: frozenset[int]


def start_run(
    run: int, before: int, replicas: Sequence[ReplicaState], ends: Sequence[int], places_max: int
) -> Run:
    """Start a run as the rekey job does after its run `before`."""
    refused = any(before in each.refused for each in replicas)
    partitions = 1 + max(each.partition for each in replicas)
    starts = least_starts(
        [(each.partition, [*map(SourceStart, each.offsets)], before in each.refused) for each in replicas],
        partitions,
    )
    assert starts is not None
    covered = [each.offset for each in starts]
    trusted = trusted_offsets([each.offsets for each in replicas], ends if refused else None)
    return Run(run, partitions, covered, trusted, places_max)
