"""What the client asks whom, without a network: the core against nodes that behave as told, on a clock that is set."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from queryable_app.client.attempts import Operation, Step, gather
from queryable_app.client.exceptions import (
    DeadlineExceeded,
    InvalidRequest,
    NotAvailable,
    NotFreshEnough,
    OutcomeUnknown,
    Overloaded,
    QueryableTopicError,
    Unreachable,
)
from queryable_app.client.operations import KEYS_PER_REQUEST
from queryable_app.client.options import ReadSettings
from queryable_app.client.rows import Row
from queryable_app.errors import Reason
from tests.app.client.fake_view import PLAIN, SERVICE, FakeView, Node, client, knowing, owners, read, refusal


@st.composite
def behaviours(draw: st.DrawFn) -> Node:
    """A node's; its name says which."""
    kind = draw(st.sampled_from(["good", "slow", "away", "hangs", "refuses"]))
    node = Node(kind, away=kind == "away", hangs=kind == "hangs")
    node.seconds = draw(st.floats(0.3, 5) if kind == "slow" else st.floats(0.0005, 0.02))
    if kind == "refuses":
        reasons = [
            Reason.NOT_AVAILABLE,
            Reason.NOT_FRESH_ENOUGH,
            Reason.WRONG_OWNER,
            Reason.OVERLOADED,
            Reason.INTERNAL,
            Reason.DEADLINE_EXCEEDED,
        ]
        node.always = refusal(draw(st.sampled_from(reasons)), draw(st.sampled_from([None, 10, 500, 10**6])))
    return node


@st.composite
def views(draw: st.DrawFn) -> FakeView:
    nodes = draw(st.integers(1, 5))
    view = FakeView(nodes, draw(st.integers(1, nodes)))
    view.rows[b"a"] = "value"
    for address in view.nodes:
        view.nodes[address] = draw(behaviours())
    return view


@given(views(), st.integers(20, 3000))
def test_a_read_ends_by_its_deadline(view: FakeView, deadline_ms: int) -> None:
    """Whatever the nodes do: nobody is asked at the deadline or later, and every exchange has it."""
    deadline = view.now + deadline_ms / 1000
    with suppress(QueryableTopicError):
        read(view, client(view), asked=ReadSettings(deadline_ms=deadline_ms))
    assert all(attempt.started < deadline for attempt in view.asked)
    assert all(attempt.deadline <= deadline for attempt in view.asked)
    assert view.now <= deadline + 1e-6


@given(views())
def test_every_copy_is_tried(view: FakeView) -> None:
    """Before a read fails each owner was asked, and so was the service address; none of them would have answered in time."""
    operations = knowing(view)
    try:
        row = read(view, operations)
    except QueryableTopicError:
        assert {*owners(view), SERVICE} <= set(view.addresses_asked())
        assert "good" not in {view.nodes[address].name for address in (*owners(view), SERVICE)}
    else:
        assert row is not None
        assert (row.value, row.served_by in ("good", "slow")) == ("value", True)


@given(st.lists(st.sampled_from([f"k{n}" for n in range(30)]), max_size=60), views())
def test_many_keys_keep_their_order(keys: list[str], view: FakeView) -> None:
    """From any nodes in any order: each key's row or None at its place, or an exception for all."""
    view.rows = {b"k%d" % n: n for n in range(0, 30, 2)}
    operations = client(view)
    try:
        rows = view.run_operation(operations.multi_get(keys, PLAIN, None))
    except QueryableTopicError:
        assume("good" not in {node.name for node in view.nodes.values()})
    else:
        assert [(row.key, row.value) if isinstance(row, Row) else row for row in rows] == [
            (key, int(key[1:])) if int(key[1:]) % 2 == 0 else None for key in keys
        ]


def test_many_keys_go_to_their_owners() -> None:
    """One request a node, and several where there are very many; all begin at once."""
    view = FakeView(3, 1)
    operations = knowing(view)
    view.run_operation(operations.multi_get([f"k{n}" for n in range(100)], PLAIN, None))
    assert sorted(view.addresses_asked("/v1/multi-get")) == ["http://n0", "http://n1", "http://n2"]
    assert len({attempt.started for attempt in view.asked}) == 1

    view.asked.clear()
    view.run_operation(operations.multi_get(["a"] * (KEYS_PER_REQUEST + 1), PLAIN, None))
    assert len(view.addresses_asked("/v1/multi-get")) == 2


