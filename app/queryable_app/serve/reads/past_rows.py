"""Read a replica's rows as of a moment, and the versions of a key, and decide whether the replica may answer for a moment.

Strategy: a replica may answer for a position that it has reached, and for a time that its clock has passed: no later record
changes such an answer. For a time that the clock has not passed, the replica must have had the whole log at that time or later.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

from queryable_app.errors import Failure, Reason
from queryable_app.policy.freshness import lag_ms, next_offset, position_text
from queryable_app.serve.reads.chosen_replica import ChosenReplica
from queryable_app.serve.reads.window_seeks import PASSED_OVER
from queryable_app.serve.store.history_family import HistoryFamily, position_at
from queryable_app.serve.store.replica import Replica
from queryable_app.wire import version_keys as keys
from queryable_app.wire.as_of import AsOf, as_of_from_json
from queryable_app.wire.checked import base64_bytes, field, optional

_RETRY_MS: Final = 500

Pairs = Generator[tuple[bytes, bytes], None, None]


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Name the versions of a group that began to count from a moment on and before another one; None is open."""

    group: bytes
    first: AsOf | None = None
    after: AsOf | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "group": b64encode(self.group).decode(),
            "first": None if self.first is None else self.first.to_json(),
            "after": None if self.after is None else self.after.to_json(),
        }


def version_range_from_json(raw: Any) -> VersionRange:
    """Raises Malformed."""
    first, after = (field(raw, name, optional(as_of_from_json)) for name in ("first", "after"))
    return VersionRange(field(raw, "group", base64_bytes), first, after)


def history_of(replica: Replica | ChosenReplica) -> HistoryFamily:
    """Return the versions of a replica of a view with history."""
    history = replica.store.history
    assert history is not None
    return history


def is_settled(replica: Replica, as_of: AsOf, now_ms: int) -> bool:
    """Return whether the replica has all records that can count at a time. `now_ms` is of `platform/clock.py`."""
    if as_of.time_ms is None or not replica.opened or history_of(replica).state.clock_ms > as_of.time_ms:
        return True
    return 0 <= lag_ms(replica, now_ms) <= time.time_ns() // 1_000_000 - as_of.time_ms


def refusal_as_of(replica: Replica, as_of: AsOf, now_ms: int, has_end: bool) -> Failure | None:
    """Return why a fresh replica may not answer for a moment, or None. `has_end` says that it has the end of the log."""
    position = as_of.positions.get(replica.partition)
    refusal = history_of(replica).refusal(as_of.time_ms, position)
    if refusal is not None:
        return refusal
    if position is not None and next_offset(replica) < position:
        return _not_reached(replica, f"has not reached the position {replica.partition}:{position}")
    if not has_end and not is_settled(replica, as_of, now_ms):
        return _not_reached(replica, f"may lack records from before {as_of.text}")
    return None


def _not_reached(replica: Replica, what: str) -> Failure:
    return Failure(
        Reason.NOT_FRESH_ENOUGH,
        f"the replica of partition {replica.partition} {what}",
        f"retry after {_RETRY_MS} ms, or name an earlier moment",
        partition=replica.partition,
        position=position_text(replica),
        retry_after_ms=_RETRY_MS,
    )


def rows_as_of(
    replica: ChosenReplica, as_of: AsOf, start: bytes | None, stop: bytes | None, reverse: bool
) -> Pairs:
    """Iterate over the rows of `[start, stop)` as they were, and some without content between them."""
    history, position = history_of(replica), as_of.positions.get(replica.partition)
    # The sweeper may have moved the floor since the replica was chosen. From here on the iterator keeps what it will see.
    refusal = history.refusal(as_of.time_ms, position)
    if refusal is not None:
        raise refusal
    for key, stored in history.rows_as_of(replica.store, start, stop, reverse, as_of.time_ms, position):
        yield key, stored or PASSED_OVER


def versions(
    replica: ChosenReplica, wanted: VersionRange, start: bytes | None, stop: bytes | None, reverse: bool
) -> Pairs:
    """Iterate over the versions of a key in `[start, stop)`, the newest first unless `reverse`."""
    history, store, group = history_of(replica), replica.store, wanted.group
    if wanted.first is not None:
        position = wanted.first.positions.get(replica.partition)
        refusal = history.refusal(wanted.first.time_ms, position)
        if refusal is not None:
            raise refusal
    with store.version_cursor() as cursor:
        newest = (
            group if wanted.after is None else _bound(cursor, group, replica.partition, wanted.after, group)
        )
        end = keys.after_group(group)
        oldest = end if wanted.first is None else _bound(cursor, group, replica.partition, wanted.first, end)
    first = newest if start is None else max(start, newest)
    last = oldest if stop is None else min(stop, oldest)
    if first < last:
        for key, version in store.versions(first, last, reverse):
            yield key, keys.row_of(version)


def _bound(cursor: Any, group: bytes, partition: int, moment: AsOf, unnamed: bytes) -> bytes:
    """Return a key between the versions that began to count before a moment and the later ones."""
    if moment.time_ms is not None:
        return keys.newest_before(group, position_at(cursor, group, moment.time_ms - 1))
    position = moment.positions.get(partition)
    return unnamed if position is None else keys.newest_before(group, position)


def not_retained(key: str, moment: AsOf) -> Failure:
    """Return the failure of a read that meets a key whose version of then is removed."""
    return Failure(
        Reason.NOT_RETAINED,
        f"the version that {key} had as of {moment.text} is removed",
        "name a later moment, or keep more versions with spec.view.history.versions",
    )
