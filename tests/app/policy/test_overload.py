"""Test which requests are refused after a long wait, with simulated queues on a virtual clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from queryable_app.policy.overload import (
    BACKLOG_SECONDS,
    LONG_READS_WAITING_FEW,
    LONG_WAIT_SECONDS,
    LONG_YIELD_SECONDS,
    WAITING_FEW,
    Backlog,
    admits_long_read,
)

costs = st.floats(0.001, 0.05)
"""Seconds of work for one request."""


class Served(NamedTuple):
    arrived: float
    waited: float
    accepted: bool


def serve(arrivals: Sequence[float], cost: float, backlog: Backlog | None = None) -> list[Served]:
    """Simulate a server that takes requests in their order; a refusal costs nothing."""
    backlog = backlog or Backlog()
    coming, waiting, taken, now = deque(sorted(arrivals)), deque[float](), list[Served](), 0.0
    while coming or waiting:
        if not waiting:
            now = max(now, coming[0])
        while coming and coming[0] <= now:
            waiting.append(coming.popleft())
        arrived = waiting.popleft()
        accepted = backlog.admits(now - arrived, len(waiting), now)
        taken.append(Served(arrived, now - arrived, accepted))
        now += cost * accepted
    return taken


def steady(per_cost: float, cost: float, seconds: float, start: float = 0.0) -> list[float]:
    """Return arrivals at a multiple of the server's capacity."""
    return [start + n * cost / per_cost for n in range(int(seconds * per_cost / cost))]


@settings(deadline=None)
@given(costs, st.lists(st.floats(1, 50), max_size=100))
def test_request_without_a_queue_is_never_refused(cost: float, gaps: list[float]) -> None:
    """Requests one after the other all get answers, however long each takes."""
    assert all(request.accepted for request in serve(list(accumulate(gap * cost for gap in gaps)), cost))


@settings(deadline=None)
@given(costs, st.lists(st.floats(0, 20), max_size=200))
def test_short_queue_is_never_refused(cost: float, moments: list[float]) -> None:
    """A few clients in a loop are not refused, even on a slow machine."""
    backlog, now = Backlog(), 0.0
    for moment in sorted(moments):
        now += cost
        assert backlog.admits(moment, WAITING_FEW - 1, now)


@settings(deadline=None)
@given(costs, st.integers(0, 500), st.integers(1, 3))
def test_burst_is_answered(cost: float, size: int, bursts: int) -> None:
    """Requests that come at once get answers if the queue empties within the limit of a backlog."""
    size = min(size, int(BACKLOG_SECONDS / cost))
    arrivals = [second for second in range(bursts) for _ in range(size)]
    assert all(request.accepted for request in serve(arrivals, cost))


@settings(deadline=None)
@given(costs, st.lists(st.floats(0, 3), max_size=500))
def test_no_answer_comes_after_a_long_wait(cost: float, arrivals: list[float]) -> None:
    """An answer waits at most the limit of a backlog, and for the few requests at the end of the queue."""
    longest = max((request.waited for request in serve(arrivals, cost) if request.accepted), default=0)
    assert longest <= BACKLOG_SECONDS + (WAITING_FEW + 1) * cost + 1e-9


@settings(deadline=None)
@given(st.floats(0.001, 0.003), st.floats(1.5, 5))
def test_backlog_is_refused_and_the_server_stays_busy(cost: float, times: float) -> None:
    """Above capacity, answers soon wait briefly or for a few others, and the node stays at its capacity."""
    taken = serve(steady(times, cost, 3), cost)

    late = [request for request in taken if request.accepted and request.arrived > 1]
    assert max(request.waited for request in late) <= LONG_WAIT_SECONDS / 2 + (WAITING_FEW / 2 + 1) * cost
    assert sum(request.accepted for request in taken) * cost >= 0.98 * 3


@settings(deadline=None)
@given(st.floats(0.001, 0.01), st.floats(1.5, 5), st.floats(0.1, 0.9))
def test_refusals_end_with_the_overload(cost: float, times: float, after: float) -> None:
    """Soon after the load falls below the capacity, no request is refused."""
    backlog = Backlog()
    arrivals = steady(times, cost, 2) + steady(after, cost, 2, start=2.0)
    taken = serve(arrivals, cost, backlog)

    assert not all(request.accepted for request in taken)
    assert all(request.accepted for request in taken if request.arrived > 2.5)
    assert not backlog.shedding


def test_descheduled_node_has_no_backlog() -> None:
    """A node that was descheduled for a moment answers the requests that waited."""
    backlog = Backlog()
    assert all(request.accepted for request in serve([0.0] * 50 + [60.05] * 50, 0.001, backlog))
    assert not backlog.shedding


@given(st.floats(0.0001, 0.1))
def test_long_reads_are_limited_by_their_wait(step: float) -> None:
    """Each long read waits at its yields for all others; a few are always admitted, and more only if they wait briefly."""
    reads = 0
    while admits_long_read(reads, reads * step):
        reads += 1
    assert reads >= LONG_READS_WAITING_FEW
    assert reads == LONG_READS_WAITING_FEW or (reads - 1) * step <= LONG_YIELD_SECONDS
