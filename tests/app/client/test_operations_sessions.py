"""What a session asks for so that it never reads backwards: the core against nodes that stand at different positions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queryable_app.client.exceptions import (
    NotFreshEnough,
)
from queryable_app.client.options import ReadSettings
from queryable_app.client.session import SessionPositions
from queryable_app.wire.partitioners import partition_for
from tests.app.client.fake_view import PLAIN, SERVICE, FakeView, knowing, owners


def test_a_session_asks_for_more_only_when_it_must() -> None:
    """The plain read first; at-least when its copy is behind; a fresher copy afterwards raises the floor."""
    view = FakeView(1, 1)
    view.rows[b"a"] = 1
    operations = knowing(view)
    session = SessionPositions({})
    partition = partition_for(b"a", "murmur2", 6)

    view.run_operation(operations.get("a", False, PLAIN, session))
    assert session.seen[partition] == 100
    view.nodes[owners(view)[0]].position = 99
    view.nodes[SERVICE].position = 101
    view.asked.clear()
    view.run_operation(operations.get("a", False, PLAIN, session))
    targets = [attempt.request.target for attempt in view.asked]
    assert targets[0] == "/v1/keys/a"
    assert targets[1].startswith(f"/v1/keys/a?consistency=at-least&min-position={partition}:100&deadline-ms=")
    assert session.seen[partition] == 101


@given(st.lists(st.lists(st.integers(1, 50), min_size=3, max_size=3), min_size=1, max_size=12))
def test_a_session_never_takes_an_older_answer(positions: list[list[int]]) -> None:
    """However the copies stand with each read: what it answers is never behind what it answered before."""
    view = FakeView(2, 2)
    view.rows[b"a"] = 1
    operations = knowing(view)
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


def test_a_session_keeps_its_bound() -> None:
    """When its plain answer is from a copy that is behind, it asks for the bound and for the position."""
    view = FakeView(2, 2)
    view.rows[b"a"] = 1
    operations = knowing(view)
    session = SessionPositions({p: 150 for p in range(6)})
    for address in (owners(view)[1], SERVICE):
        view.nodes[address].position = 150
    asked = ReadSettings(max_lag_ms=5)
    row = view.run_operation(operations.get("a", False, asked, session))
    assert row is not None
    assert row.served_by == owners(view)[1].removeprefix("http://")
    first, *others = (attempt.request.target for attempt in view.asked)
    partition = partition_for(b"a", "murmur2", 6)
    both = f"/v1/keys/a?consistency=at-least&max-lag-ms=5&min-position={partition}:150&deadline-ms="
    assert first == "/v1/keys/a?max-lag-ms=5"
    assert others
    assert all(target.startswith(both) for target in others)


def test_a_session_holds_in_every_partition_that_an_answer_is_of() -> None:
    """Where a key may be in several, one of them behind what the session has seen is enough to ask again."""
    view = FakeView(2, 2)
    view.rows[b"a"], view.mixed = 1, True
    operations = knowing(view)
    elsewhere = (partition_for(b"a", "murmur2", 6) + 1) % 6
    session = SessionPositions({elsewhere: 150})
    view.nodes[owners(view)[1]].position = 150
    row = view.run_operation(operations.get("a", False, PLAIN, session))
    assert row is not None
    assert row.served_by == owners(view)[1].removeprefix("http://")
    assert f"min-position={elsewhere}:150" in view.asked[1].request.target


def test_a_session_names_a_position_elsewhere_before_it_believes_that_a_key_is_absent() -> None:
    """The record there may show that keys are placed otherwise. Once it was answered, and all nodes know, it costs nothing."""
    view = FakeView(2, 2)
    operations = knowing(view)
    partition = partition_for(b"a", "murmur2", 6)
    elsewhere = (partition + 1) % 6
    session = SessionPositions({elsewhere: 50})

    assert view.run_operation(operations.get("a", False, PLAIN, session)) is None
    first, again = (attempt.request.target for attempt in view.asked)
    assert first == "/v1/keys/a"
    assert again.startswith(f"/v1/keys/a?consistency=at-least&min-position={elsewhere}:50&deadline-ms=")

    view.asked.clear()
    assert view.run_operation(operations.get("a", False, PLAIN, session)) is None
    assert len(view.asked) == 2
    view.now += 1.1
    view.asked.clear()
    assert view.run_operation(operations.get("a", False, PLAIN, session)) is None
    assert [attempt.request.target for attempt in view.asked] == ["/v1/keys/a"]


def test_a_session_names_what_it_wrote_before_it_believes_that_one_of_many_keys_is_absent() -> None:
    """A multi-get is repeated with the position of the write; one that finds all of its keys is not."""
    view = FakeView(1, 1)
    view.rows[b"a"] = 1
    operations = knowing(view)
    session = SessionPositions({})
    view.run_operation(operations.put("b", 1, PLAIN, session))

    view.asked.clear()
    view.run_operation(operations.multi_get(["a"], PLAIN, session))
    assert len(view.asked) == 1
    view.asked.clear()
    view.run_operation(operations.multi_get(["a", "nobody"], PLAIN, session))
    assert ["min-position=0:8" in attempt.request.target for attempt in view.asked] == [False, True]
