"""Keep every record of a key as an entry, and delete the entries of a key with its tombstone.

Strategy: the writer has put the time of each entry into its row. An entry's key follows from its time and its offset, so a slice
that is applied again changes nothing. A tombstone deletes the entries of its key one by one where they are few, and otherwise
as a range. It leaves its own row behind them. Otherwise a read of the key would step over whatever else was deleted behind it
and is not compacted yet: RocksDB has no bounds for such reads here. The sweeper removes that row a day later.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import Final

from queryable_app.aggregates.entry_keys import entries_of, entry_key
from queryable_app.aggregates.entry_retention import EntryRetention
from queryable_app.serve.feed.slices import Changes
from queryable_app.serve.store.store import Store
from queryable_app.wire.disk_format import ROW_HEADER, TOMBSTONE

_DELETED_SINGLY_MAX: Final = 64


class EntryRows:
    """Turn the rows of slices into entries."""

    def __init__(self, retention: EntryRetention) -> None:
        self._retention = retention

    def changes(
        self, store: Store, rows: Sequence[tuple[bytes, bytes]], _source_times: Sequence[int] | None = None
    ) -> Changes:
        """Return the new entries. A row without content is one that the view's filter drops: it adds and deletes nothing."""
        clock, partition, take = store.clock.copy(), store.identity.partition, self._retention.take
        without_value = 0
        puts: dict[bytes, list[tuple[bytes, bytes]]] = {}  # by key
        deleted: dict[bytes, bytes] = {}
        for key, stored in rows:
            if not stored:
                without_value += 1
                continue
            flags, offset, _, time = ROW_HEADER.unpack_from(stored)
            if flags & TOMBSTONE:
                without_value += 1
                puts.pop(key, None)
                deleted[key] = stored
            elif take(clock, time):
                puts.setdefault(key, []).append((entry_key(key, time, offset, partition), stored))
        entries = [entry for of_key in puts.values() for entry in of_key]
        if not deleted:
            return Changes(entries, without_value, clock=clock)
        deletes: dict[bytes, bytes] = {}
        ranges: list[tuple[bytes, bytes]] = []
        for key in sorted(deleted):
            of_key = entries_of(key)
            with closing(store.rows(*of_key)) as found:
                some = [each for each, _ in islice(found, _DELETED_SINGLY_MAX + 1)]
            if some:
                entries.append((of_key.stop, deleted[key]))
            if len(some) > _DELETED_SINGLY_MAX:
                ranges.append(of_key)
            else:
                deletes |= dict.fromkeys(some, deleted[key])
        return Changes(entries, without_value, deletes, clock, deleted_ranges=ranges)
