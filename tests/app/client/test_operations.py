"""What the client asks whom, without a network: the core against nodes that behave as told, on a clock that is set."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

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
from queryable_app.client.operations import KEYS_AT_ONCE, Operations
from queryable_app.client.options import Asked
from queryable_app.client.rows import Row
from queryable_app.client.session import Positions
from queryable_app.client.steps import Operation, Step, together
from queryable_app.errors import Reason
from queryable_app.partitioners import partition_for
from tests.app.client.fake_view import SERVICE, FakeView, Node, refusal

PLAIN = Asked()


def client(view: FakeView) -> Operations:
    return Operations([SERVICE], view.clock, Random(1))


def read(view: FakeView, operations: Operations, key: str = "a", asked: Asked = PLAIN) -> Row | None:
    return view.carry_out(operations.get(key, False, asked, None))


def owners(view: FakeView, key: str = "a") -> list[str]:
    return view.owners[partition_for(key.encode(), "murmur2", len(view.owners))]


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


def knowing(view: FakeView) -> Operations:
    """A client that knew the placement before the nodes became what they are."""
    operations = client(view)
    nodes = dict(view.nodes)
    view.nodes = {address: Node("good") for address in nodes}
    read(view, operations)
    view.nodes = nodes
    view.asked.clear()
    return operations


@given(views(), st.integers(20, 3000))
def test_a_read_ends_by_its_deadline(view: FakeView, deadline_ms: int) -> None:
    """Whatever the nodes do: nobody is asked at the deadline or later, and every exchange has it."""
    deadline = view.now + deadline_ms / 1000
    with suppress(QueryableTopicError):
        read(view, client(view), asked=Asked(deadline_ms=deadline_ms))
    assert all(exchange.started < deadline for exchange in view.asked)
    assert all(exchange.deadline <= deadline for exchange in view.asked)
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
        rows = view.carry_out(operations.multi_get(keys, PLAIN, None))
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
    view.carry_out(operations.multi_get([f"k{n}" for n in range(100)], PLAIN, None))
    assert sorted(view.addresses_asked("/v1/multi-get")) == ["http://n0", "http://n1", "http://n2"]
    assert len({exchange.started for exchange in view.asked}) == 1

    view.asked.clear()
    view.carry_out(operations.multi_get(["a"] * (KEYS_AT_ONCE + 1), PLAIN, None))
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
    results = view.carry_out(together([sleep(n, began + s) for n, s in enumerate(seconds)]))
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


def test_a_placement_is_fetched_once() -> None:
    """Though many requests need it; one that changes is waited for by the one that fetches it, and nobody else."""
    view = FakeView(3, 1)
    view.rows[b"a"] = 1
    operations = client(view)
    view.nodes[SERVICE].seconds = 0.03
    view.carry_out(together([operations.get("a", False, PLAIN, None) for _ in range(20)]))
    assert view.addresses_asked("/v1/placement") == [SERVICE]

    view.now += 31
    view.asked.clear()
    began = view.now
    view.carry_out(together([operations.get("a", False, PLAIN, None) for _ in range(20)]))
    assert view.addresses_asked("/v1/placement") == [SERVICE]
    assert [e.started == began for e in view.asked if e.request.target == "/v1/keys/a"].count(True) == 19


def test_a_newer_epoch_is_followed() -> None:
    """The answer that shows it is taken; the next read has the new placement, and asks once for it."""
    view = FakeView(3, 1)
    operations = knowing(view)
    view.now += 1
    view.epoch, view.owners = 2, [["http://n2"] for _ in view.owners]

    read(view, operations)
    view.asked.clear()
    read(view, operations)
    read(view, operations)
    assert [(e.address, e.request.target) for e in view.asked] == [
        (SERVICE, "/v1/placement"),
        ("http://n2", "/v1/keys/a"),
        ("http://n2", "/v1/keys/a"),
    ]


def test_a_lower_epoch_never_replaces_a_higher_one() -> None:
    """A node that has not heard of the change yet is asked again, but not with every read."""
    view = FakeView(3, 1)
    operations = knowing(view)
    view.now += 1
    view.nodes[SERVICE].knows = (1, view.owners)
    view.epoch, view.owners = 2, [["http://n2"] for _ in view.owners]
    for _ in range(10):
        read(view, operations)
    assert len(view.addresses_asked("/v1/placement")) == 1

    view.now += 1
    older, view.nodes[SERVICE].knows = view.nodes[SERVICE].knows, None
    read(view, operations)
    view.nodes[SERVICE].knows = older
    view.now += 31
    view.asked.clear()
    read(view, operations)
    assert [e.address for e in view.asked] == [SERVICE, "http://n2"]


def test_another_revision_replaces_the_placement() -> None:
    """Its epochs begin again; the service address says which revision is in force, twice a minute unasked."""
    view = FakeView(3, 1)
    view.epoch = 9
    operations = knowing(view)
    view.nodes |= {"http://new": Node("new")}
    view.application, view.epoch, view.owners = "tests.users.r2", 1, [["http://new"] for _ in view.owners]
    view.nodes |= {f"http://n{n}": Node("old", away=True) for n in range(3)}
    view.now += 31
    view.rows[b"a"] = 1
    assert read(view, operations).served_by == "new"  # type: ignore[union-attr]


def test_two_revisions_at_once_are_looked_into_now_and_then() -> None:
    """While one takes over from the other, answers may be of either; the placement is not fetched with each."""
    view = FakeView(3, 1)
    operations = knowing(view)
    for n in range(3):
        view.nodes[f"http://n{n}"].revision = "tests.users.r2"
    for _ in range(20):
        read(view, operations)
    assert view.addresses_asked("/v1/placement") == []
    view.now += 0.25
    for _ in range(20):
        read(view, operations)
    assert len(view.addresses_asked("/v1/placement")) == 1


def test_wrong_owner_is_answered_by_others_and_refreshes() -> None:
    """The service address forwards, and the next read knows better."""
    view = FakeView(3, 1)
    operations = knowing(view)
    view.now += 1
    view.rows[b"a"] = 1
    view.nodes[owners(view)[0]].refusals = [refusal(Reason.WRONG_OWNER)]
    view.epoch, view.owners = 2, [["http://n2"] for _ in view.owners]

    assert read(view, operations) is not None
    assert read(view, operations).served_by == "n2"  # type: ignore[union-attr]
    assert view.addresses_asked()[1:] == [SERVICE, "http://n2"]


def test_wrong_owner_alone_refreshes() -> None:
    """Whoever does not hold what the placement says is a reason to look again."""
    view = FakeView(3, 1)
    operations = knowing(view)
    view.now += 1
    view.nodes[owners(view)[0]].refusals = [refusal(Reason.WRONG_OWNER)]
    read(view, operations)
    read(view, operations)
    assert len(view.addresses_asked("/v1/placement")) == 1


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
    written = view.carry_out(operations.put("a", 1, PLAIN, None))
    assert (written.position, view.addresses_asked("/v1/records")) == ("0:8", [first, second])

    view.asked.clear()
    view.carry_out(operations.put("a", 1, PLAIN, None))
    assert view.addresses_asked("/v1/records") == [second]

    view.nodes[first].away, view.nodes[first].hangs = False, True
    view.now += 60
    view.asked.clear()
    with pytest.raises(OutcomeUnknown):
        view.carry_out(operations.put("a", 1, PLAIN, None))
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
        view.carry_out(operations.put("a", 1, PLAIN, None))
    assert len(view.asked) == 1


def test_an_answer_that_nobody_waits_for_is_passed_over() -> None:
    """That of a slow placement look-up comes while a write is on its way, and is not taken for its answer."""
    view = FakeView(2, 2)
    operations = knowing(view)
    view.now += 31
    view.nodes[SERVICE].seconds = 0.075  # later than the hedge that asks another node
    for node in list(view.nodes)[:2]:
        view.nodes[node].seconds = 0.02
    written = view.carry_out(operations.put("a", 1, PLAIN, None))
    assert view.addresses_asked("/v1/placement")[0] == SERVICE
    assert len(view.addresses_asked("/v1/placement")) == 2
    assert written.position == "0:8"


def test_a_value_that_json_cannot_say_is_refused() -> None:
    """Before anyone is asked."""
    view = FakeView(1, 1)
    operations = knowing(view)
    for value in (float("nan"), b"bytes", {1, 2}):
        with pytest.raises(InvalidRequest, match=r"^invalid_request: value: "):
            view.carry_out(operations.put("a", value, PLAIN, None))
    assert view.asked == []


def test_a_session_asks_for_more_only_when_it_must() -> None:
    """The plain read first; at-least when its copy is behind; a fresher copy afterwards raises the floor."""
    view = FakeView(1, 1)
    view.rows[b"a"] = 1
    operations = knowing(view)
    session = Positions({})
    partition = partition_for(b"a", "murmur2", 6)

    view.carry_out(operations.get("a", False, PLAIN, session))
    assert session.seen[partition] == 100
    view.nodes[owners(view)[0]].position = 99
    view.nodes[SERVICE].position = 101
    view.asked.clear()
    view.carry_out(operations.get("a", False, PLAIN, session))
    targets = [exchange.request.target for exchange in view.asked]
    assert targets[0] == "/v1/keys/a"
    assert targets[1].startswith(f"/v1/keys/a?consistency=at-least&min-position={partition}:100&deadline-ms=")
    assert session.seen[partition] == 101


@given(st.lists(st.lists(st.integers(1, 50), min_size=3, max_size=3), min_size=1, max_size=12))
def test_a_session_never_takes_an_older_answer(positions: list[list[int]]) -> None:
    """However the copies stand with each read: what it answers is never behind what it answered before."""
    view = FakeView(2, 2)
    view.rows[b"a"] = 1
    operations = knowing(view)
    session = Positions({})
    seen = 0
    for standing in positions:
        for node, position in zip(view.nodes.values(), standing, strict=True):
            node.position = position
        try:
            row = view.carry_out(operations.get("a", False, Asked(deadline_ms=200), session))
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
    session = Positions({p: 150 for p in range(6)})
    for address in (owners(view)[1], SERVICE):
        view.nodes[address].position = 150
    asked = Asked(max_lag_ms=5)
    row = view.carry_out(operations.get("a", False, asked, session))
    assert row is not None
    assert row.served_by == owners(view)[1].removeprefix("http://")
    first, *others = (exchange.request.target for exchange in view.asked)
    partition = partition_for(b"a", "murmur2", 6)
    both = f"/v1/keys/a?consistency=at-least&max-lag-ms=5&min-position={partition}:150&deadline-ms="
    assert first == "/v1/keys/a?max-lag-ms=5"
    assert others
    assert all(target.startswith(both) for target in others)


def test_a_scan_goes_on_after_a_failure() -> None:
    """With the page that failed; no row is lost or comes twice."""
    view = FakeView(2, 1)
    view.rows = {b"k%02d" % n: n for n in range(25)}
    operations = knowing(view)
    scan = operations.scan(PLAIN, "asc", None, 10)
    view.carry_out(operations.next_page(scan, None))
    for node in view.nodes.values():
        node.away = True
    with pytest.raises(Unreachable):
        view.carry_out(operations.next_page(scan, None))
    for node in view.nodes.values():
        node.away = False
    while not scan.ended:
        view.carry_out(operations.next_page(scan, None))
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
