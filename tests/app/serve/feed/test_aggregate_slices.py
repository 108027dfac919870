"""Test slices of an aggregated view on real stores: every record is folded once, however slices are cut and repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.aggregates.rendering import state_renderer
from queryable_app.serve.node import Node
from queryable_app.wire.contributions import ABSENT
from queryable_app.wire.disk_format import ROW_HEADER_SIZE, ReplicaState, decode_row
from queryable_app.wire.row_frames import FrameError
from tests.support.aggregates import contribution_row, results
from tests.support.node import bad, null_key, open_node, slice_payload

COLUMNS = [
    {"name": "n", "op": "count"},
    {"name": "total", "op": "sum", "of": "amount"},
    {"name": "mean", "op": "avg", "of": "price"},
    {"name": "newest", "op": "last", "of": "name"},
]
TYPES = "-lds"

OpenNode = Callable[..., Node]


@pytest.fixture
def node_of(tmp_path: Path) -> Iterator[OpenNode]:
    nodes: list[Node] = []

    def open_(columns: list[dict[str, str]] = COLUMNS, **spec: Any) -> Node:
        view = {"kind": "aggregate", "aggregate": {"columns": columns}}
        nodes.append(open_node(tmp_path, view=view, **spec))
        return nodes[-1]

    yield open_
    for node in nodes:
        node.replicas.close()


def rendered(node: Node) -> dict[bytes, dict[str, Any]]:
    assert node.spec.aggregate is not None
    render = state_renderer(node.spec.aggregate)
    rows = node.replicas.by_partition[0].store.rows()
    return {key: json.loads(render(stored[ROW_HEADER_SIZE:])) for key, stored in rows}


INPUTS = st.tuples(
    st.just(2),
    st.sampled_from((ABSENT, None)) | st.integers(-(2**62), 2**62),
    st.sampled_from((ABSENT, None)) | st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.sampled_from((ABSENT, None)) | st.text(max_size=3).map(str.encode),
)
CUT = st.tuples(st.integers(0, 39), st.integers(1, 15), st.booleans())
"""Where a slice starts, its length, and whether it is applied together with the next one."""
LOG = st.lists(st.tuples(st.sampled_from((b"a", b"b", b"c")), st.none() | INPUTS), min_size=1, max_size=40)


def test_any_cut_and_any_replay_is_the_fold_of_the_log(node_of: OpenNode) -> None:
    """However slices are cut, repeated and applied together, the states are those of each record folded once, and so are the
    counters."""
    node = node_of()
    replica = node.replicas.by_partition[0]

    @settings(max_examples=60)
    @given(LOG, st.lists(CUT, min_size=1, max_size=12))
    def check(log: list[tuple[bytes, Any]], cuts: list[tuple[int, int, bool]]) -> None:
        replica.rebuild()
        rows = [contribution_row(offset, key, TYPES, values) for offset, (key, values) in enumerate(log)]
        end, together = 0, []
        for start, length, waits in [*cuts, (0, len(rows), False)]:
            start = min(start, end, len(rows) - 1)
            end = max(end, start + length)
            together.append(slice_payload(*rows[start : start + length]))
            if not waits:
                node.slices.apply(*together)
                together = []

        assert node.spec.aggregate is not None
        assert rendered(node) == results(node.spec.aggregate, TYPES, log)
        folded = sum(values is not None for _, values in log)
        assert (replica.state.rows, replica.state.dropped) == (folded, len(log) - folded)
        assert (replica.state.deletes, replica.position) == (0, len(log))

    check()


def test_hot_key_is_written_once_in_a_slice(node_of: OpenNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key with nine of ten records costs one state in the batch, and its numbers are exact."""
    node = node_of()
    store = node.replicas.by_partition[0].store
    written: list[bytes] = []

    def apply(puts: Iterable[tuple[bytes, bytes]], *rest: Any) -> None:
        all_puts = list(puts)
        written.extend(key for key, _ in all_puts)
        type(store).apply(store, all_puts, *rest)

    monkeypatch.setattr(store, "apply", apply)
    log = [(b"hot" if n % 10 else b"%d" % n, (2, n, None, None)) for n in range(1000)]
    rows = [contribution_row(n, key, TYPES, values) for n, (key, values) in enumerate(log)]
    node.slices.apply(slice_payload(*rows))
    assert written.count(b"hot") == 1
    assert rendered(node)[b"hot"]["n"] == 900
    assert rendered(node)[b"hot"]["total"] == sum(n for n in range(1000) if n % 10)


