"""Test windows and sessions on real stores against a plain oracle, however records are cut into slices and sent again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.api.app import window_rows
from queryable_app.serve.node import Node
from queryable_app.serve.reads.replica_progress import progress_of
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.store import Store
from queryable_app.wire.times import parse_time
from tests.support.node import dropped, open_node, slice_payload, sweep
from tests.support.windows import Expected, Record, Rules, expected, row_of, view

SPECS = {
    "tumbling": (Rules(20, 20, 5, 30), view(size="20ms", grace="5ms", retention="30ms")),
    "hopping": (Rules(20, 5, 5, 30), view(size="20ms", slide="5ms", grace="5ms", retention="30ms")),
    "sessions": (Rules(0, 0, 5, 6, gap=10), view(sessionGap="10ms", grace="5ms", retention="6ms")),
}
HOUR_MS = 3_600_000
KEYS = st.sampled_from((b"a", b"a", b"a", b"a\0", b""))
NEAR = st.integers(-25, 25)
# How far a record's time is from its place in the log.
DISTANCES = st.one_of(NEAR, NEAR, NEAR, st.integers(-80, 80), st.sampled_from((2 * HOUR_MS, 250 * 10**12)))


def log_of(records: list[tuple[bytes, int, int | None]], step_ms: int) -> list[Record]:
    """Return records of which each is `step_ms` later than the one before, and some distance from there."""
    return [Record(key, n * step_ms + distance, value) for n, (key, distance, value) in enumerate(records)]


RECORD = st.tuples(KEYS, DISTANCES, st.none() | st.integers(-9, 9))
# Long ones first of all: a clock shows a time after ten records.
LOGS = st.builds(
    log_of,
    st.lists(RECORD, min_size=40, max_size=80) | st.lists(RECORD, max_size=20),
    st.integers(0, 7),
)
Items = dict[tuple[bytes, int, int], tuple[bool, dict[str, Any]]]


@pytest.fixture(params=SPECS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Node, Rules]]:
    """Open a node of each kind of windows."""
    rules, of_view = SPECS[request.param]
    node = open_node(tmp_path, view=of_view)
    yield node, rules
    node.replicas.close()


def items(node: Node, replica: Replica) -> Items:
    """Return what is readable, as answers show it."""
    rows = window_rows(node)
    assert rows is not None
    stored = [(key, replica.partition, row) for key, row in replica.store.rows()]
    found: Items = {}
    for _, line in rows.lines([progress_of(replica, monotonic_ms())], scattered=False)(stored):
        item = json.loads(line)
        window = item["window"]
        start, end = parse_time(window["start"]), parse_time(window["end"])
        assert start is not None
        assert end is not None
        found[item["key"].encode(), start, end] = window["final"], item["value"]
    assert len(found) <= len(stored)
    return found


def apply(node: Node, records: list[Record], first: int, last: int) -> None:
    """Send the records from `first` to `last` as one slice."""
    node.slices.apply(slice_payload(*(row_of(o, records[o]) for o in range(first, last + 1))))


def check(node: Node, replica: Replica, rules: Rules, oracle: Expected) -> None:
    assert items(node, replica) == oracle.items(rules)
    assert replica.late_records == oracle.late
    assert node.windows is not None
    if oracle.watermark is not None:
        assert node.windows.watermark(replica.max_event_ms) == oracle.watermark


def test_windows_are_those_of_the_log(case: tuple[Node, Rules]) -> None:
    """However slices are cut and overlap, a view has the windows, the watermark and the late records of the log's definition."""
    node, rules = case
    replica = node.replicas.by_partition[0]

    @given(LOGS, st.lists(st.tuples(st.integers(0, 80), st.integers(0, 12)), max_size=12))
    @example([Record(b"a", 250 * 10**12, 1)] + [Record(b"a", n, n) for n in range(0, 120, 3)], [])
    @example([Record(b"a", time, time) for time in (0, 20, 10, *[40] * 12, 5, 30)], [(3, 2)])
    @example(
        [Record(b"a", time, time) for time in (*[25] * 12, 19, 20, 26, 5)], [(13, 2)]
    )  # at the watermark
    def run(records: list[Record], cuts: list[tuple[int, int]]) -> None:
        replica.rebuild()
        for cut, back in cuts:
            first = max(0, min(cut, max(0, replica.position)) - back)
            if first <= (last := min(cut, len(records) - 1)):
                apply(node, records, first, last)
        if max(0, replica.position) < len(records):
            apply(node, records, max(0, replica.position), len(records) - 1)
        check(node, replica, rules, expected(records, rules))

    run()


