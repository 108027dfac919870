"""Test which placement the client follows, and when it fetches a new one, with nodes that have older and newer ones."""

from __future__ import annotations

from queryable_app.client.attempts import gather
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


def test_placement_is_fetched_once() -> None:
    """One of many requests fetches the placement. During a refresh the others use the old one."""
    view = FakeView(3, 1)
    view.rows[b"a"] = 1
    operations = client(view)
    view.nodes[SERVICE].seconds = 0.03
    view.run_operation(gather([operations.get("a", False, PLAIN, None) for _ in range(20)]))
    assert view.attempted_addresses("/v1/placement") == [SERVICE]

    view.now += 31
    view.attempts.clear()
    began = view.now
    view.run_operation(gather([operations.get("a", False, PLAIN, None) for _ in range(20)]))
    assert view.attempted_addresses("/v1/placement") == [SERVICE]
    assert [e.started == began for e in view.attempts if e.request.target == "/v1/keys/a"].count(True) == 19


def test_newer_epoch_is_followed() -> None:
    """The client takes the response that shows a newer epoch, and fetches the placement once for the next read."""
    view = FakeView(3, 1)
    operations = with_placement(view)
    view.now += 1
    view.epoch, view.owners = 2, [["http://n2"] for _ in view.owners]

    read(view, operations)
    view.attempts.clear()
    read(view, operations)
    read(view, operations)
    assert [(e.address, e.request.target) for e in view.attempts] == [
        (SERVICE, "/v1/placement"),
        ("http://n2", "/v1/keys/a"),
        ("http://n2", "/v1/keys/a"),
    ]


def test_lower_epoch_never_replaces_a_higher_one() -> None:
    """If a node serves an older placement, the client fetches again, but not with every read."""
    view = FakeView(3, 1)
    operations = with_placement(view)
    view.now += 1
    view.nodes[SERVICE].known_placement = (1, view.owners)
    view.epoch, view.owners = 2, [["http://n2"] for _ in view.owners]
    for _ in range(10):
        read(view, operations)
    assert len(view.attempted_addresses("/v1/placement")) == 1

    view.now += 1
    older, view.nodes[SERVICE].known_placement = view.nodes[SERVICE].known_placement, None
    read(view, operations)
    view.nodes[SERVICE].known_placement = older
    view.now += 31
    view.attempts.clear()
    read(view, operations)
    assert [e.address for e in view.attempts] == [SERVICE, "http://n2"]


def test_another_revision_replaces_the_placement() -> None:
    """A new revision's epochs start again. The client fetches the placement from the service address every half minute."""
    view = FakeView(3, 1)
    view.epoch = 9
    operations = with_placement(view)
    view.nodes |= {"http://new": Node("new")}
    view.application, view.epoch, view.owners = "tests.users.r2", 1, [["http://new"] for _ in view.owners]
    view.nodes |= {f"http://n{n}": Node("old", away=True) for n in range(3)}
    view.now += 31
    view.rows[b"a"] = 1
    assert read(view, operations).served_by == "new"  # type: ignore[union-attr]


def test_two_revisions_cause_few_refreshes() -> None:
    """During a cutover responses may be of either revision; the client does not fetch the placement with each."""
    view = FakeView(3, 1)
    operations = with_placement(view)
    for n in range(3):
        view.nodes[f"http://n{n}"].revision = "tests.users.r2"
    for _ in range(20):
        read(view, operations)
    assert view.attempted_addresses("/v1/placement") == []
    view.now += 0.25
    for _ in range(20):
        read(view, operations)
    assert len(view.attempted_addresses("/v1/placement")) == 1


def test_wrong_owner_is_retried_and_refreshes() -> None:
    """The client retries on the service address, which forwards, and the next read has the new placement."""
    view = FakeView(3, 1)
    operations = with_placement(view)
    view.now += 1
    view.rows[b"a"] = 1
    view.nodes[owners(view)[0]].refusals = [refusal(Reason.WRONG_OWNER)]
    view.epoch, view.owners = 2, [["http://n2"] for _ in view.owners]

    assert read(view, operations) is not None
    assert read(view, operations).served_by == "n2"  # type: ignore[union-attr]
    assert view.attempted_addresses()[1:] == [SERVICE, "http://n2"]


def test_wrong_owner_alone_refreshes() -> None:
    """A node that does not host what the placement says causes a refresh."""
    view = FakeView(3, 1)
    operations = with_placement(view)
    view.now += 1
    view.nodes[owners(view)[0]].refusals = [refusal(Reason.WRONG_OWNER)]
    read(view, operations)
    read(view, operations)
    assert len(view.attempted_addresses("/v1/placement")) == 1


def test_event_of_an_ended_part_is_ignored() -> None:
    """A late response to a placement fetch, which arrives during a write, is not taken for the write's response."""
    view = FakeView(2, 2)
    operations = with_placement(view)
    view.now += 31
    view.nodes[SERVICE].seconds = 0.075  # later than the hedge that asks another node
    for node in list(view.nodes)[:2]:
        view.nodes[node].seconds = 0.02
    written = view.run_operation(operations.put("a", 1, PLAIN, None))
    assert view.attempted_addresses("/v1/placement")[0] == SERVICE
    assert len(view.attempted_addresses("/v1/placement")) == 2
    assert written.position == "0:8"
