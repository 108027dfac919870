"""Test the headers that plain reads of a replica share for some milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from queryable_app.errors import Failure
from queryable_app.serve.node import Node
from queryable_app.serve.reads import point
from queryable_app.serve.reads.point import Reads
from tests.support.node import open_node, put, slice_payload


class Clock:
    """Stand in for the monotonic clock."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(point, "monotonic_ms", clock)
    return clock


@pytest.fixture
def node(tmp_path: Path, clock: Clock) -> Iterator[Node]:
    """Yield a node whose replica held the whole log when the clock started."""
    node = open_node(tmp_path)
    node.slices.apply(slice_payload(put(0, b"a", b"1")))
    node.replicas.by_partition[0].note_end_offset(clock.now_ms, 1)
    yield node
    node.replicas.close()


def header(reads: Reads, name: str) -> bytes:
    answer = reads.point(b"a", reads.defaults)
    return dict(answer.header_list())[name.encode()]


def test_lag_is_never_too_small(node: Node, clock: Clock) -> None:
    """At each moment the header's lag is the true one, or up to 5 ms more."""
    reads, since = Reads(node), clock.now_ms

    for _ in range(50):
        assert 0 <= int(header(reads, "qt-lag-ms")) - (clock.now_ms - since) <= 5
        clock.now_ms += 1


def test_another_position_is_in_the_next_header(node: Node) -> None:
    """A read after a slice states the new position, within the same millisecond."""
    reads = Reads(node)
    assert header(reads, "qt-position") == b"0:1"

    node.slices.apply(slice_payload(put(1, b"b", b"2")))

    assert header(reads, "qt-position") == b"0:2"


def test_lag_that_exceeds_the_bound_is_refused(node: Node, clock: Clock) -> None:
    """The resource's bound on the lag holds at each moment, however few milliseconds are left of it."""
    node.apply_read_settings(replace(node.read_settings, max_lag_ms=20))
    reads = Reads(node)
    assert reads.point(b"a", reads.defaults).status == 200

    clock.now_ms += 21

    with pytest.raises(Failure, match="behind"):
        reads.point(b"a", reads.defaults)
