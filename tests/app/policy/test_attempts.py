"""Test which replicas one request tries, and when, on a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.policy.attempts import Attempts, Exhausted, HedgeBudget, SendTo, Step, Wait
from queryable_app.policy.failure_detector import PeerHealth


def nodes(count: int = 3) -> dict[int, PeerHealth]:
    return {ordinal: PeerHealth() for ordinal in range(count)}


def attempts(
    health: dict[int, PeerHealth], budget: HedgeBudget | None = None, deadline: float = 2.0
) -> Attempts:
    return Attempts(list(health), deadline, health, budget or HedgeBudget())


def next_action(started: Attempts, now: float) -> tuple[int, Step]:
    """Advance the clock to the next action, and return the milliseconds and the action."""
    begun, step = now, started.step(now)
    while isinstance(step, Wait):
        now = step.until
        step = started.step(now)
    return round(1000 * (now - begun)), step


def test_first_replica_is_tried_alone() -> None:
    """The next replica waits until the first is slower than usual."""
    request = attempts(nodes())
    assert request.step(0) == SendTo(0, hedge=False)
    assert request.step(0) == Wait(0.05)


def test_slow_replica_is_hedged() -> None:
    """A hedge goes to the next replica after three times the p95 of the slow one."""
    health = nodes()
    for _ in range(64):
        health[0].answered(0.004)
    request = attempts(health)
    request.step(0)
    assert next_action(request, 0) == (12, SendTo(1, hedge=True))


@pytest.mark.parametrize("now", [0.01, 0.06, 1.5, 2.0])
def test_request_that_was_sent_already_goes_on_like_any_other(now: float) -> None:
    """Attempts that begin after the first node got the request take the same next step, and the budget has one request."""
    sent_at_once, sent_before = HedgeBudget(), HedgeBudget()
    request = attempts(nodes(), sent_at_once)
    request.step(0)
    sent_before.note_requests(1)
    late = Attempts([0, 1, 2], 2.0, nodes(), sent_before, sent=(0, 0.0))

    assert late.step(now) == request.step(now)
    assert sent_before.requests == sent_at_once.requests == 1
    assert late.answered(0, 421, b"") is request.answered(0, 421, b"") is False


def test_waiting_read_is_hedged_later() -> None:
    """The patience of a read that waits for freshness delays its hedge."""
    request = Attempts([0, 1], 2.0, nodes(), HedgeBudget(), patience=0.2)
    request.step(0)
    assert next_action(request, 0) == (200, SendTo(1, hedge=True))


def test_without_budget_the_next_replica_waits_for_its_share() -> None:
    """Without a hedge, each of three replicas has a third of the time."""
    request = attempts(nodes(), HedgeBudget(burst=0))
    request.step(0)
    assert next_action(request, 0) == (667, SendTo(1, hedge=False))


@pytest.mark.parametrize("status", [500, 503])
def test_next_replica_is_tried_at_once_after_a_refusal(status: int) -> None:
    """A refusal is returned if no other replica has an answer."""
    request = attempts(nodes(2))
    request.step(0)
    assert not request.answered(0, status, "refused")
    assert request.step(0.001) == SendTo(1, hedge=False)
    request.failed(1)
    assert request.step(0.002) == Exhausted("refused")


@pytest.mark.parametrize("status", [200, 304, 400, 403, 404, 504])
def test_answer_ends_the_request(status: int) -> None:
    """An answer other than a refusal is final; key_not_found comes from a complete replica only."""
    request = attempts(nodes(2))
    request.step(0)
    assert request.answered(0, status, "answer")


def test_not_available_is_preferred_to_internal() -> None:
    """The more useful refusal is returned, in whatever order they come."""
    for first, second in ((503, 500), (500, 503)):
        request = attempts(nodes(2))
        request.step(0)
        request.answered(0, first, first)
        request.step(0)
        request.answered(1, second, second)
        assert request.step(0) == Exhausted(503)


def test_wrong_owner_is_not_returned() -> None:
    """A caller does not see that another node has removed its replica."""
    request = attempts(nodes(2))
    request.step(0)
    assert not request.answered(0, 421, "not here")
    assert request.step(0.001) == SendTo(1, hedge=False)
    assert not request.answered(1, 421, "not here")
    assert request.step(0.002) == Exhausted(None)


@pytest.mark.parametrize("suspected", [False, True])
@pytest.mark.parametrize("reported", [False, True])
def test_deadline_with_a_healthy_replica_that_has_not_answered_is_a_timeout(
    suspected: bool, reported: bool
) -> None:
    """A replica that is suspected, by contrast, cannot be reached. The driver may see its own timeout first."""
    health = nodes(1)
    request = attempts(health)
    request.step(0)
    health[0].suspected = suspected
    if reported:
        request.failed(0, timed_out=True)
    assert request.step(2.0) == Exhausted(None, timed_out=not suspected)


def test_replica_that_failed_is_no_timeout() -> None:
    """A replica that refuses or closes the connection says nothing about the time."""
    request = attempts(nodes(1))
    request.step(0)
    request.failed(0)
    assert request.step(2.0) == Exhausted(None)


def test_overload_is_retried_only_within_the_budget() -> None:
    """Without the budget, overloaded nodes would also get the requests of all others."""
    request = attempts(nodes(2))
    request.step(0)
    assert not request.answered(0, 429, "busy")
    poor = attempts(nodes(2), HedgeBudget(share=0, burst=0))
    poor.step(0)
    assert poor.answered(0, 429, "busy")


@pytest.mark.parametrize("then", [200, None])
def test_attempt_that_runs_may_answer_after_an_overload(then: int | None) -> None:
    """A hedge that meets an overloaded node does not end the request while the first replica may answer."""
    request = attempts(nodes(2))
    request.step(0)
    _, hedge = next_action(request, 0)
    assert hedge == SendTo(1, hedge=True)
    assert not request.answered(1, 429, "busy")
    assert request.step(0.1) == Wait(2.0)
    if then is None:
        request.failed(0)
        assert request.step(0.2) == Exhausted("busy")
    else:
        assert request.answered(0, then, "value")


def test_overload_without_budget_starts_no_other_attempt() -> None:
    """Only attempts that run already may still answer."""
    health = nodes()
    request = attempts(health, HedgeBudget(share=0, burst=0))
    request.step(0)
    health[0].connection_lost()
    assert request.step(0.001) == SendTo(1, hedge=False)
    assert not request.answered(1, 429, "busy")
    assert request.step(0.002) == Wait(2.0)
    request.failed(0)
    assert request.step(0.003) == Exhausted("busy")


def test_request_does_not_wait_for_an_unhealthy_replica() -> None:
    """The next replica is tried without a budget, unless it is unhealthy too."""
    health = nodes(2)
    request = attempts(health, HedgeBudget(burst=0))
    request.step(0)
    health[0].connection_lost()
    assert request.step(0.001) == SendTo(1, hedge=False)
    health = nodes(2)
    request = attempts(health, HedgeBudget(burst=0))
    request.step(0)
    health[0].connection_lost()
    health[1].connection_lost()
    assert isinstance(request.step(0.001), Wait)


def test_open_breaker_puts_a_replica_last() -> None:
    """A replica with an open breaker comes last and is still tried."""
    health = nodes(2)
    for _ in range(5):
        health[0].failed(0)
    request = attempts(health)
    assert request.step(0) == SendTo(1, hedge=False)
    request.failed(1)
    assert request.step(0) == SendTo(0, hedge=False)


def test_hedges_are_within_the_budget() -> None:
    """If every node is slow, at most the burst and the share of the requests are hedged."""
    health, budget = nodes(2), HedgeBudget(share=0.05, burst=10)
    hedges = 0
    for _ in range(1000):
        request = attempts(health, budget)
        request.step(0)
        _, step = next_action(request, 0)
        hedges += step == SendTo(1, hedge=True)
    assert 10 <= hedges <= 10 + 50


@dataclass(frozen=True)
class Behaviour:
    """Describe how a replica reacts to a request."""

    after: float
    status: int | None  # None: the connection breaks


behaviours = st.builds(
    Behaviour,
    st.sampled_from([0.0, 0.001, 0.03, 0.3, 5.0]),
    st.sampled_from([None, 200, 404, 421, 429, 500, 503]),
)


@given(
    st.lists(behaviours, max_size=5),
    st.floats(0.001, 3),
    st.sampled_from([0.0, 1.0, 50.0]),
    st.frozensets(st.integers(0, 4)),
)
def test_every_replica_is_tried_once_before_the_deadline(
    replicas: list[Behaviour], deadline: float, burst: float, suspected: frozenset[int]
) -> None:
    """A replica is tried at most once and before the deadline; exhaustion before it means that all were tried."""
    health = nodes(len(replicas))
    for ordinal in suspected & health.keys():
        health[ordinal].connection_lost()
    request = Attempts(list(health), deadline, health, HedgeBudget(burst=burst))
    now, tried, ended = 0.0, dict[int, float](), set[int]()
    final: int | None = None
    for _ in range(10_000):
        step = request.step(now)
        if isinstance(step, Exhausted):
            final = 429 if step.refusal == 429 else None
            break
        if isinstance(step, SendTo):
            assert step.ordinal not in tried
            assert now < deadline
            tried[step.ordinal] = now
            continue
        assert step.until > now
        coming = [(tried[o] + replicas[o].after, o) for o in tried if o not in ended]
        at, ordinal = min(coming, default=(step.until, -1))
        now = min(at, step.until)
        if at <= step.until and ordinal >= 0:
            ended.add(ordinal)
            status = replicas[ordinal].status
            if status is None:
                request.failed(ordinal)
            elif request.answered(ordinal, status, status):
                final = status
                break
    else:
        raise AssertionError("the request does not end")
    if final is None and now < deadline:
        assert set(tried) == ended == set(health)
    if final == 429 and now < deadline:
        assert set(tried) == ended
    quick = all(replica.after <= 0.03 for replica in replicas)
    if quick and deadline > 1 and any(replica.status == 200 for replica in replicas):
        assert final is not None
