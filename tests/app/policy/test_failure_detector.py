"""Test when a peer is suspected, when its breaker is open, and when a hedge is due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.policy.failure_detector import (
    HEARTBEAT_SECONDS,
    Breaker,
    PeerHealth,
    heartbeat_current_seconds,
    heartbeat_ticks,
)


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(5):
        breaker.failed(at)
    return breaker


def test_peer_is_suspected_after_three_missed_heartbeats() -> None:
    """Two missed heartbeats are not enough, and an answered one resets the count."""
    health = PeerHealth()
    health.heartbeat_missed()
    health.heartbeat_missed()
    health.heartbeat_answered(0)
    health.heartbeat_missed()
    health.heartbeat_missed()
    assert not health.suspected
    health.heartbeat_missed()
    assert health.suspected


def test_peer_is_suspected_after_a_lost_connection() -> None:
    """A lost connection is enough until the next heartbeat."""
    health = PeerHealth()
    health.connection_lost()
    assert health.suspected
    health.heartbeat_answered(0)
    assert not health.suspected


@pytest.mark.parametrize(("peers", "ticks"), [(0, 1), (1, 1), (20, 1), (21, 2), (99, 5), (999, 50)])
def test_turns_bound_the_heartbeats_of_a_tick(peers: int, ticks: int) -> None:
    """Up to 20 peers have one at each tick. More of them take turns, and 20 at most have one at a tick."""
    assert heartbeat_ticks(peers) == ticks
    assert max((sum((tick + o) % ticks == 0 for o in range(peers)) for tick in range(ticks)), default=0) <= 20


@pytest.mark.parametrize("peers", [1, 99, 999])
def test_heartbeat_is_current_until_after_the_next_one(peers: int) -> None:
    """A peer's last heartbeat counts for a second, or for two of its turns."""
    assert heartbeat_current_seconds(peers) >= max(1.0, 2 * HEARTBEAT_SECONDS * heartbeat_ticks(peers))


def test_failed_request_makes_a_heartbeat_due() -> None:
    """The peer gets it before its turn, once: the answer ends it."""
    health = PeerHealth()
    due = [health.heartbeat_due]
    health.failed(0)
    due.append(health.heartbeat_due)
    health.heartbeat_answered(0.1)
    due.append(health.heartbeat_due)
    assert due == [False, True, False]


def test_failures_in_a_row_open_the_breaker() -> None:
    """An answer in between resets the count."""
    breaker = Breaker()
    for _ in range(4):
        breaker.failed(0)
    breaker.answered()
    for _ in range(4):
        breaker.failed(0)
    assert breaker.allows(0)
    breaker.failed(0)
    assert not breaker.allows(0)


def test_open_breaker_waits_for_a_heartbeat() -> None:
    """A request is allowed after the next heartbeat, and not by time alone."""
    breaker = opened()
    breaker.heartbeat(0.5)
    assert not breaker.allows(100)
    breaker.heartbeat(100)
    assert breaker.allows(100)


def test_half_open_breaker_allows_one_request_at_a_time() -> None:
    """An answer closes a half-open breaker, and a failure opens it."""
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


def test_hedge_follows_the_latency_of_the_peer() -> None:
    """A hedge is due after three times the p95."""
    health = PeerHealth()
    for number in range(128):
        health.answered(0.020 if number % 10 == 0 else 0.002)
    assert health.hedge_after == 0.06


@given(st.lists(st.floats(0, 1e6), max_size=300))
def test_hedge_delay_is_bounded(seconds: list[float]) -> None:
    """The delay of a hedge stays within its bounds, whatever the latencies."""
    health = PeerHealth()
    for each in seconds:
        health.answered(each)
    assert 0.005 <= health.hedge_after <= 0.25
    assert health.timeout_after >= 0.1


def test_waiting_read_does_not_change_the_hedge_delay() -> None:
    """The latency of a strong read says nothing about the peer."""
    health = PeerHealth()
    before = health.hedge_after
    for _ in range(64):
        health.answered()
    assert health.hedge_after == before
