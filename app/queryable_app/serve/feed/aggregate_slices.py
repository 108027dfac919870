"""Fold the records of a slice into the stored states of their groups.

Strategy: the states of all groups of a slice are read in one call, its records are folded into them in offset order, and the
states are written in the batch that moves the position. So a record is folded exactly once, whatever crashes or is sent again.
All rows are decoded before anything is read: a malformed slice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from queryable_app.aggregates.clock import Clock
from queryable_app.aggregates.folding import Folding
from queryable_app.aggregates.states import Group
from queryable_app.config.aggregate_spec import AggregateSpec
from queryable_app.serve.feed.slices import Changes
from queryable_app.serve.store.store import Store
from queryable_app.wire.contributions import Contribution, types_of

Record = tuple[bytes, Contribution]
"""On-disk key and what the record adds."""


class Grouping(Protocol):
    """Decide for one slice which stored groups take a record. The plain view has none: a group is a key."""

    def take(self, disk_key: bytes, event_time_ms: int) -> Sequence[tuple[bytes, int]]:
        """Return the stored keys of the groups that take the next record, each with the expiry of its row."""

    @property
    def clock(self) -> Clock:
        """Return the event time of the partition after these records."""


class AggregateRows:
    """Turn the contributions of slices into states. `begin_grouping` makes the grouping of a slice from the replica's store."""

    def __init__(
        self, spec: AggregateSpec, begin_grouping: Callable[[Store], Grouping] | None = None
    ) -> None:
        self._spec = spec
        self._begin_grouping = begin_grouping
        self._foldings: dict[bytes, Folding] = {}  # by the types of a contribution

    def changes(self, store: Store, rows: Sequence[tuple[bytes, bytes]]) -> Changes:
        """Return the new states. Raises Failure if groups cannot be read, StateError if they are of another view."""
        first = next((stored for _, stored in rows if stored), None)
        if first is None:
            return Changes((), len(rows))
        folding = self._folding(types_of(first))
        decode = folding.layout.decode
        records = [(key, decode(stored)) for key, stored in rows if stored]
        clock: Clock | None = None
        if self._begin_grouping is None:
            groups = _fold_by_key(store, folding, records)
        else:
            grouping = self._begin_grouping(store)
            groups = _fold_grouped(store, folding, records, grouping)
            clock = grouping.clock
        encode = folding.codec.encode
        puts = [(key, encode(group)) for key, group in groups.items()]
        return Changes(puts, len(rows) - len(records), clock=clock)

    def _folding(self, types: bytes) -> Folding:
        folding = self._foldings.get(types)
        if folding is None:
            folding = self._foldings[types] = Folding(self._spec, types)
        return folding


def _fold_by_key(store: Store, folding: Folding, records: Sequence[Record]) -> dict[bytes, Group]:
    groups = _load(store, folding, [key for key, _ in records])
    fold = folding.fold
    for key, (offset, timestamp_ms, _, inputs) in records:
        fold(groups[key], offset, timestamp_ms, inputs)
    return groups


def _fold_grouped(
    store: Store, folding: Folding, records: Sequence[Record], grouping: Grouping
) -> dict[bytes, Group]:
    taken = [grouping.take(key, contribution[2]) for key, contribution in records]
    groups = _load(store, folding, [key for targets in taken for key, _ in targets])
    for targets, (_, (offset, timestamp_ms, _, inputs)) in zip(taken, records, strict=True):
        for key, expiry_ms in targets:
            group = groups[key]
            group.expiry_ms = expiry_ms
            folding.fold(group, offset, timestamp_ms, inputs)
    return groups


def _load(store: Store, folding: Folding, keys: Iterable[bytes]) -> dict[bytes, Group]:
    """Return the groups of the keys as they are stored, and new ones."""
    codec = folding.codec
    distinct = sorted(set(keys))  # in order, RocksDB reads and writes them with a tenth less CPU
    return {
        key: codec.new() if stored is None else codec.decode(stored)
        for key, stored in zip(distinct, store.multi_get(distinct), strict=True)
    }
