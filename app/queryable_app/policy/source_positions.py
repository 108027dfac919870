"""Decide which records of an internal partition a replica applies, and how far it is in the source topic.

Strategy: the position in a source partition is (offset, row of the record), and every row before it is applied.
A run is accepted when it begins at or before that position. From then on its envelopes must arrive without a gap in their
sequence. So whatever an accepted run brings, all earlier rows of its source partition have arrived before, in this run or in
another. A row below the position is therefore a duplicate, and any other row is the next one. It does not matter how many jobs
run, when they restart, or where they give up.

A run that begins after the position, or that has a gap, is refused for good. Its rows change nothing. The job learns of it,
and starts a new run at the least positions.

Every replica of a partition reads the same log, and so decides the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from queryable_app.wire.envelopes import Envelope

RUNS_MAX: Final = 8
"""The accepted runs, and the refused ones, that a source partition remembers. A run that is forgotten is refused."""

_COUNT: Final = struct.Struct(">I")
_SOURCE: Final = struct.Struct(">qHBB")  # offset, row, accepted runs, refused runs
_RUN: Final = struct.Struct(">QQ")
_REFUSED: Final = struct.Struct(">Q")


class SourcePosition:
    """Track one source partition."""

    __slots__ = ("offset", "refused", "row", "runs")

    def __init__(self) -> None:
        self.offset = 0
        """Every row of earlier offsets is applied."""
        self.row = 0
        """Every row of this offset with a lower index is applied too."""
        self.runs: dict[int, int] = {}
        """The next sequence of each accepted run, in the order of acceptance."""
        self.refused: tuple[int, ...] = ()
        """The runs that were refused last."""

    def copy(self) -> SourcePosition:
        copied = SourcePosition()
        copied.offset, copied.row, copied.refused = self.offset, self.row, self.refused
        copied.runs = self.runs.copy()
        return copied

    def take(self, envelope: Envelope) -> bool:
        """Advance by one envelope. Return whether its row must be applied."""
        _, offset, row, rows, run, sequence, _ = envelope
        expected = self.runs.get(run)
        if expected is None:
            if sequence == 0 and rows == 0 and offset <= self.offset:
                self._accept(run)
            else:
                self._refuse(run)
            return False
        if sequence != expected:
            if sequence > expected:
                del self.runs[run]
                self._refuse(run)
            return False
        self.runs[run] = sequence + 1
        if offset < self.offset or (offset == self.offset and row < self.row):
            return False
        self.offset, self.row = (offset, row + 1) if row + 1 < rows else (offset + bool(rows), 0)
        return rows > 0

    def _accept(self, run: int) -> None:
        self.runs[run] = 1
        if len(self.runs) > RUNS_MAX:
            del self.runs[next(iter(self.runs))]

    def _refuse(self, run: int) -> None:
        if run not in self.refused:
            self.refused = (*self.refused, run)[-RUNS_MAX:]


class SourcePositions:
    """Track all source partitions of one internal replica. A slice changes a copy, which replaces this after the write."""

    __slots__ = ("by_partition",)

    def __init__(self, by_partition: Sequence[SourcePosition]) -> None:
        self.by_partition = list(by_partition)

    @staticmethod
    def none(partitions: int) -> SourcePositions:
        return SourcePositions([SourcePosition() for _ in range(partitions)])

    def copy(self) -> SourcePositions:
        return SourcePositions([each.copy() for each in self.by_partition])

    def take(self, envelope: Envelope) -> bool:
        """Advance by one envelope. Return whether its row must be applied. Source partitions beyond those of the view do not
        count."""
        if envelope.partition >= len(self.by_partition):
            return False
        return self.by_partition[envelope.partition].take(envelope)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return the next offset of each source partition."""
        return tuple([each.offset for each in self.by_partition])

    @property
    def refused_runs(self) -> frozenset[int]:
        return frozenset(run for each in self.by_partition for run in each.refused)

    def encode(self) -> bytes:
        parts = [_COUNT.pack(len(self.by_partition))]
        for each in self.by_partition:
            parts.append(_SOURCE.pack(each.offset, each.row, len(each.runs), len(each.refused)))
            parts += [_RUN.pack(*run) for run in each.runs.items()]
            parts += [_REFUSED.pack(run) for run in each.refused]
        return b"".join(parts)

    @staticmethod
    def decode(raw: bytes) -> SourcePositions:
        (count,) = _COUNT.unpack_from(raw)
        at, decoded = _COUNT.size, []
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
        if at != len(raw):
            raise ValueError(f"{len(raw)} bytes of source positions that end at {at}")
        return SourcePositions(decoded)


def least_offsets(replicas: Iterable[tuple[int, Sequence[int], bool]], partitions: int) -> list[int] | None:
    """Return the source offsets at which a new run must begin, or None if an internal partition has no replica yet.

    Each replica is its internal partition, its source offsets, and whether it has refused a run of the job. The replicas of
    a partition read one log, so the most advanced one says what the log has. A replica that refused a run cannot
    use that log, and needs its own offsets.
    """
    furthest: dict[int, list[int]] = {}
    needed: list[Sequence[int]] = []
    for partition, offsets, refused in replicas:
        furthest[partition] = [*map(max, furthest.get(partition, offsets), offsets)]
        if refused:
            needed.append(offsets)
    if len(furthest) < partitions:
        return None
    return [min(offsets) for offsets in zip(*furthest.values(), *needed, strict=True)]
