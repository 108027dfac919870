"""Give what a simulated run of the rekey job writes of each source record, for each kind of rekeyed view."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from queryable_app.aggregates.clock import Clock, SourceClock
from queryable_app.aggregates.windows import Windows
from queryable_app.policy.source_positions import SourceStart
from queryable_app.wire.disk_format import ROW_HEADER_SIZE
from queryable_app.wire.envelopes import MARKER_KEY
from queryable_app.wire.keyed_contents import (
    ALONE_FROM_SIZE,
    KEYLESS,
    LEFT,
    ROW,
    KeyedContent,
    encode_keyed,
)
from queryable_app.wire.partitioners import partition_for
from tests.simulation.keyed_checks import new_key
from tests.simulation.views import contribution, groups_of, window_rows
from tests.support import windows as window_oracle
from tests.support.fold import LogRecord
from tests.support.rekeying_jobs import NOWHERE, Places

_PLACES_MAX: Final = (2, 6, 100)
"""How many record keys a run remembers; there are fewer than 100."""


_HAND_OVER_CHANCES: Final = (0.0, 0.0, 0.05)
"""How often another executor goes on with the source partition of a record; most jobs have no executors."""


class Message(NamedTuple):
    to: int
    """The internal partition."""
    key: bytes
    offset: int
    row: int
    rows: int
    timestamp_ms: int
    content: bytes


class AggregateRecords:
    """Give the rows of a view that groups by another column."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def messages(self, record: LogRecord) -> Sequence[Message]:
        rows = self._rows(record)
        return [
            self._message(record, key, content, row, len(rows)) for row, (key, content) in enumerate(rows)
        ]

    def prefix(self, source: int, to: int, offset: int) -> bytes:
        """Return what stands before the content of the next envelope."""
        return b""

    def may_mark(self, source: int, offset: int) -> bool:
        """Tell whether a marker may say that the run is before the record at `offset`."""
        return True

    def _rows(self, record: LogRecord) -> Sequence[tuple[bytes, bytes]]:
        return [
            (key, contribution(0, record.timestamp_ms, serial)[ROW_HEADER_SIZE:])
            for key, serial in groups_of(record)
        ]

    def _message(self, record: LogRecord, key: bytes, content: bytes, row: int = 0, rows: int = 1) -> Message:
        return Message(self._to(key), key, record.offset, row, rows, record.timestamp_ms, content)

    def _to(self, key: bytes) -> int:
        return partition_for(key, "murmur2", self._partitions)


class WindowRecords(AggregateRecords):
    """Track the event time of each source partition, as `RekeyRun` does."""

    def __init__(self, partitions: int, windows: Windows, starts: Sequence[SourceStart]) -> None:
        super().__init__(partitions)
        self._ahead_ms = windows.ahead_ms
        self._clocks = [Clock(*start.clock) for start in starts]
        self._timed = [start.offset if start.row else -1 for start in starts]

    def prefix(self, source: int, to: int, offset: int) -> bytes:
        clock = self._clocks[source]
        return SourceClock(clock.max_event_ms, clock.ahead_count, clock.ahead_min_ms).encode()

    def may_mark(self, source: int, offset: int) -> bool:
        return self._timed[source] < offset  # otherwise the clock is not the one before the record

    def _rows(self, record: LogRecord) -> Sequence[tuple[bytes, bytes]]:
        rows = window_rows(record)
        if rows and record.offset > self._timed[record.partition]:
            self._timed[record.partition] = record.offset
            self._clocks[record.partition].advance(rows[0].event_ms, self._ahead_ms)
        return [(each.key, window_oracle.row_of(0, each).stored[ROW_HEADER_SIZE:]) for each in rows]


class KeyedRecords(AggregateRecords):
    """Give the rows of a latest-value view, and tell other partitions which records have left."""

    def __init__(self, partitions: int, trusted: Sequence[int], choice: random.Random) -> None:
        super().__init__(partitions)
        places_max = choice.choice(_PLACES_MAX)
        self._places = [Places(partitions, offset, places_max) for offset in trusted]
        self._choice = choice
        self._hand_over_chance = choice.choice(_HAND_OVER_CHANCES)

    def messages(self, record: LogRecord) -> Sequence[Message]:
        if self._choice.random() < self._hand_over_chance:
            self._places[record.partition] = self._places[record.partition].for_another_owner()
        key, found = new_key(record), []
        to = NOWHERE if key is None else self._to(key)
        if record.key is not None:
            left = self._message(record, MARKER_KEY, _content(KeyedContent(LEFT, record.key, b"")))
            told = self._places[record.partition].move(record.key, record.offset, to)
            found += [left._replace(to=other) for other in told]
        if key is not None:
            kind = KEYLESS if record.key is None else ROW
            row = KeyedContent(kind, record.key or b"", record.value or b"")
            found.append(self._message(record, key, _content(row)))
        return found

    def prefix(self, source: int, to: int, offset: int) -> bytes:
        return encode_keyed(self._places[source].alone_from(to, offset))


def _content(content: KeyedContent) -> bytes:
    return encode_keyed(0, content)[ALONE_FROM_SIZE:]