def test_row_names_the_last_record_of_its_group(node_of: OpenNode) -> None:
    """A state has the offset and the timestamp of the last record that was folded into it."""
    node = node_of()
    node.slices.apply(
        slice_payload(
            contribution_row(3, b"a", TYPES, (2, 1, 1.0, b"x"), timestamp_ms=70),
            contribution_row(4, b"b", TYPES, (2, 1, 1.0, b"x"), timestamp_ms=60),
            contribution_row(5, b"a", TYPES, (ABSENT, ABSENT, ABSENT, ABSENT), timestamp_ms=50),
        )
    )

    rows = {key: decode_row(stored) for key, stored in node.replicas.by_partition[0].store.rows()}

    assert [(rows[key].offset, rows[key].timestamp_ms, rows[key].expiry_ms) for key in (b"a", b"b")] == [
        (5, 50, 0),
        (4, 60, 0),
    ]


def test_records_that_add_nothing_are_counted(node_of: OpenNode) -> None:
    """Dropped records, bad ones and those without a key move the position and the counters, and create no group."""
    node = node_of([{"name": "n", "op": "count"}])

    node.slices.apply(
        slice_payload(
            contribution_row(0, b"a", "-", None),
            bad(1, b"b", "it is no JSON"),
            null_key(2),
            contribution_row(3, b"c", "-", (2,)),
        )
    )

    replica = node.replicas.by_partition[0]
    assert replica.state == ReplicaState(4, False, rows=1, dropped=1, bad=1, null_keys=1, last_timestamp_ms=7)
    assert rendered(node) == {b"c": {"n": 1}}


def test_counts_survive_a_start(node_of: OpenNode) -> None:
    """A store that is opened again continues with the states that it has."""
    counts = [{"name": "n", "op": "count"}]
    node = node_of(counts)
    node.slices.apply(slice_payload(contribution_row(0, b"a", "-", (2,))))
    node.replicas.close()

    node = node_of(counts)
    node.slices.apply(
        slice_payload(contribution_row(0, b"a", "-", (2,)), contribution_row(1, b"a", "-", (2,)))
    )

    assert rendered(node) == {b"a": {"n": 2}}


def test_malformed_slice_changes_nothing(node_of: OpenNode) -> None:
    """If one contribution of a slice is malformed, or has other types, none of its records is folded."""
    node = node_of([{"name": "total", "op": "sum", "of": "amount"}])
    good = contribution_row(0, b"a", "l", (1,))
    cut = contribution_row(1, b"a", "l", (1,))._replace(stored=good.stored[:-1])
    other = contribution_row(1, b"a", "d", (1.0,))
    for wrong in (cut, other):
        with pytest.raises(FrameError):
            node.slices.apply(slice_payload(good, wrong))

    replica = node.replicas.by_partition[0]
    assert (replica.position, rendered(node), replica.failed) == (-1, {}, None)


def test_states_of_other_types_fail_the_replica(node_of: OpenNode) -> None:
    """If the stored states do not fit the contributions, the replica fails with advice, and its rows stay readable."""
    node = node_of([{"name": "total", "op": "sum", "of": "amount"}])
    node.slices.apply(slice_payload(contribution_row(0, b"a", "l", (1,))))

    node.slices.apply(slice_payload(contribution_row(1, b"a", "d", (1.0,))))

    replica = node.replicas.by_partition[0]
    assert replica.failed is not None
    assert "make a new revision of the view" in replica.failed
    assert (replica.position, rendered(node)) == (1, {b"a": {"total": 1}})


def test_bad_record_with_fail_stops_before_it(node_of: OpenNode) -> None:
    """With onBadRecord Fail, records before the bad one are folded, and those after it are not."""
    node = node_of([{"name": "n", "op": "count"}], onBadRecord="Fail")

    node.slices.apply(
        slice_payload(
            contribution_row(0, b"a", "-", (2,)), bad(1, b"b", "no"), contribution_row(2, b"a", "-", (2,))
        )
    )

    assert (node.replicas.by_partition[0].position, rendered(node)) == (1, {b"a": {"n": 1}})