def test_final_windows_do_not_change(case: tuple[Node, Rules]) -> None:
    """What an answer says to be final stays as it is until it expires."""
    node, _ = case
    replica = node.replicas.by_partition[0]

    @given(LOGS)
    def run(records: list[Record]) -> None:
        replica.rebuild()
        final: dict[tuple[bytes, int, int], dict[str, Any]] = {}
        for offset in range(len(records)):
            apply(node, records, offset, offset)
            found = items(node, replica)
            for window, value in final.items():
                assert found.get(window, (True, value)) == (True, value)
            final = {window: value for window, (is_final, value) in found.items() if is_final}

    run()


def test_sweeping_changes_no_answer(case: tuple[Node, Rules]) -> None:
    """A view whose expired rows are deleted after every record has the same windows as one that deletes none."""
    node, rules = case
    replica = node.replicas.by_partition[0]

    @given(LOGS)
    def run(records: list[Record]) -> None:
        replica.rebuild()
        for offset in range(len(records)):
            apply(node, records, offset, offset)
            sweep(node, replica)
        oracle = expected(records, rules)
        check(node, replica, rules, oracle)
        assert len(list(replica.store.rows())) == len(oracle.items(rules))

    run()


def test_clock_survives_a_restart(tmp_path: Path) -> None:
    """A node that starts again goes on with the clock and the late records that it had."""
    rules, of_view = SPECS["tumbling"]
    records = [Record(b"a", n * 4, n) for n in range(40)] + [Record(b"a", 0, 1)]
    node = open_node(tmp_path, view=of_view)
    apply(node, records, 0, 24)
    node.replicas.close()

    again = open_node(tmp_path, view=of_view)
    apply(again, records, 20, 40)

    check(again, again.replicas.by_partition[0], rules, expected(records, rules))
    assert again.replicas.by_partition[0].late_records == 1
    again.replicas.close()


def test_rebuilt_replica_forgets_its_clock(tmp_path: Path) -> None:
    """A replica that starts over at the earliest record has no watermark and no late records."""
    node = open_node(tmp_path, view=SPECS["tumbling"][1])
    replica = node.replicas.by_partition[0]
    apply(node, [*[Record(b"a", 1000, 1)] * 12, Record(b"a", 0, 1)], 0, 12)
    assert replica.late_records == 1

    replica.rebuild()
    node.replicas.close()

    again = open_node(tmp_path, view=SPECS["tumbling"][1]).replicas
    assert (again.by_partition[0].late_records, again.by_partition[0].max_event_ms) == (0, -(1 << 63))
    again.close()


def test_dropped_records_do_not_move_the_clock(case: tuple[Node, Rules]) -> None:
    """A record that the filter drops, or a tombstone, adds nothing and moves no clock."""
    node, _ = case
    node.slices.apply(slice_payload(*(dropped(offset, b"a")._replace(stored=b"") for offset in range(20))))

    replica = node.replicas.by_partition[0]
    assert (items(node, replica), replica.state.dropped, replica.late_records) == ({}, 20, 0)
    assert node.windows is not None
    assert replica.max_event_ms == -(1 << 63)


def test_checkpoint_carries_the_clock(tmp_path: Path) -> None:
    """A replica that is built from another node's checkpoint goes on with its watermark and its late records."""
    node = open_node(tmp_path, view=SPECS["tumbling"][1])
    store = node.replicas.by_partition[0].store
    apply(node, [*[Record(b"a", 1000, 1)] * 12, Record(b"a", 0, 1)], 0, 12)

    store.flush()
    store.checkpoint(tmp_path / "checkpoint")

    copied = Store.open(tmp_path / "checkpoint", store.identity, node.memory)
    assert copied.clock.encode() == store.clock.encode()
    assert (copied.clock.late, list(copied.rows())) == (1, list(store.rows()))
    copied.close()
    node.replicas.close()
