"""Check at the end of a world that every replica equals the fold of the topic, to the last unit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from queryable_app.aggregates.clock import NO_TIME_MS
from queryable_app.aggregates.entry_keys import disk_key_of
from queryable_app.serve.node import Node
from queryable_app.serve.reads.replica_progress import progress_of
from queryable_app.serve.reads.window_rows import WindowRows
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.disk_format import TOMBSTONE, decode_row
from tests.simulation.checks import GuaranteeBroken
from tests.simulation.entry_fold import FoldedEntries, entries_at
from tests.simulation.keyed_checks import last_rows
from tests.simulation.rekeyed_checks import SourceRows
from tests.simulation.rekeyed_windows import grouped_windows_at, without_order
from tests.simulation.views import shown
from tests.simulation.window_reader import found_windows, windows_at
from tests.simulation.world import World
from tests.simulation.writer_keys import ALL_KEYS


def check_replicas(world: World) -> None:
    """Compare each replica with the fold of the whole topic. No record may be written meanwhile."""
    for machine in world.machines.values():
        if machine.node is not None:
            for partition, replica in machine.node.replicas.by_partition.items():
                there, expected = _rows(world, machine.node, replica), expected_rows(world, partition)
                if there != expected:
                    wrong = {
                        key for key in there.keys() | expected.keys() if there.get(key) != expected.get(key)
                    }
                    raise GuaranteeBroken(
                        f"{machine.host} has in partition {partition}, and must have: "
                        + "; ".join(
                            f"{key!r} {there.get(key)} {expected.get(key)}" for key in sorted(wrong, key=repr)
                        )
                    )


def _rows(world: World, node: Node, replica: Replica) -> dict[Any, Any]:
    """Return what the rows of a replica show."""
    rows = list(replica.store.rows())
    if node.windows is not None:
        assert node.spec.aggregate is not None
        lines = WindowRows(node.codec, node.spec.aggregate, node.windows).lines(
            [progress_of(replica, 0)], False
        )
        items = [json.loads(line) for _, line in lines([(key, replica.partition, row) for key, row in rows])]
        found = found_windows(items)
        found = without_order(found) if world.view.rekeyed else found
        return found | {"late": replica.late_records, "clock": replica.max_event_ms}
    if world.view.kind == "entries":
        found_entries = [
            (disk_key_of(key), decode_row(stored)) for key, stored in rows if not stored[0] & TOMBSTONE
        ]
        retention = node.entries
        assert retention is not None
        mark = retention.watermark(replica.max_event_ms)
        live = [(key, row) for key, row in found_entries if not retention.expired(row.expiry_ms, mark)]
        found_values: dict[Any, Any] = {(key, row.offset): json.loads(row.value or b"") for key, row in live}
        return found_values | {"late": replica.late_records, "clock": mark}
    render = node.render or (lambda value: value)
    values = {key: decode_row(stored).value for key, stored in rows}
    return {key: json.loads(render(value)) for key, value in values.items() if value is not None}


def expected_rows(world: World, partition: int) -> dict[Any, Any]:
    """Return what a replica of a partition must show once it has the whole topic."""
    topic, view = world.topic, world.view
    ends = {each: topic.end(each) for each in range(topic.partitions)}
    if view.windowed:
        return _expected_windows(world, partition, ends)
    if view.kind == "keyed":
        return {key: json.loads(value) for key, value in last_rows(topic, partition).items()}
    if view.kind == "entries":
        there = entries_at(topic, view, partition, topic.end(partition))
        folded = FoldedEntries(topic, view, partition, topic.end(partition))
        live: dict[Any, Any] = {
            (key, entry.offset): entry.value for key, found in there.items() for entry in found
        }
        return live | {"late": folded.late, "clock": max(NO_TIME_MS, folded.watermark)}
    expected: dict[Any, Any] = {}
    for key in ALL_KEYS:
        if isinstance(world.source_rows, SourceRows) and view.rekeyed:
            (serials,) = world.source_rows.expected(key, ends)
            if serials and topic.partition_of(key) == partition:
                expected[key] = json.loads(shown(serials, False))
        else:
            row = topic.last_before(partition, key, topic.end(partition))
            if row is not None and row.value is not None:
                expected[key] = json.loads(row.value)
    return expected


def _expected_windows(world: World, partition: int, ends: Mapping[int, int]) -> dict[Any, Any]:
    topic, view = world.topic, world.view
    if view.rekeyed:
        folded = grouped_windows_at(topic, view, ends)
        here = {
            window: item
            for window, item in folded.items(view.rules).items()
            if topic.partition_of(window[0]) == partition
        }
        items = without_order(here)
        late = sum(count for key, count in folded.late_of.items() if topic.partition_of(key) == partition)
    else:
        folded = windows_at(topic, view, partition, ends[partition])
        items, late = folded.items(view.rules), folded.late
    clock = NO_TIME_MS if folded.watermark is None else folded.watermark + view.rules.grace
    return items | {"late": late, "clock": clock}
