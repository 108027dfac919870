"""Fold the changes of aggregates, of windows and of views by other keys, and compare them with the log.

Strategy: such a feed shows a row once for all records that were applied together, so not each record has a change. A change must
be the row as of its own offset. Where the follower has read a partition up to the end of its log, and at the end of the world,
the fold of the changes must be the view. A rekeyed view states offsets of its internal topic: its changes are checked one by one
against the bounds that the source gives, and exactly at the end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from queryable_app.wire.change_log import Mark
from queryable_app.wire.times import parse_time
from tests.simulation.change_follower import CheckedFeed, LatestFeed
from tests.simulation.checks import GuaranteeBroken
from tests.simulation.keyed_checks import KeyedRows, new_key
from tests.simulation.rekeyed_checks import SourceRows
from tests.simulation.rekeyed_windows import grouped_windows_at
from tests.simulation.replica_checks import expected_rows
from tests.simulation.views import shown
from tests.simulation.window_reader import windows_at
from tests.simulation.world import World
from tests.support.windows import Expected

Place = tuple[bytes, int]
"""The key of a row, and the start of its window; 0 without windows."""

_ORDERED = ("first", "last")


class FoldedFeed:
    """Hold the rows of each partition, as the changes give them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rows: list[dict[Place, tuple[int, int, Any]]] = [{} for _ in range(world.partitions)]
        """The end of the window, the offset and the value of each row."""
        self._until = [0] * world.partitions
        """Below that offset the changes come in the order of keys."""

    def compact(self, partition: int, until: int) -> None:
        self._until[partition] = until

    def take(self, change: dict[str, Any]) -> None:
        key, window = change["key"].encode(), change.get("window", {})
        start, end = _ms(window.get("start")), _ms(window.get("end"))
        partition, offset = change["partition"], change["offset"]
        rows = self._rows[partition]
        if change.get("deleted"):
            rows.pop((key, start), None)
        else:
            rows[key, start] = end, offset, change["value"]
        self.check_change(change, key)

    def check_page(self, partition: int, before: Mark, mark: Mark, taken: Sequence[int]) -> None:
        first, end = max(self._until[partition], before.position), mark.position
        logged = [offset for offset in taken if offset >= first]
        if logged != sorted(logged) or (logged and logged[-1] >= end):
            raise GuaranteeBroken(
                f"the changes of partition {partition} from {first} to {end} have the offsets {logged}"
            )
        if not self._world.view.rekeyed:
            if end >= self._world.topic.end(partition):
                self.check_fold(partition)
            elif taken:
                self.check_rows_of(partition, taken[-1])

    def check_change(self, change: dict[str, Any], key: bytes) -> None:
        """Check one change by itself."""

    def check_rows_of(self, partition: int, offset: int) -> None:
        """Check the rows that have an offset."""

    def check_end(self) -> None:
        """Check that the fold is the view, once no record is written any more."""
        for partition in range(self._world.partitions):
            self.check_fold(partition)

    def check_fold(self, partition: int) -> None:
        """Check that the fold of a partition is the view of the whole topic."""
        self._world.event_counts["folds compared"] += 1
        expected = expected_rows(self._world, partition)
        found = {key: value for (key, _), (_, _, value) in self._rows[partition].items()}
        if self._world.ingested.starts[partition]:  # its deletions may have gone with the first records
            found = {key: value for key, value in found.items() if key in expected}
        self._compare(partition, found, expected)

    def _compare(self, partition: int, found: dict[Any, Any], expected: dict[Any, Any]) -> None:
        wrong = sorted(
            {each for each in {*found, *expected} if found.get(each) != expected.get(each)}, key=repr
        )
        if wrong:
            raise GuaranteeBroken(
                f"the changes of partition {partition} give, and must give: "
                + "; ".join(f"{each!r} {found.get(each)} {expected.get(each)}" for each in wrong)
            )


