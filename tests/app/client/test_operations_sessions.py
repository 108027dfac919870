"""Test that a session never reads backwards, with nodes at different positions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queryable_app.client.exceptions import (
    NotFreshEnough,
)
from queryable_app.client.options import ReadSettings
from queryable_app.client.session import SessionPositions
from queryable_app.wire.partitioners import partition_for
from tests.app.client.fake_view import PLAIN, SERVICE, FakeView, owners, with_placement


def test_session_requires_a_position_only_if_needed() -> None:
    """A session sends the plain read first, and at-least if the replica lags. A fresher replica raises the floor."""
    view = FakeView(1, 1)
    view.rows[b"a"] = 1
    operations = with_placement(view)
    session = SessionPositions({})
    partition = partition_for(b"a", "murmur2", 6)

    view.run_operation(operations.get("a", False, PLAIN, session))
    assert session.seen[partition] == 100
    view.nodes[owners(view)[0]].position = 99
    view.nodes[SERVICE].position = 101
    view.attempts.clear()
    view.run_operation(operations.get("a", False, PLAIN, session))
    targets = [attempt.request.target for attempt in view.attempts]
    assert targets[0] == "/v1/keys/a"
    assert targets[1].startswith(f"/v1/keys/a?consistency=at-least&min-position={partition}:100&deadline-ms=")
    assert session.seen[partition] == 101


@given(st.lists(st.lists(st.integers(1, 50), min_size=3, max_size=3), min_size=1, max_size=12))
def test_session_never_takes_an_older_response(positions: list[list[int]]) -> None:
    """At any positions of the replicas, a read is never behind an earlier one."""
    view = FakeView(2, 2)
    view.rows[b"a"] = 1
    operations = with_placement(view)
    session = SessionPositions({})
    seen = 0
    for standing in positions:
        for node, position in zip(view.nodes.values(), standing, strict=True):
            node.position = position
        try:
            row = view.run_operation(operations.get("a", False, ReadSettings(deadline_ms=200), session))
        except NotFreshEnough:
            assert max(standing) < seen
            continue
        assert row is not None
        now_at = int(row.position.split(",")[0].split(":")[1])
        assert now_at >= seen
        seen = now_at


def test_session_keeps_its_bound() -> None:
    """If the plain response is from a replica that lags, the session requires the bound and the position."""
    view = FakeView(2, 2)
    view.rows[b"a"] = 1
    operations = with_placement(view)
    session = SessionPositions({p: 150 for p in range(6)})
    for address in (owners(view)[1], SERVICE):
        view.nodes[address].position = 150
    read_settings = ReadSettings(max_lag_ms=5)
    row = view.run_operation(operations.get("a", False, read_settings, session))
    assert row is not None
    assert row.served_by == owners(view)[1].removeprefix("http://")
    first, *others = (attempt.request.target for attempt in view.attempts)
    partition = partition_for(b"a", "murmur2", 6)
    both = f"/v1/keys/a?consistency=at-least&max-lag-ms=5&min-position={partition}:150&deadline-ms="
    assert first == "/v1/keys/a?max-lag-ms=5"
    assert others
    assert all(target.startswith(both) for target in others)


def test_session_holds_in_every_partition_of_a_response() -> None:
    """If a key may be in several partitions and one of them lags behind the session, the client reads again."""
    view = FakeView(2, 2)
    view.rows[b"a"], view.mixed = 1, True
    operations = with_placement(view)
    elsewhere = (partition_for(b"a", "murmur2", 6) + 1) % 6
    session = SessionPositions({elsewhere: 150})
    view.nodes[owners(view)[1]].position = 150
    row = view.run_operation(operations.get("a", False, PLAIN, session))
    assert row is not None
    assert row.served_by == owners(view)[1].removeprefix("http://")
    assert f"min-position={elsewhere}:150" in view.attempts[1].request.target


def test_session_requires_other_positions_before_it_trusts_a_missing_key() -> None:
    """A record in another partition may show a partitioner mismatch. Once all nodes know it, plain reads are enough."""
    view = FakeView(2, 2)
    operations = with_placement(view)
    partition = partition_for(b"a", "murmur2", 6)
    elsewhere = (partition + 1) % 6
    session = SessionPositions({elsewhere: 50})

    assert view.run_operation(operations.get("a", False, PLAIN, session)) is None
    first, again = (attempt.request.target for attempt in view.attempts)
    assert first == "/v1/keys/a"
    assert again.startswith(f"/v1/keys/a?consistency=at-least&min-position={elsewhere}:50&deadline-ms=")

    view.attempts.clear()
    assert view.run_operation(operations.get("a", False, PLAIN, session)) is None
    assert len(view.attempts) == 2
    view.now += 1.1
    view.attempts.clear()
    assert view.run_operation(operations.get("a", False, PLAIN, session)) is None
    assert [attempt.request.target for attempt in view.attempts] == ["/v1/keys/a"]


def test_session_requires_its_writes_before_it_trusts_a_missing_key_of_many() -> None:
    """A multi-get with a missing key is repeated with the position of the write. One that finds all its keys is not."""
    view = FakeView(1, 1)
    view.rows[b"a"] = 1
    operations = with_placement(view)
    session = SessionPositions({})
    view.run_operation(operations.put("b", 1, PLAIN, session))

    view.attempts.clear()
    view.run_operation(operations.multi_get(["a"], PLAIN, session))
    assert len(view.attempts) == 1
    view.attempts.clear()
    view.run_operation(operations.multi_get(["a", "missing"], PLAIN, session))
    assert ["min-position=0:8" in attempt.request.target for attempt in view.attempts] == [False, True]
