"""Test which requests the client sends to which node, without a network and in virtual time."""

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
from queryable_app.client.operations import KEY_BYTES_PER_REQUEST, KEYS_PER_REQUEST
from queryable_app.client.options import ReadSettings
from queryable_app.client.rows import Row
from queryable_app.errors import Reason
from tests.app.client.fake_view import (
    PLAIN,
    SERVICE,
    FakeView,
    Node,
    client,
    owners,
    read,
    refusal,
    with_placement,
)


@st.composite
def behaviours(draw: st.DrawFn) -> Node:
    """Draw a node; its name is its behaviour."""
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
def test_read_ends_by_its_deadline(view: FakeView, deadline_ms: int) -> None:
    """However the nodes behave, no attempt starts at the deadline or later, and none may last longer."""
    deadline = view.now + deadline_ms / 1000
    with suppress(QueryableTopicError):
        read(view, client(view), read_settings=ReadSettings(deadline_ms=deadline_ms))
    assert all(attempt.started < deadline for attempt in view.attempts)
    assert all(attempt.deadline <= deadline for attempt in view.attempts)
    assert view.now <= deadline + 1e-6


@given(views())
def test_every_replica_is_tried(view: FakeView) -> None:
    """A read fails only after each replica and the service address were tried, and none of them could answer in time."""
    operations = with_placement(view)
    try:
        row = read(view, operations)
    except QueryableTopicError:
        assert {*owners(view), SERVICE} <= set(view.attempted_addresses())
        assert "good" not in {view.nodes[address].name for address in (*owners(view), SERVICE)}
    else:
        assert row is not None
        assert (row.value, row.served_by in ("good", "slow")) == ("value", True)


@given(st.lists(st.sampled_from([f"k{n}" for n in range(30)]), max_size=60), views())
def test_multi_get_keeps_the_order_of_keys(keys: list[str], view: FakeView) -> None:
    """A multi-get returns each key's row or None at its place, or raises an exception for all."""
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