class AggregateFeed(FoldedFeed):
    """Check the changes of an aggregate by record key: each is the group as of its offset."""

    def check_change(self, change: dict[str, Any], key: bytes) -> None:
        partition, offset = change["partition"], change["offset"]
        row = self._world.topic.last_before(partition, key, offset + 1)
        if row is None or row.offset != offset or row.value != json.dumps(change["value"]).encode():
            raise GuaranteeBroken(f"the change {change} is not {row}")


class GroupFeed(FoldedFeed):
    """Check the changes of an aggregate by another key."""

    def check_change(self, change: dict[str, Any], key: bytes) -> None:
        rows = self._world.source_rows
        assert isinstance(rows, SourceRows)
        serials = [serial for _, _, serial in rows.of(key)]
        count = change["value"]["n"]
        if not 0 < count <= len(serials):
            raise GuaranteeBroken(f"the change {change} is of {count} rows, and there are {len(serials)}")
        if self._world.partitions == 1 and json.loads(shown(serials[:count], False)) != change["value"]:
            raise GuaranteeBroken(f"the change {change} is not {shown(serials[:count], False)!r}")


class KeyedFeed(FoldedFeed):
    """Check the changes of latest values under another key: each is a record that has this key."""

    def check_change(self, change: dict[str, Any], key: bytes) -> None:
        rows = self._world.source_rows
        assert isinstance(rows, KeyedRows)
        if change.get("deleted"):
            return
        record = rows.with_value(json.dumps(change["value"]).encode())
        if record is None or new_key(record) != key:
            raise GuaranteeBroken(f"the change {change} is of {record}")


class WindowFeed(FoldedFeed):
    """Check the changes of windows. The end of a window's retention is no change, so the fold may have expired windows."""

    def check_change(self, change: dict[str, Any], key: bytes) -> None:
        if ("end" in change["window"]) == bool(change.get("deleted")):
            raise GuaranteeBroken(f"{change} is a deletion, or else has an end")

    def check_rows_of(self, partition: int, offset: int) -> None:
        topic, view = self._world.topic, self._world.view
        self._compare_windows(partition, windows_at(topic, view, partition, offset + 1), offset)

    def check_fold(self, partition: int) -> None:
        self._world.event_counts["folds compared"] += 1
        topic, view = self._world.topic, self._world.view
        if not view.rekeyed:
            self._compare_windows(partition, windows_at(topic, view, partition, topic.end(partition)))
            return
        ends = {each: topic.end(each) for each in range(topic.partitions)}
        folded = grouped_windows_at(topic, view, ends)
        folded.windows = {
            window: records
            for window, records in folded.windows.items()
            if topic.partition_of(window[0]) == partition
        }
        self._compare_windows(partition, folded)

    def _compare_windows(self, partition: int, folded: Expected, offset: int | None = None) -> None:
        """Compare the windows with those of the log: all that have not expired, or those with an offset."""
        view = self._world.view
        live = folded.items(view.rules)
        expected = {window: self._value(value) for window, (_, value) in live.items()}
        found = {
            (key, start, end): self._value(value)
            for (key, start), (end, at, value) in self._rows[partition].items()
            if offset is None or at == offset
        }
        mark = folded.watermark
        stays = max(view.rules.retention, view.rules.gap)
        expired = {each for each in found if mark is not None and each[2] + stays < mark}
        found = {each: value for each, value in found.items() if each not in expired}
        self._compare(
            partition, found, expected if offset is None else {each: expected.get(each) for each in found}
        )

    def _value(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return a value without what depends on the order of a rekeyed view's records."""
        if not self._world.view.rekeyed:
            return value
        return {name: part for name, part in value.items() if name not in _ORDERED}


def feed_of(world: World) -> CheckedFeed | None:
    """Return the checks of the world's change feed; None: it has none."""
    view = world.view
    if "changes" not in view.features:
        return None
    if view.kind == "latest":
        return LatestFeed(world.topic)
    if view.windowed:
        return WindowFeed(world)
    if view.kind == "keyed":
        return KeyedFeed(world)
    return GroupFeed(world) if view.rekeyed else AggregateFeed(world)


def _ms(time: str | None) -> int:
    found = 0 if time is None else parse_time(time)
    assert found is not None
    return found
