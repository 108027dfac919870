"""Test windows of groups by other columns on real stores, against a plain oracle with several source partitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.aggregates.clock import Clock, SourceClock
from queryable_app.aggregates.windows import ahead_ms
from queryable_app.serve.api.internal import rekey_positions
from queryable_app.serve.api.status import status_json
from queryable_app.serve.node import Node
from queryable_app.serve.store.rekeyed_replica import RekeyedReplica
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE
from queryable_app.wire.envelopes import MARKER_KEY, Envelope, encode_envelope
from queryable_app.wire.row_frames import ROW, SliceRow
from tests.app.serve.feed.test_window_slices import DISTANCES, KEYS, SPECS, items, log_of
from tests.support.node import open_node, slice_payload, sweep
from tests.support.windows import Expected, Record, Rules, expected_of_sources, row_of

SOURCES = 3
RECORD = st.tuples(KEYS, DISTANCES, st.none() | st.integers(-9, 9))
# A clock shows a time after ten records, so most logs have some more of each source partition.
LOGS = st.builds(
    log_of,
    st.lists(RECORD, min_size=60, max_size=110) | st.lists(RECORD, max_size=20),
    st.integers(0, 7),
)
PLACES = st.lists(st.integers(0, SOURCES - 1), min_size=110, max_size=110)


def grouped_node(directory: Path, view: dict[str, Any]) -> Node:
    view = {**view, "aggregate": {"groupBy": ["page"], **view["aggregate"]}}
    return open_node(directory, SOURCES, view=view, settings={"group_key_format": "string"})


@pytest.fixture(params=SPECS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Node, Rules]]:
    rules, of_view = SPECS[request.param]
    node = grouped_node(tmp_path, of_view)
    yield node, rules
    node.replicas.close()


class Job:
    """Write the rows of several source partitions to one internal partition, as a run of the rekey job does."""

    def __init__(self, node: Node) -> None:
        assert node.spec.aggregate is not None
        assert node.spec.aggregate.window is not None
        self._ahead_ms = ahead_ms(node.spec.aggregate.window)
        self.clocks = [Clock() for _ in range(SOURCES)]
        self.offsets = [0] * SOURCES
        self._sequences = [0] * SOURCES
        self.log: list[SliceRow] = []
        for source in range(SOURCES):
            self.marker(source)

    def _write(self, source: int, rows: int, key: bytes, contribution: bytes) -> None:
        clock = self.clocks[source]
        shown = SourceClock(clock.max_event_ms, clock.ahead_count, clock.ahead_min_ms)
        envelope = Envelope(source, self.offsets[source], 0, rows, 1, self._sequences[source], 7)
        self._sequences[source] += 1
        header = ROW_HEADER.pack(0, len(self.log), 1, 0)
        stored = header + encode_envelope(envelope, shown.encode() + contribution)
        self.log.append(SliceRow(key, stored, ROW, len(self.log)))

    def marker(self, source: int) -> None:
        self._write(source, 0, MARKER_KEY, b"")

    def record(self, source: int, record: Record, elsewhere: bool = False) -> None:
        """Write a record, or only take it if its row is in another internal partition."""
        self.clocks[source].advance(record.event_ms, self._ahead_ms)
        if not elsewhere:
            self._write(source, 1, record.key, row_of(0, record).stored[ROW_HEADER_SIZE:])
        self.offsets[source] += 1


def check(node: Node, rules: Rules, oracle: Expected) -> None:
    replica = node.replicas.by_partition[0]
    assert items(node, replica) == oracle.items(rules)
    assert replica.late_records == oracle.late
    assert node.windows is not None
    if oracle.watermark is not None:
        assert node.windows.watermark(replica.max_event_ms) == oracle.watermark


def test_windows_follow_the_clocks_of_source_partitions(case: tuple[Node, Rules]) -> None:
    """However slices are cut and repeated, a view has the windows, the watermark and the late records that the clocks of the
    source partitions define."""
    node, rules = case
    replica = node.replicas.by_partition[0]

    @settings(max_examples=50)
    @given(LOGS, PLACES, st.lists(st.tuples(st.integers(0, 120), st.integers(0, 12)), max_size=12))
    def run(records: list[Record], places: list[int], cuts: list[tuple[int, int]]) -> None:
        replica.rebuild()
        job, arrivals = Job(node), [*zip(places, records, strict=False)]
        for source, record in arrivals:
            job.record(source, record)
        log = job.log
        for cut, back in [*cuts, (len(log), 0)]:
            first = max(0, min(cut, max(0, replica.position)) - back)
            if slice_ := log[first : cut + 1]:
                node.slices.apply(slice_payload(*slice_))
        if replica.position < len(log):
            node.slices.apply(slice_payload(*log[max(0, replica.position) :]))
        check(node, rules, expected_of_sources(arrivals, rules, SOURCES))

    run()


def test_records_of_other_internal_partitions_move_the_clocks(case: tuple[Node, Rules]) -> None:
    """A record whose row is in another internal partition decides here which later records are late."""
    node, rules = case
    replica = node.replicas.by_partition[0]

    @settings(max_examples=50)
    @given(LOGS, PLACES, st.sets(st.integers(0, 110)))
    def run(records: list[Record], places: list[int], elsewhere: set[int]) -> None:
        replica.rebuild()
        job, arrivals = Job(node), [*zip(places, records, strict=False)]
        for number, (source, record) in enumerate(arrivals):
            job.record(source, record, number in elsewhere)
        for source in range(SOURCES):
            job.marker(source)
        node.slices.apply(slice_payload(*job.log))
        # The keys of the records that are elsewhere are such that no record here has them.
        marked = [
            (source, record._replace(key=b"elsewhere") if number in elsewhere else record)
            for number, (source, record) in enumerate(arrivals)
        ]
        oracle = expected_of_sources(marked, rules, SOURCES)
        here = {window: found for window, found in oracle.items(rules).items() if window[0] != b"elsewhere"}
        assert items(node, replica) == here

    run()


def test_final_windows_never_change_nor_come_back(case: tuple[Node, Rules]) -> None:
    """What an answer says to be final stays as it is until it expires, and an expired window that was deleted stays away."""
    node, rules = case
    replica = node.replicas.by_partition[0]

    @settings(max_examples=25)
    @given(LOGS, PLACES)
    def run(records: list[Record], places: list[int]) -> None:
        replica.rebuild()
        job, arrivals = Job(node), [*zip(places, records, strict=False)]
        node.slices.apply(slice_payload(*job.log))
        final: dict[tuple[bytes, int, int], dict[str, Any]] = {}
        gone: set[tuple[bytes, int, int]] = set()
        for source, record in arrivals:
            job.record(source, record)
            node.slices.apply(slice_payload(job.log[-1]))
            sweep(node, replica)
            found = items(node, replica)
            for window, value in final.items():
                assert found.get(window, (True, value)) == (True, value)
            gone |= final.keys() - found.keys()
            assert not gone & found.keys()
            final = {window: value for window, (is_final, value) in found.items() if is_final}
        check(node, rules, expected_of_sources(arrivals, rules, SOURCES))

    run()


def test_source_partition_without_records_is_named(tmp_path: Path) -> None:
    """No window is final while a source partition has no records, and status names that partition."""
    node = grouped_node(tmp_path, SPECS["tumbling"][1])
    job = Job(node)
    for n in range(40):
        job.record(n % 2, Record(b"a", n * 100, n))
    node.slices.apply(slice_payload(*job.log))

    replica = node.replicas.by_partition[0]
    shown = status_json(node)["partitions"][0]
    assert not any(final for final, _ in items(node, replica).values())
    assert (shown["watermarkSource"], shown["watermark"]) == (2, None)
    assert shown["sourceWatermarks"] == ["1970-01-01T00:00:03.795Z", "1970-01-01T00:00:03.895Z", None]
    node.replicas.close()


def test_clocks_survive_a_restart(tmp_path: Path) -> None:
    """A node that starts again tells the rekey job the clocks of its source positions, and goes on with them."""
    rules, of_view = SPECS["tumbling"]
    node = grouped_node(tmp_path, of_view)
    job = Job(node)
    arrivals = [(n % SOURCES, Record(b"a", n * 4, n)) for n in range(80)]
    for arrival in arrivals[:50]:
        job.record(*arrival)
    node.slices.apply(slice_payload(*job.log))
    before = rekey_positions(node)
    node.replicas.close()

    again = grouped_node(tmp_path, of_view)
    assert rekey_positions(again) == before
    assert [start[1] for start in before[0]["starts"]] == [48 * 4, 49 * 4, 47 * 4]
    sent = len(job.log)
    for arrival in arrivals[50:]:
        job.record(*arrival)
    again.slices.apply(slice_payload(*job.log[sent:]))
    assert isinstance(again.replicas.by_partition[0], RekeyedReplica)
    check(again, rules, expected_of_sources(arrivals, rules, SOURCES))
    again.replicas.close()


def test_envelope_without_a_clock_fails_the_replica(tmp_path: Path) -> None:
    """A record of the internal topic that ends before its clock stops the replica with a sentence."""
    node = grouped_node(tmp_path, SPECS["tumbling"][1])
    stored = ROW_HEADER.pack(0, 0, 1, 0) + encode_envelope(Envelope(0, 0, 0, 0, 1, 0, 0))
    node.slices.apply(slice_payload(SliceRow(MARKER_KEY, stored, ROW, 0)))
    assert "without a clock" in str(node.replicas.by_partition[0].failed)
    node.replicas.close()
