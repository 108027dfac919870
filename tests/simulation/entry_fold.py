"""Fold the records of a partition into the entries of its keys, in the simplest way.

An entry is kept while its time is no more than the retention before the partition's clock. That clock shows the greatest time of
the records so far; of times far ahead it takes only ten in a row. A tombstone deletes the entries of its key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tests.simulation.topic import Topic
from tests.simulation.views import View
from tests.support.windows import HOUR_MS, SourceTime

_BEFORE_ALL: Final = -(1 << 70)


class Entry(NamedTuple):
    """Hold an entry of a key; entries compare by their order."""

    at_ms: int
    offset: int
    value: Any


class FoldedEntries:
    """Hold every entry that the records of a partition below a position made, also those that a tombstone deleted since."""

    def __init__(self, topic: Topic, view: View, partition: int, position: int) -> None:
        time = SourceTime()
        self.entries: dict[bytes, list[Entry]] = {}
        self.deleted_at: dict[bytes, list[int]] = {}
        """The offsets of the tombstones of each key."""
        self.watermark = _BEFORE_ALL
        self.late = 0
        for record in topic.written[partition]:
            if record.offset >= position:
                break
            if record.key is None:
                continue
            if record.value is None:
                self.deleted_at.setdefault(record.key, []).append(record.offset)
                continue
            value = json.loads(record.value)
            time.advance(value["at"], HOUR_MS)
            if time.shown is not None and view.entry_retention_ms is not None:
                self.watermark = time.shown - view.entry_retention_ms
            if value["at"] < self.watermark:
                self.late += 1
            else:
                entry = Entry(value["at"], record.offset, value)
                self.entries.setdefault(record.key, []).append(entry)

    def of_key(self, key: bytes, since: int) -> Sequence[Entry]:
        """Return the entries of a key, in order, that no tombstone below the position `since` has deleted."""
        deleted = max((offset for offset in self.deleted_at.get(key, ()) if offset < since), default=-1)
        found = [entry for entry in self.entries.get(key, ()) if entry.offset > deleted]
        return sorted(found, key=lambda entry: entry[:2])


def entries_at(topic: Topic, view: View, partition: int, position: int) -> Mapping[bytes, list[Entry]]:
    """Return the entries that are readable after the records of a partition below a position, by key."""
    folded = FoldedEntries(topic, view, partition, position)
    return {
        key: [entry for entry in folded.of_key(key, position) if entry.at_ms >= folded.watermark]
        for key in folded.entries
    }


def watermark_at(topic: Topic, view: View, partition: int, position: int) -> int:
    """Return the time of the oldest entry that is retained after the records of a partition below a position."""
    return FoldedEntries(topic, view, partition, position).watermark
