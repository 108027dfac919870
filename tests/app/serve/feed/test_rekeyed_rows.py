"""Test slices of a rekeyed view on real stores: every row of the source is folded once, whatever the jobs have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.aggregates.rendering import state_renderer
from queryable_app.serve.node import Node
from queryable_app.serve.store.rekeyed_replica import RekeyedReplica
from queryable_app.wire import contributions
from queryable_app.wire.disk_format import ROW_HEADER, ROW_HEADER_SIZE
from queryable_app.wire.envelopes import MARKER_KEY, Envelope, encode_envelope
from queryable_app.wire.row_frames import ROW, SliceRow
from tests.support.node import open_node, slice_payload

VIEW = {
    "kind": "aggregate",
    "aggregate": {
        "groupBy": ["page"],
        "columns": [{"name": "n", "op": "count"}, {"name": "ms", "op": "sum", "of": "ms"}],
    },
}


def rekeyed_node(directory: Path) -> Node:
    return open_node(directory, view=VIEW, settings={"group_key_format": "string"})


def envelope_row(offset: int, key: bytes, envelope: Envelope, ms: int | None = None) -> SliceRow:
    """Return a row of the internal topic as the writer sends it; without `ms` a marker."""
    contribution = b"" if ms is None else contributions.encode("-l", 0, 0, 5, (2, ms))[ROW_HEADER_SIZE:]
    stored = ROW_HEADER.pack(0, offset, 1, 0) + encode_envelope(envelope, contribution)
    return SliceRow(key, stored, ROW, offset)


def rendered(node: Node) -> dict[bytes, Any]:
    assert node.spec.aggregate is not None
    render = state_renderer(node.spec.aggregate)
    rows = node.replicas.by_partition[0].store.rows()
    return {key: json.loads(render(stored[ROW_HEADER_SIZE:])) for key, stored in rows}


def run_of(
    source: list[tuple[bytes, int]], run: int, start: int, stop: int
) -> list[tuple[bytes, Envelope, int | None]]:
    """Return what a run writes from the source offset `start` up to `stop`."""
    written: list[tuple[bytes, Envelope, int | None]] = [
        (MARKER_KEY, Envelope(0, start, 0, 0, run, 0, 0), None)
    ]
    for offset in range(start, stop):
        key, ms = source[offset]
        written.append((key, Envelope(0, offset, 0, 1, run, len(written), 7), ms))
    written.append((MARKER_KEY, Envelope(0, stop, 0, 0, run, len(written), 0), None))
    return written


SOURCE = st.lists(st.tuples(st.sampled_from((b"a", b"b")), st.integers(-9, 9)), min_size=1, max_size=15)


def test_numbers_are_those_of_the_source_whatever_runs_wrote(tmp_path: Path) -> None:
    """Runs that overlap and lose records, in slices that are cut and repeated: the sums are those of the source records
    before the source position."""
    node = rekeyed_node(tmp_path)
    replica = node.replicas.by_partition[0]
    assert isinstance(replica, RekeyedReplica)

    @settings(max_examples=60)
    @given(
        SOURCE,
        st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(0, 20)), max_size=6),
        st.lists(st.tuples(st.integers(0, 60), st.integers(1, 15)), max_size=12),
    )
    def check(
        source: list[tuple[bytes, int]], runs: list[tuple[int, int, int]], cuts: list[tuple[int, int]]
    ) -> None:
        replica.rebuild()
        log: list[tuple[bytes, Envelope, int | None]] = []
        for run, (start, length, lost) in enumerate(runs):
            start = min(start, len(source))
            written = run_of(source, run, start, min(len(source), start + length))
            log += [*written[:lost], *written[lost + 1 :]]
        log += run_of(source, 100, 0, len(source))
        rows = [envelope_row(offset, *each) for offset, each in enumerate(log)]
        for first, length in [*cuts, (0, len(rows))]:
            first = min(first, max(0, replica.position), len(rows) - 1)
            node.slices.apply(slice_payload(*rows[first : first + length]))
            (position,) = replica.source_offsets
            expected: dict[bytes, dict[str, int]] = {}
            for key, ms in source[:position]:
                group = expected.setdefault(key, {"n": 0, "ms": 0})
                group["n"] += 1
                group["ms"] += ms
            assert rendered(node) == expected
            assert replica.state.rows == position

        assert replica.source_offsets == (len(source),)

    check()
    node.replicas.close()


def test_foreign_record_fails_the_replica(tmp_path: Path) -> None:
    """A record that the job did not write stops the replica with a sentence, and changes no number."""
    node = rekeyed_node(tmp_path)
    replica = node.replicas.by_partition[0]
    node.slices.apply(slice_payload(SliceRow(b"a", ROW_HEADER.pack(0, 0, 1, 0) + b"{}", ROW, 0)))
    assert replica.failed is not None
    assert "did not write" in replica.failed
    assert rendered(node) == {}
    node.replicas.close()


def test_markers_are_no_partitioner_mismatches(tmp_path: Path) -> None:
    """Markers go to every partition, and reads still find a key in its own partition only."""
    node = rekeyed_node(tmp_path)
    row = envelope_row(0, MARKER_KEY, Envelope(0, 0, 0, 0, 1, 0, 0))
    node.slices.apply(slice_payload(row, mismatches_murmur2=1, mismatches_crc32=1, mismatches_fnv1a=1))
    assert node.replicas.partitioning.algorithm == "murmur2"
    assert node.replicas.mismatches == (0, 0, 0)
    node.replicas.close()
