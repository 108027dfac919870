"""Whom one request asks, and when: with a clock that the test moves."""

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


def wait_over(started: Attempts, now: float) -> tuple[int, Step]:
    """Moves the clock until there is something to do; the milliseconds that it took."""
    begun, step = now, started.step(now)
    while isinstance(step, Wait):
        now = step.until
        step = started.step(now)
    return round(1000 * (now - begun)), step


def test_the_first_copy_is_asked_alone() -> None:
    """The next one not before the first is later than it usually is."""
    request = attempts(nodes())
    assert request.step(0) == SendTo(0, hedge=False)
    assert request.step(0) == Wait(0.05)


def test_a_late_copy_is_hedged() -> None:
    """The next copy is asked as well, at three times the p95 of the late one."""
    health = nodes()
    for _ in range(64):
        health[0].answered(0.004)
    request = attempts(health)
    request.step(0)
    assert wait_over(request, 0) == (12, SendTo(1, hedge=True))


def test_a_read_that_waits_by_itself_is_hedged_later() -> None:
    """Its patience counts, not the latency of plain reads."""
    request = Attempts([0, 1], 2.0, nodes(), HedgeBudget(), patience=0.2)
    request.step(0)
    assert wait_over(request, 0) == (200, SendTo(1, hedge=True))


def test_without_budget_the_next_copy_waits_for_its_share() -> None:
    """A third of the time with three copies: no hedge, but nobody is forgotten."""
    request = attempts(nodes(), HedgeBudget(burst=0))
    request.step(0)
    assert wait_over(request, 0) == (667, SendTo(1, hedge=False))


@pytest.mark.parametrize("status", [500, 503])
def test_the_next_copy_follows_a_refusal_at_once(status: int) -> None:
    """A refusal is kept, and passed back when nobody else has an answer."""
    request = attempts(nodes(2))
    request.step(0)
    assert not request.answered(0, status, "refused")
    assert request.step(0.001) == SendTo(1, hedge=False)
    request.failed(1)
    assert request.step(0.002) == Exhausted("refused")


@pytest.mark.parametrize("status", [200, 304, 400, 403, 404, 504])
def test_an_answer_ends_it(status: int) -> None:
    """Also key_not_found: a copy says it only when it is complete."""
    request = attempts(nodes(2))
    request.step(0)
    assert request.answered(0, status, "answer")


def test_not_available_is_worth_more_than_a_defect() -> None:
    """Whichever comes first, the refusal that says more is passed back."""
    for first, second in ((503, 500), (500, 503)):
        request = attempts(nodes(2))
        request.step(0)
        request.answered(0, first, first)
        request.step(0)
        request.answered(1, second, second)
        assert request.step(0) == Exhausted(503)


def test_wrong_owner_is_not_passed_back() -> None:
    """A node that has let the copy go says nothing that the caller of another node should hear."""
    request = attempts(nodes(2))
    request.step(0)
    assert not request.answered(0, 421, "not here")
    assert request.step(0.001) == SendTo(1, hedge=False)
    assert not request.answered(1, 421, "not here")
    assert request.step(0.002) == Exhausted(None)


def test_overload_is_passed_on_only_within_the_budget() -> None:
    """Otherwise nodes that have too much to do would get the work of all others as well."""
    request = attempts(nodes(2))
    request.step(0)
    assert not request.answered(0, 429, "busy")
    poor = attempts(nodes(2), HedgeBudget(share=0, burst=0))
    poor.step(0)
    assert poor.answered(0, 429, "busy")


def test_a_copy_that_became_doubtful_is_not_waited_for() -> None:
    """The next one is asked without any budget, if it is not doubtful itself."""
    health = nodes(2)
    request = attempts(health, HedgeBudget(burst=0))
    request.step(0)
    health[0].gone()
    assert request.step(0.001) == SendTo(1, hedge=False)
    health = nodes(2)
    request = attempts(health, HedgeBudget(burst=0))
    request.step(0)
    health[0].gone()
    health[1].gone()
    assert isinstance(request.step(0.001), Wait)


def test_an_open_breaker_puts_a_copy_last() -> None:
    """And the last candidate is asked all the same."""
    health = nodes(2)
    for _ in range(5):
        health[0].failed(0)
    request = attempts(health)
    assert request.step(0) == SendTo(1, hedge=False)
    request.failed(1)
    assert request.step(0) == SendTo(0, hedge=False)


def test_hedges_are_few() -> None:
    """When every node is slow, no more than the burst and the share of the requests are asked twice."""
    health, budget = nodes(2), HedgeBudget(share=0.05, burst=10)
    hedges = 0
    for _ in range(1000):
        request = attempts(health, budget)
        request.step(0)
        _, step = wait_over(request, 0)
        hedges += step == SendTo(1, hedge=True)
    assert 10 <= hedges <= 10 + 50


@dataclass(frozen=True)
class Behaviour:
    """What a copy does when it is asked."""

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
def test_no_copy_is_asked_twice_nor_too_late_nor_left_out(
    replicas: list[Behaviour], deadline: float, burst: float, suspected: frozenset[int]
) -> None:
    """Every copy at most once and never after the deadline; giving up before it means that all were asked in vain."""
    health = nodes(len(replicas))
    for ordinal in suspected & health.keys():
        health[ordinal].gone()
    request = Attempts(list(health), deadline, health, HedgeBudget(burst=burst))
    now, asked, ended = 0.0, dict[int, float](), set[int]()
    final: int | None = None
    for _ in range(10_000):
        step = request.step(now)
        if isinstance(step, Exhausted):
            break
        if isinstance(step, SendTo):
            assert step.ordinal not in asked
            assert now < deadline
            asked[step.ordinal] = now
            continue
        assert step.until > now
        coming = [(asked[o] + replicas[o].after, o) for o in asked if o not in ended]
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
        raise AssertionError("it never ends")
    if final is None and now < deadline:
        assert set(asked) == ended == set(health)
    quick = all(replica.after <= 0.03 for replica in replicas)
    if quick and deadline > 1 and any(replica.status == 200 for replica in replicas):
        assert final is not None
