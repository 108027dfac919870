"""Log the changes of a view's rows in the batch that makes them, for `GET /v1/changes`.

Strategy: a slice is logged whole or not at all. A replica that hydrates from the topic meets changes that are older than the log
retains. It does not log these as long as the log is empty, and notes where its log starts.

A replica of a rekeyed view begins its log when it is complete. If its internal topic has lost records, the job writes the source
again for it, and it takes at late offsets what other replicas took at earlier ones. A reader that leaves it in the midst of
that, for another replica, would not find there what it still lacks.

A row that the view deletes becomes a tombstone. So a reader that catches up from rows learns of the deletion too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import time_ns
from typing import Final

from queryable_app.serve.feed.slices import Changes, View
from queryable_app.serve.store.store import Store
from queryable_app.wire import change_log
from queryable_app.wire.disk_format import ROW_HEADER

CHANGES_RETENTION_MS: Final = 24 * 3600 * 1000
"""How long a change can be read from the log. Tombstones stay as long."""


def now_ms() -> int:
    return time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class LoggedChanges:
    """Add the log's entries to the changes of a view."""

    view: View
    now: Callable[[], int] = now_ms

    def changes(
        self, store: Store, rows: Sequence[tuple[bytes, bytes]], source_times: Sequence[int] | None = None
    ) -> Changes:
        changes = self.view.changes(store, rows, source_times)
        puts = [*changes.puts, *changes.deletes.items()]
        if not puts:
            return changes
        now = self.now()
        headers = [ROW_HEADER.unpack_from(stored) for _, stored in puts]
        newest_ms = max(timestamp_ms for _, _, timestamp_ms, _ in headers)
        entries: list[tuple[bytes, bytes | None]] = list(changes.entries)
        first_taken = changes.sources is not None and not store.state.complete
        is_recent = newest_ms >= now - CHANGES_RETENTION_MS
        if (is_recent and not first_taken) or store.has_change_log():
            entries += [
                # A time in the future would keep all that follow.
                (entry_key, change_log.encode_entry(min(timestamp_ms, now), disk_key, stored))
                for entry_key, (disk_key, stored), (_, _, timestamp_ms, _) in zip(
                    _entry_keys([offset for _, offset, _, _ in headers]), puts, headers, strict=True
                )
            ]
        else:
            start = 1 + max(offset for _, offset, _, _ in headers)
            entries.append((change_log.START_KEY, change_log.encode_start(start)))
        return changes._replace(puts=puts, deletes={}, entries=entries)


def _entry_keys(offsets: Sequence[int]) -> Iterator[bytes]:
    """Return the keys of entries with these offsets, of which some may be the same."""
    if len({*offsets}) == len(offsets):
        yield from map(change_log.entry_key, offsets)
        return
    seen: Counter[int] = Counter()
    for offset in offsets:
        yield change_log.entry_key(offset, seen[offset])
        seen[offset] += 1
