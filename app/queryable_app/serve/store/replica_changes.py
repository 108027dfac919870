"""Read the changes of one replica in the order of their offsets, and remove those that are too old.

Strategy: a reader continues at a *mark*, which any replica of the partition understands: each is the same function of the same
log. If the reader is before the start of the change log, the rows themselves give it what it missed: the last change of each key.
It gets them in key order, so its position moves only when it has seen all of them. Changes that come meanwhile are in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from itertools import takewhile
from typing import Final, NamedTuple

from queryable_app.policy.freshness import next_offset
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.store import Store
from queryable_app.wire import change_log
from queryable_app.wire.change_log import Mark
from queryable_app.wire.disk_format import ROW_HEADER

ENTRIES_MAX: Final = 512
"""How many rows or entries of the log one call looks at. It takes about a millisecond."""
BYTES_MAX: Final = 1 << 20
"""The entry that exceeds it is the last."""


class Portion(NamedTuple):
    """The next changes of a partition, none if there are none yet."""

    rows: Sequence[RawRow]
    mark: Mark
    """Where the reader continues."""
    compacted_until: int = -1
    """The rows begin what the reader gets instead of the changes below this offset. -1: they do not."""


def read_changes(replica: Replica, mark: Mark) -> Portion:
    """Return the changes from the mark on. A replica that is behind the mark has none, nor has one that may not give any."""
    position = next_offset(replica)
    if position < needed_position(mark) or not gives_changes(replica):
        return Portion((), mark)
    if not mark.catching_up:
        if mark.position >= log_start(replica.store):
            return _from_log(replica, mark.position)
        portion = _from_rows(replica, Mark(mark.position, position))
        return portion._replace(compacted_until=position)
    return _from_rows(replica, mark)


def gives_changes(replica: Replica) -> bool:
    """Return whether marks mean the same to this replica as to others: in a rekeyed view, once it is complete.

    If its internal topic has lost records, it takes them later than the others did. A reader that went past them here and
    continued at another replica would miss them."""
    return replica.complete or not replica.source_offsets


def needed_position(mark: Mark) -> int:
    """Return the position that a replica must have reached to have anything for the reader."""
    return mark.until if mark.catching_up else mark.position + 1


def log_start(store: Store) -> int:
    """Return the offset from which on the log has every change."""
    return change_log.decode_start(store.multi_get_entries([change_log.START_KEY])[0])


def _from_log(replica: Replica, position: int) -> Portion:
    entries = replica.store.entries(change_log.entry_key(position), change_log.END)
    taken, ended = _take(entries, change_log.offset_of)  # a mark is an offset
    rows: list[RawRow] = []
    for _, entry in taken:
        disk_key, stored = change_log.decode_entry(entry)
        rows.append((disk_key, replica.partition, stored))
    return Portion(rows, Mark(next_offset(replica) if ended else change_log.offset_of(taken[-1][0]) + 1))


def _from_rows(replica: Replica, mark: Mark) -> Portion:
    """Return the next rows whose last change the reader has missed. A later one is in the log when the reader gets there."""
    start = None if mark.after is None else mark.after + b"\0"
    taken, ended = _take(replica.store.rows(start), bytes)
    rows = [
        (disk_key, replica.partition, stored)
        for disk_key, stored in taken
        if mark.position <= ROW_HEADER.unpack_from(stored)[1] < mark.until
    ]
    return Portion(rows, Mark(mark.until) if ended else mark._replace(after=taken[-1][0]))


def _take(
    entries: Generator[tuple[bytes, bytes], None, None], place: Callable[[bytes], object]
) -> tuple[Sequence[tuple[bytes, bytes]], bool]:
    """Take as many entries as a portion has, and return whether they are all. Entries at the same place stay together."""
    taken: list[tuple[bytes, bytes]] = []
    size = 0
    with closing(entries):
        for key, stored in entries:
            if (len(taken) >= ENTRIES_MAX or size > BYTES_MAX) and place(key) != place(taken[-1][0]):
                return taken, False
            taken.append((key, stored))
            size += len(stored)
    return taken, True


def remove_old_changes(store: Store, before_ms: int) -> bool:
    """Remove changes from before this time, as many as a short call can. Return whether there may be more."""
    taken, ended = _take(store.entries(change_log.FIRST, change_log.END), change_log.offset_of)
    old = list(takewhile(lambda each: change_log.time_of(each[1]) < before_ms, taken))
    if old:
        start = change_log.encode_start(change_log.offset_of(old[-1][0]) + 1)
        removed: list[tuple[bytes, bytes | None]] = [(key, None) for key, _ in old]
        store.apply((), store.state, entries=[*removed, (change_log.START_KEY, start)])
    return not ended and len(old) == len(taken)