@given(st.lists(st.floats(0, 1), max_size=8))
def test_operations_together_keep_their_order(seconds: list[float]) -> None:
    """Whichever ends first, results are where their operations were."""
    view = FakeView(1, 1)

    def sleep(index: int, until: float) -> Operation[int]:
        while view.now < until:
            yield Step((), until)
        return index

    began = view.now
    results = view.run_operation(gather([sleep(n, began + s) for n, s in enumerate(seconds)]))
    assert results == list(range(len(seconds)))
    assert view.now == pytest.approx(began + max(seconds, default=0))


def test_the_owner_is_asked_and_nobody_else() -> None:
    """A plain read has no parameters, so that nodes answer it in their fast lane."""
    view = FakeView(3, 2)
    view.rows[b"a"] = 1
    read(view, knowing(view))
    assert [(e.address, e.request.target) for e in view.asked] == [(owners(view)[0], "/v1/keys/a")]


def test_the_next_copy_is_asked_at_once() -> None:
    """When a connection is refused, or the first one refuses: there is nothing to wait for."""
    view = FakeView(2, 2)
    view.rows[b"a"] = 1
    operations = knowing(view)
    for spoil in ({"away": True}, {"away": False, "refusals": [refusal(Reason.NOT_AVAILABLE, 1000)]}):
        vars(view.nodes[owners(view)[0]]).update(spoil)
        began = view.now
        assert read(view, operations).served_by == owners(view)[1].removeprefix("http://")  # type: ignore[union-attr]
        assert view.now - began < 0.004
        view.now += 40


def test_overload_is_honoured() -> None:
    """Asked again after as long as the node said, and not before; with no time for it, the read fails at once."""
    view = FakeView(1, 1)
    operations = knowing(view)
    view.rows[b"a"] = 1
    for node in view.nodes.values():
        node.refusals = [refusal(Reason.OVERLOADED, 300)]
    began = view.now
    assert read(view, operations) is not None
    assert view.asked[-1].started - began >= 0.3

    for node in view.nodes.values():
        node.refusals = [refusal(Reason.OVERLOADED, 3000)]
    began = view.now
    with pytest.raises(Overloaded) as caught:
        read(view, operations)
    assert (caught.value.retry_after_ms, view.now - began < 0.1) == (3000, True)


def test_one_copy_that_comes_back_is_waited_for() -> None:
    """Though another has stopped, which is what is said when the first does not come."""
    view = FakeView(2, 2)
    operations = knowing(view)
    view.rows[b"a"] = 1
    stopped, busy = (view.nodes[address] for address in owners(view))
    stopped.always = refusal(Reason.NOT_FRESH_ENOUGH)
    view.nodes[SERVICE].always = refusal(Reason.NOT_AVAILABLE, 10)
    busy.refusals = [refusal(Reason.OVERLOADED, 200)]
    began = view.now
    assert read(view, operations).served_by == busy.name  # type: ignore[union-attr]
    assert 0.2 < view.now - began < 0.3

    busy.always = refusal(Reason.OVERLOADED, 5000)
    with pytest.raises(NotFreshEnough):
        read(view, operations)


def test_what_no_time_mends_fails_at_once() -> None:
    """A stopped copy names no time to come back."""
    view = FakeView(2, 2)
    operations = knowing(view)
    for node in view.nodes.values():
        node.always = refusal(Reason.NOT_AVAILABLE)
    began = view.now
    with pytest.raises(NotAvailable):
        read(view, operations)
    assert view.now - began < 0.1


def test_the_callers_mistake_is_nobody_elses_to_answer() -> None:
    """One node says so, and that is it."""
    view = FakeView(3, 3)
    operations = knowing(view)
    view.nodes[owners(view)[0]].always = refusal(Reason.INVALID_REQUEST)
    with pytest.raises(InvalidRequest):
        read(view, operations)
    assert len(view.asked) == 1


def test_the_refusal_that_tells_most_is_raised() -> None:
    """Of a copy that is behind and one that is away, the first."""
    view = FakeView(2, 2)
    operations = knowing(view)
    view.nodes[owners(view)[0]].always = refusal(Reason.NOT_FRESH_ENOUGH, 10)
    view.nodes[owners(view)[1]].away = True
    view.nodes[SERVICE].away = True
    with pytest.raises(NotFreshEnough):
        read(view, operations)


