"""When a node is a suspect, when its breaker is open, and how long it is waited for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queryable_app.policy.failure_detector import Breaker, PeerHealth


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(5):
        breaker.failed(at)
    return breaker


def test_three_missed_heartbeats_make_a_suspect() -> None:
    """Two do not, and one that is answered begins the count anew."""
    health = PeerHealth()
    health.heartbeat_missed()
    health.heartbeat_missed()
    health.heartbeat_answered(0)
    health.heartbeat_missed()
    health.heartbeat_missed()
    assert not health.suspected
    health.heartbeat_missed()
    assert health.suspected


def test_a_lost_connection_makes_a_suspect_at_once() -> None:
    """Until the node is heard again."""
    health = PeerHealth()
    health.gone()
    assert health.suspected
    health.heartbeat_answered(0)
    assert not health.suspected


def test_failures_in_a_row_open_the_breaker() -> None:
    """An answer in between begins the count anew."""
    breaker = Breaker()
    for _ in range(4):
        breaker.failed(0)
    breaker.answered()
    for _ in range(4):
        breaker.failed(0)
    assert breaker.allows(0)
    breaker.failed(0)
    assert not breaker.allows(0)


def test_an_open_breaker_waits_for_a_heartbeat() -> None:
    """Only one that is answered after the rest lets a request through, and time alone does not."""
    breaker = opened()
    breaker.heartbeat(0.5)
    assert not breaker.allows(100)
    breaker.heartbeat(100)
    assert breaker.allows(100)


def test_half_open_is_for_one_request_at_a_time() -> None:
    """Its answer closes the breaker, its failure opens it again."""
    breaker = opened()
    breaker.heartbeat(2)
    breaker.asked(2)
    assert not breaker.allows(2)
    breaker.failed(2.5)
    breaker.heartbeat(2.6)
    assert not breaker.allows(3.4)
    breaker.heartbeat(4)
    breaker.answered()
    assert breaker.allows(4)


def test_a_hedge_follows_the_latency_of_the_node() -> None:
    """Three times its p95."""
    health = PeerHealth()
    for number in range(128):
        health.answered(0.020 if number % 10 == 0 else 0.002)
    assert health.hedge_after == 0.06


@given(st.lists(st.floats(0, 1e6), max_size=300))
def test_a_hedge_is_never_early_nor_late(seconds: list[float]) -> None:
    """Within its bounds, whatever the node did."""
    health = PeerHealth()
    for each in seconds:
        health.answered(each)
    assert 0.005 <= health.hedge_after <= 0.25
    assert health.timeout_after >= 0.1


def test_an_answer_that_had_to_wait_says_nothing_of_the_node() -> None:
    """A strong read takes what it takes."""
    health = PeerHealth()
    before = health.hedge_after
    for _ in range(64):
        health.answered()
    assert health.hedge_after == before
