"""Decide which records of an internal partition a replica applies, and how far it is in the source topic.

Strategy: the position in a source partition is (offset, row of the record), and every row before it is applied.
A run is accepted when it begins at or before that position. From then on its envelopes must arrive without a gap in their
sequence. So whatever an accepted run brings, all earlier rows of its source partition have arrived before, in this run or in
another. A row below the position is therefore a duplicate, and any other row is the next one. It does not matter how many jobs
run, when they restart, or where they give up.

A run that begins after the position, or that has a gap, is refused for good. Its rows change nothing. The job learns of it,
and starts a new run at the least positions. So is a run that reads another topic than the first accepted one: a topic that was
deleted and made again under the same name has other records at the same offsets.

Every replica of a partition reads the same log, and so decides the same.

In a view with windows the position has the clock of the source partition there. A new run begins with the clock of its start, so
every run shows the same clock at the same source offset. The clock of a replica never goes back, whatever a run shows.

In a latest-value view under another key, a run leaves out messages that it knows to be needless: a record key whose earlier
row it has itself written elsewhere has no row here. That is true for a replica which follows this run alone since that row, so
each envelope names the source offset from which it relies on that (`alone_from`). A replica remembers the run that it follows
alone and since when, and refuses an envelope that relies on more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from queryable_app.aggregates.clock import NO_SOURCE_CLOCK, SOURCE_CLOCK_SIZE, SourceClock
from queryable_app.wire.envelopes import Envelope

RUNS_MAX: Final = 8
"""The accepted runs, and the refused ones, that a source partition remembers. A run that is forgotten is refused."""

_COUNT: Final = struct.Struct(">IB")  # source partitions, bytes of the topic's id
_SOURCE: Final = struct.Struct(">qHBB")  # offset, row, accepted runs, refused runs
_RUN: Final = struct.Struct(">QQ")
_REFUSED: Final = struct.Struct(">Q")
_LEADER: Final = struct.Struct(">Qq")


class SourceStart(NamedTuple):
    """Say where a run begins in a source partition. Starts compare by their place."""

    offset: int
    row: int = 0
    """How many rows of this record are not needed. If there are any, the clock has the time of the record."""
    clock: SourceClock = NO_SOURCE_CLOCK


class SourcePosition:
    """Track one source partition."""

    __slots__ = ("clock", "leader", "leads_from", "offset", "refused", "row", "runs")

    def __init__(self) -> None:
        self.offset = 0
        """Every row of earlier offsets is applied."""
        self.row = 0
        """Every row of this offset with a lower index is applied too."""
        self.runs: dict[int, int] = {}
        """The next sequence of each accepted run, in the order of acceptance."""
        self.refused: tuple[int, ...] = ()
        """The runs that were refused last."""
        self.leader = 0
        """The run that alone has moved the offset since it was `leads_from`; 0: none is known."""
        self.leads_from = 0
        self.clock = NO_SOURCE_CLOCK
        """The event time at this position, where the view has windows."""

    @property
    def start(self) -> SourceStart:
        """Return where a run begins that brings what is missing here."""
        return SourceStart(self.offset, self.row, self.clock)

    def copy(self) -> SourcePosition:
        copied = SourcePosition()
        copied.offset, copied.row, copied.refused = self.offset, self.row, self.refused
        copied.runs, copied.clock = self.runs.copy(), self.clock
        copied.leader, copied.leads_from = self.leader, self.leads_from
        return copied

    def take(
        self, envelope: Envelope, clock: SourceClock = NO_SOURCE_CLOCK, alone_from: int | None = None
    ) -> bool:
        """Advance by one envelope. Return whether its row must be applied. `clock` is what the envelope shows, in a view with
        windows; `alone_from` is given in a latest-value view."""
        _, offset, row, rows, run, sequence, _ = envelope
        expected = self.runs.get(run)
        if expected is None:
            if sequence == 0 and rows == 0 and (offset, row) <= (self.offset, self.row):
                self._accept(run)
            else:
                self.refuse(run)
            return False
        if sequence != expected:
            if sequence > expected:
                del self.runs[run]
                self.refuse(run)
            return False
        self.runs[run] = sequence + 1
        if offset < self.offset or (offset == self.offset and row < self.row):
            return False
        moves = rows > 0 or offset > self.offset
        if alone_from is not None and moves and not self._follows(run, alone_from, offset):
            del self.runs[run]
            self.refuse(run)
            return False
        self.offset, self.row = (offset, row + 1) if row + 1 < rows else (offset + bool(rows), 0)
        if clock.max_event_ms >= self.clock.max_event_ms:
            self.clock = clock
        return rows > 0

    def _follows(self, run: int, alone_from: int, offset: int) -> bool:
        """Return whether an envelope at `offset`, at or after the position, may rely on `alone_from`. Then its run leads."""
        leads = run == self.leader
        if alone_from < self.offset < offset and not (leads and self.leads_from <= alone_from):
            return False  # at the position itself, nothing that was left out concerns this replica
        if not leads:
            self.leader, self.leads_from = run, self.offset
        return True

    def _accept(self, run: int) -> None:
        self.runs[run] = 1
        if len(self.runs) > RUNS_MAX:
            del self.runs[next(iter(self.runs))]

    def refuse(self, run: int) -> None:
        if run not in self.refused:
            self.refused = (*self.refused, run)[-RUNS_MAX:]


class SourcePositions:
    """Track all source partitions of one internal replica. A slice changes a copy, which replaces this after the write."""

    __slots__ = ("by_partition", "topic_id")

    def __init__(self, by_partition: Sequence[SourcePosition], topic_id: bytes = b"") -> None:
        self.by_partition = list(by_partition)
        self.topic_id = topic_id
        """Kafka's id of the source topic, from the first accepted run that names it; empty until then."""

    @staticmethod
    def none(partitions: int) -> SourcePositions:
        return SourcePositions([SourcePosition() for _ in range(partitions)])

    def copy(self) -> SourcePositions:
        return SourcePositions([each.copy() for each in self.by_partition], self.topic_id)

    def begin(
        self,
        envelope: Envelope,
        topic_id: bytes,
        clock: SourceClock = NO_SOURCE_CLOCK,
        alone_from: int | None = None,
    ) -> None:
        """Advance by the first envelope of a run, which names the topic that the run reads."""
        if envelope.partition >= len(self.by_partition):
            return
        source = self.by_partition[envelope.partition]
        if topic_id and self.topic_id not in (b"", topic_id):
            source.refuse(envelope.run)
            return
        source.take(envelope, clock, alone_from)
        if envelope.run in source.runs:
            self.topic_id = self.topic_id or topic_id

    def take(
        self, envelope: Envelope, clock: SourceClock = NO_SOURCE_CLOCK, alone_from: int | None = None
    ) -> bool:
        """Advance by one envelope. Return whether its row must be applied. Source partitions beyond those of the view do not
        count."""
        if envelope.partition >= len(self.by_partition):
            return False
        return self.by_partition[envelope.partition].take(envelope, clock, alone_from)

    @property
    def starts(self) -> tuple[SourceStart, ...]:
        """Return where a run begins that brings what is missing here."""
        return tuple([each.start for each in self.by_partition])

    @property
    def event_times_ms(self) -> tuple[int, ...]:
        """Return the event time that each source partition shows."""
        return tuple([each.clock.max_event_ms for each in self.by_partition])

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return the next offset of each source partition."""
        return tuple([each.offset for each in self.by_partition])

    @property
    def refused_runs(self) -> frozenset[int]:
        return frozenset(run for each in self.by_partition for run in each.refused)

    def encode(self) -> bytes:
        parts = [_COUNT.pack(len(self.by_partition), len(self.topic_id)), self.topic_id]
        for each in self.by_partition:
            parts.append(_SOURCE.pack(each.offset, each.row, len(each.runs), len(each.refused)))
            parts += [_RUN.pack(*run) for run in each.runs.items()]
            parts += [_REFUSED.pack(run) for run in each.refused]
        if any(each.clock != NO_SOURCE_CLOCK for each in self.by_partition):
            parts += [each.clock.encode() for each in self.by_partition]
        if any(each.leader for each in self.by_partition):  # in a latest-value view
            parts += [_LEADER.pack(each.leader, each.leads_from) for each in self.by_partition]
        return b"".join(parts)

    @staticmethod
    def decode(raw: bytes) -> SourcePositions:
        count, id_bytes = _COUNT.unpack_from(raw)
        topic_id = raw[_COUNT.size : _COUNT.size + id_bytes]
        at, decoded = _COUNT.size + id_bytes, []
        for _ in range(count):
            each = SourcePosition()
            each.offset, each.row, runs, refused = _SOURCE.unpack_from(raw, at)
            at += _SOURCE.size
            each.runs = dict(_RUN.iter_unpack(raw[at : at + runs * _RUN.size]))
            at += runs * _RUN.size
            each.refused = tuple(
                run for (run,) in _REFUSED.iter_unpack(raw[at : at + refused * _REFUSED.size])
            )
            at += refused * _REFUSED.size
            decoded.append(each)
        if len(raw) - at == count * _LEADER.size:  # a latest-value view
            for each, leader in zip(decoded, _LEADER.iter_unpack(raw[at:]), strict=True):
                each.leader, each.leads_from = leader
                at += _LEADER.size
        elif at < len(raw):  # a view with windows
            for each in decoded:
                each.clock = SourceClock.decode(raw, at)
                at += SOURCE_CLOCK_SIZE
        if at != len(raw):
            raise ValueError(f"{len(raw)} bytes of source positions that end at {at}")
        return SourcePositions(decoded, topic_id)


def least_starts(
    replicas: Iterable[tuple[int, Sequence[SourceStart], bool]], partitions: int
) -> list[SourceStart] | None:
    """Return where a new run must begin in each source partition, or None if an internal partition has no replica yet.

    Each replica is its internal partition, the starts that it needs, and whether it has refused a run of the job. The replicas of
    a partition read one log, so the most advanced one says what the log has. A replica that refused a run cannot
    use that log, and needs its own starts.
    """
    furthest: dict[int, list[SourceStart]] = {}
    needed: list[Sequence[SourceStart]] = []
    for partition, starts, refused in replicas:
        furthest[partition] = [*map(max, furthest.get(partition, starts), starts)]
        if refused:
            needed.append(starts)
    if len(furthest) < partitions:
        return None
    return [min(starts) for starts in zip(*furthest.values(), *needed, strict=True)]


def trusted_offsets(replicas: Sequence[Sequence[int]], latest: Sequence[int] | None) -> list[int]:
    """Return the source offsets from which a new run remembers where keys are, so that no replica refuses it for that.

    That is where the most advanced replica stands; the runs before this one have ended. If one of them was refused, rows of it
    may be ahead in the internal topic. Then it is `latest`, the source's end, which no earlier run has passed. A replica that
    has nothing trusts a run from 0.
    """
    furthest = [max(offsets) for offsets in zip(*replicas, strict=True)]
    return [*map(max, furthest, latest)] if latest is not None else furthest