def test_a_service_address_alone_does() -> None:
    """Nodes that cannot be reached from here cost a connection now and then, not one with each read."""
    view = FakeView(3, 2)
    view.rows[b"a"] = 1
    operations = client(view)
    for n in range(3):
        view.nodes[f"http://n{n}"].away = True
    for _ in range(600):
        view.now += 0.1
        assert read(view, operations) is not None
    assert view.addresses_asked().count(SERVICE) == 600
    assert len(view.addresses_asked()) < 600 + 2 * 10


def test_a_node_that_hangs_is_asked_last_soon() -> None:
    """After a few hedges its keys are read from their second copy without waiting for the first."""
    view = FakeView(2, 2)
    view.rows[b"a"] = 1
    operations = knowing(view)
    view.nodes[owners(view)[0]].hangs = True
    took = []
    for _ in range(40):
        began = view.now
        assert read(view, operations) is not None
        took.append(view.now - began)
    assert max(took) < 0.1
    assert sum(seconds > 0.01 for seconds in took) < 8


def test_hedges_have_a_budget() -> None:
    """When all nodes are slow, most reads are asked once: hedging everything would double the load."""
    view = FakeView(2, 2)
    view.rows[b"a"] = 1
    operations = knowing(view)
    for node in view.nodes.values():
        node.seconds = 0.3
    for _ in range(300):
        read(view, operations)
    assert len(view.addresses_asked()) < 300 + 100


def test_a_write_is_sent_once() -> None:
    """One that may have arrived is not repeated; one that surely did not is, elsewhere."""
    view = FakeView(2, 2)
    operations = knowing(view)
    first, second = owners(view)
    view.nodes[first].away = True
    written = view.run_operation(operations.put("a", 1, PLAIN, None))
    assert (written.position, view.addresses_asked("/v1/records")) == ("0:8", [first, second])

    view.asked.clear()
    view.run_operation(operations.put("a", 1, PLAIN, None))
    assert view.addresses_asked("/v1/records") == [second]

    view.nodes[first].away, view.nodes[first].hangs = False, True
    view.now += 60
    view.asked.clear()
    with pytest.raises(OutcomeUnknown):
        view.run_operation(operations.put("a", 1, PLAIN, None))
    assert len(view.addresses_asked("/v1/records")) == 1


@pytest.mark.parametrize("reason", [Reason.DEADLINE_EXCEEDED, None])
def test_a_write_that_may_have_been_done_says_so(reason: Reason | None) -> None:
    """When Kafka was late, and when what answered is no node."""
    view = FakeView(1, 1)
    operations = knowing(view)
    if reason is None:
        view.application = None
    else:
        view.nodes[owners(view)[0]].always = refusal(reason)
    with pytest.raises(OutcomeUnknown):
        view.run_operation(operations.put("a", 1, PLAIN, None))
    assert len(view.asked) == 1


def test_a_value_that_json_cannot_say_is_refused() -> None:
    """Before anyone is asked."""
    view = FakeView(1, 1)
    operations = knowing(view)
    for value in (float("nan"), b"bytes", {1, 2}):
        with pytest.raises(InvalidRequest, match=r"^invalid_request: value: "):
            view.run_operation(operations.put("a", value, PLAIN, None))
    assert view.asked == []


def test_a_scan_goes_on_after_a_failure() -> None:
    """With the page that failed; no row is lost or comes twice."""
    view = FakeView(2, 1)
    view.rows = {b"k%02d" % n: n for n in range(25)}
    operations = knowing(view)
    scan = operations.scan(PLAIN, "asc", None, 10)
    view.run_operation(operations.next_page(scan, None))
    for node in view.nodes.values():
        node.away = True
    with pytest.raises(Unreachable):
        view.run_operation(operations.next_page(scan, None))
    for node in view.nodes.values():
        node.away = False
    while not scan.ended:
        view.run_operation(operations.next_page(scan, None))
    assert [row.value for row in scan.ready] == list(range(25))


def test_what_is_no_node_is_said_to_be_none() -> None:
    """An answer without a node's marks, or one that is cut, is never taken for a row or for a missing key."""
    view = FakeView(1, 1)
    operations = knowing(view)
    view.application = None
    with pytest.raises(Unreachable, match="no node of a view"):
        read(view, operations)


def test_too_late_is_its_own_failure() -> None:
    """When everyone hangs."""
    view = FakeView(2, 2)
    operations = knowing(view)
    for node in view.nodes.values():
        node.hangs = True
    with pytest.raises(DeadlineExceeded):
        read(view, operations)