def test_multi_get_sends_keys_to_their_owners() -> None:
    """Each node gets one request, or several for very many keys; all start at the same time."""
    view = FakeView(3, 1)
    operations = with_placement(view)
    view.run_operation(operations.multi_get([f"k{n}" for n in range(100)], PLAIN, None))
    assert sorted(view.attempted_addresses("/v1/multi-get")) == ["http://n0", "http://n1", "http://n2"]
    assert len({attempt.started for attempt in view.attempts}) == 1

    view.attempts.clear()
    view.run_operation(operations.multi_get(["a"] * (KEYS_PER_REQUEST + 1), PLAIN, None))
    assert len(view.attempted_addresses("/v1/multi-get")) == 2

    view.attempts.clear()
    long = "a" * (KEY_BYTES_PER_REQUEST // 4)  # three fit, as base64
    view.run_operation(operations.multi_get([long] * 5 + [long * 5] + ["a"], PLAIN, None))
    assert len(view.attempted_addresses("/v1/multi-get")) == 4


@given(st.lists(st.floats(0, 1), max_size=8))
def test_gather_keeps_the_order_of_operations(seconds: list[float]) -> None:
    """Results are in the order of the operations, whichever ends first."""
    view = FakeView(1, 1)

    def sleep(index: int, until: float) -> Operation[int]:
        while view.now < until:
            yield Step((), until)
        return index

    began = view.now
    results = view.run_operation(gather([sleep(n, began + s) for n, s in enumerate(seconds)]))
    assert results == list(range(len(seconds)))
    assert view.now == pytest.approx(began + max(seconds, default=0))


def test_plain_read_goes_to_the_owner_alone() -> None:
    """A plain read has no parameters, so that nodes answer it in their fast lane."""
    view = FakeView(3, 2)
    view.rows[b"a"] = 1
    read(view, with_placement(view))
    assert [(e.address, e.request.target) for e in view.attempts] == [(owners(view)[0], "/v1/keys/a")]


def test_next_replica_is_tried_at_once() -> None:
    """If the first replica is unreachable or refuses, the client retries on the next one without a pause."""
    view = FakeView(2, 2)
    view.rows[b"a"] = 1
    operations = with_placement(view)
    for spoil in ({"away": True}, {"away": False, "refusals": [refusal(Reason.NOT_AVAILABLE, 1000)]}):
        vars(view.nodes[owners(view)[0]]).update(spoil)
        began = view.now
        assert read(view, operations).served_by == owners(view)[1].removeprefix("http://")  # type: ignore[union-attr]
        assert view.now - began < 0.004
        view.now += 40


def test_overloaded_node_is_retried_after_its_delay() -> None:
    """The client retries after the node's delay, and not before. If the deadline is earlier, the read fails at once."""
    view = FakeView(1, 1)
    operations = with_placement(view)
    view.rows[b"a"] = 1
    for node in view.nodes.values():
        node.refusals = [refusal(Reason.OVERLOADED, 300)]
    began = view.now
    assert read(view, operations) is not None
    assert view.attempts[-1].started - began >= 0.3

    for node in view.nodes.values():
        node.refusals = [refusal(Reason.OVERLOADED, 3000)]
    began = view.now
    with pytest.raises(Overloaded) as caught:
        read(view, operations)
    assert (caught.value.retry_after_ms, view.now - began < 0.1) == (3000, True)


def test_read_waits_for_a_replica_that_will_be_free() -> None:
    """A read waits for an overloaded replica while another one has stopped, or raises the refusal of the stopped one."""
    view = FakeView(2, 2)
    operations = with_placement(view)
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


def test_refusal_without_a_delay_fails_at_once() -> None:
    """A refusal that names no delay is not retried."""
    view = FakeView(2, 2)
    operations = with_placement(view)
    for node in view.nodes.values():
        node.always = refusal(Reason.NOT_AVAILABLE)
    began = view.now
    with pytest.raises(NotAvailable):
        read(view, operations)
    assert view.now - began < 0.1


def test_invalid_request_is_not_retried() -> None:
    """The first node that finds the request invalid ends the read."""
    view = FakeView(3, 3)
    operations = with_placement(view)
    view.nodes[owners(view)[0]].always = refusal(Reason.INVALID_REQUEST)
    with pytest.raises(InvalidRequest):
        read(view, operations)
    assert len(view.attempts) == 1


def test_most_specific_refusal_is_raised() -> None:
    """The refusal of a replica that lags is raised before that of an unreachable one."""
    view = FakeView(2, 2)
    operations = with_placement(view)
    view.nodes[owners(view)[0]].always = refusal(Reason.NOT_FRESH_ENOUGH, 10)
    view.nodes[owners(view)[1]].away = True
    view.nodes[SERVICE].away = True
    with pytest.raises(NotFreshEnough):
        read(view, operations)


def test_service_address_alone_is_enough() -> None:
    """Unreachable nodes cost a connection now and then, and not one with each read."""
    view = FakeView(3, 2)
    view.rows[b"a"] = 1
    operations = client(view)
    for n in range(3):
        view.nodes[f"http://n{n}"].away = True
    for _ in range(600):
        view.now += 0.1
        assert read(view, operations) is not None
    assert view.attempted_addresses().count(SERVICE) == 600
    assert len(view.attempted_addresses()) < 600 + 2 * 10


def test_hanging_node_is_soon_tried_last() -> None:
    """After a few hedges the client reads its keys from the second replica at once."""
    view = FakeView(2, 2)
    view.rows[b"a"] = 1
    operations = with_placement(view)
    view.nodes[owners(view)[0]].hangs = True
    took = []
    for _ in range(40):
        began = view.now
        assert read(view, operations) is not None
        took.append(view.now - began)
    assert max(took) < 0.1
    assert sum(seconds > 0.01 for seconds in took) < 8


def test_hedges_have_a_budget() -> None:
    """If all nodes are slow, most reads are sent once: hedging every read would double the load."""
    view = FakeView(2, 2)
    view.rows[b"a"] = 1
    operations = with_placement(view)
    for node in view.nodes.values():
        node.seconds = 0.3
    for _ in range(300):
        read(view, operations)
    assert len(view.attempted_addresses()) < 300 + 100


def test_write_is_sent_once() -> None:
    """A write that may have arrived is not repeated. One that cannot have arrived is sent to the next node."""
    view = FakeView(2, 2)
    operations = with_placement(view)
    first, second = owners(view)
    view.nodes[first].away = True
    written = view.run_operation(operations.put("a", 1, PLAIN, None))
    assert (written.position, view.attempted_addresses("/v1/records")) == ("0:8", [first, second])

    view.attempts.clear()
    view.run_operation(operations.put("a", 1, PLAIN, None))
    assert view.attempted_addresses("/v1/records") == [second]

    view.nodes[first].away, view.nodes[first].hangs = False, True
    view.now += 60
    view.attempts.clear()
    with pytest.raises(OutcomeUnknown):
        view.run_operation(operations.put("a", 1, PLAIN, None))
    assert len(view.attempted_addresses("/v1/records")) == 1


def test_write_with_an_idempotency_key_is_repeated() -> None:
    """Each attempt has the key. The write goes to the next node if its result is unknown, or if a node that remembers keys is
    away."""
    view = FakeView(2, 2)
    operations = with_placement(view)
    first, second = owners(view)
    for problem in (Reason.DEADLINE_EXCEEDED, Reason.NOT_AVAILABLE):
        view.nodes[first].refusals = [refusal(problem)]
        view.attempts.clear()
        written = view.run_operation(operations.put("a", 1, PLAIN, None, "k-1"))
        assert (written.position, view.attempted_addresses("/v1/records")) == ("0:8", [first, second])
        assert {each.request.idempotency_key for each in view.attempts} == {"k-1"}


def test_result_of_a_repeated_write_may_stay_unknown() -> None:
    """If one attempt may have written, the error says so, whatever the later ones were refused for."""
    view = FakeView(2, 2)
    operations = with_placement(view)
    first, second = owners(view)
    view.nodes[first].always = refusal(Reason.DEADLINE_EXCEEDED)
    view.nodes[second].always = refusal(Reason.FORBIDDEN)
    with pytest.raises(OutcomeUnknown):
        view.run_operation(operations.delete("a", PLAIN, None, "k-1"))


@pytest.mark.parametrize("key", ["", "x" * 256, "new\nline", "schlüssel"])
def test_wrong_idempotency_key_is_refused(key: str) -> None:
    """The client refuses it before it sends anything."""
    view = FakeView(1, 1)
    with pytest.raises(InvalidRequest, match="idempotency_key"):
        view.run_operation(with_placement(view).put("a", 1, PLAIN, None, key))


@pytest.mark.parametrize("reason", [Reason.DEADLINE_EXCEEDED, None])
def test_write_that_may_be_done_raises_outcome_unknown(reason: Reason | None) -> None:
    """The outcome is unknown if Kafka was late, or if another server answered."""
    view = FakeView(1, 1)
    operations = with_placement(view)
    if reason is None:
        view.application = None
    else:
        view.nodes[owners(view)[0]].always = refusal(reason)
    with pytest.raises(OutcomeUnknown):
        view.run_operation(operations.put("a", 1, PLAIN, None))
    assert len(view.attempts) == 1


def test_value_that_json_cannot_express_is_refused() -> None:
    """The client refuses the value before it sends anything."""
    view = FakeView(1, 1)
    operations = with_placement(view)
    for value in (float("nan"), b"bytes", {1, 2}):
        with pytest.raises(InvalidRequest, match=r"^invalid_request: value: "):
            view.run_operation(operations.put("a", value, PLAIN, None))
    assert view.attempts == []


def test_scan_continues_after_a_failure() -> None:
    """A scan continues with the page that failed, and returns each row once."""
    view = FakeView(2, 1)
    view.rows = {b"k%02d" % n: n for n in range(25)}
    operations = with_placement(view)
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


def test_response_of_another_server_is_unreachable() -> None:
    """A response without a node's headers is never taken for a row or for a missing key."""
    view = FakeView(1, 1)
    operations = with_placement(view)
    view.application = None
    with pytest.raises(Unreachable, match="no node of a view"):
        read(view, operations)


def test_hanging_nodes_exceed_the_deadline() -> None:
    """If all nodes hang, the read raises DeadlineExceeded."""
    view = FakeView(2, 2)
    operations = with_placement(view)
    for node in view.nodes.values():
        node.hangs = True
    with pytest.raises(DeadlineExceeded):
        read(view, operations)
