"""Who is refused because it has waited too long: queues of requests on a clock that is computed."""

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
"""Seconds of work that a request is."""


class Turn(NamedTuple):
    arrived: float
    waited: float
    accepted: bool


def turns(arrivals: Sequence[float], cost: float, backlog: Backlog | None = None) -> list[Turn]:
    """One server that takes requests in their order; a refusal costs nothing."""
    backlog = backlog or Backlog()
    coming, waiting, taken, now = deque(sorted(arrivals)), deque[float](), list[Turn](), 0.0
    while coming or waiting:
        if not waiting:
            now = max(now, coming[0])
        while coming and coming[0] <= now:
            waiting.append(coming.popleft())
        arrived = waiting.popleft()
        accepted = backlog.admits(now - arrived, len(waiting), now)
        taken.append(Turn(arrived, now - arrived, accepted))
        now += cost * accepted
    return taken


def steady(per_cost: float, cost: float, seconds: float, start: float = 0.0) -> list[float]:
    """Arrivals at that many times the rate that can be served."""
    return [start + n * cost / per_cost for n in range(int(seconds * per_cost / cost))]


@settings(deadline=None)
@given(costs, st.lists(st.floats(1, 50), max_size=100))
def test_who_finds_nobody_waiting_is_never_refused(cost: float, gaps: list[float]) -> None:
    """Requests that come one after the other are all answered, however long each takes."""
    assert all(turn.accepted for turn in turns(list(accumulate(gap * cost for gap in gaps)), cost))


@settings(deadline=None)
@given(costs, st.lists(st.floats(0, 20), max_size=200))
def test_as_many_as_few_at_once_are_never_refused(cost: float, moments: list[float]) -> None:
    """Clients that are few, and ask again when they have their answer, are not refused even when the machine is slow."""
    backlog, now = Backlog(), 0.0
    for moment in sorted(moments):
        now += cost
        assert backlog.admits(moment, WAITING_FEW - 1, now)


@settings(deadline=None)
@given(costs, st.integers(0, 500), st.integers(1, 3))
def test_a_burst_is_answered(cost: float, size: int, bursts: int) -> None:
    """Whoever comes at once with others is answered as long as the queue is empty again after a while."""
    size = min(size, int(BACKLOG_SECONDS / cost))
    arrivals = [second for second in range(bursts) for _ in range(size)]
    assert all(turn.accepted for turn in turns(arrivals, cost))


@settings(deadline=None)
@given(costs, st.lists(st.floats(0, 3), max_size=500))
def test_nobody_is_answered_who_has_waited_for_long(cost: float, arrivals: list[float]) -> None:
    """Whatever comes: an answer waits no longer than a while, and for the few at the end of the queue."""
    longest = max((turn.waited for turn in turns(arrivals, cost) if turn.accepted), default=0)
    assert longest <= BACKLOG_SECONDS + (WAITING_FEW + 1) * cost + 1e-9


@settings(deadline=None)
@given(st.floats(0.001, 0.003), st.floats(1.5, 5))
def test_a_backlog_is_refused_and_the_server_stays_busy(cost: float, times: float) -> None:
    """Beyond capacity answers soon wait briefly, or for a few others, and the node answers as many as it can."""
    taken = turns(steady(times, cost, 3), cost)

    late = [turn for turn in taken if turn.accepted and turn.arrived > 1]
    assert max(turn.waited for turn in late) <= LONG_WAIT_SECONDS / 2 + (WAITING_FEW / 2 + 1) * cost
    assert sum(turn.accepted for turn in taken) * cost >= 0.98 * 3


@settings(deadline=None)
@given(st.floats(0.001, 0.01), st.floats(1.5, 5), st.floats(0.1, 0.9))
def test_it_is_over_when_the_load_is(cost: float, times: float, after: float) -> None:
    """Soon after the load has fallen below the capacity nobody is refused, and a burst is answered again."""
    backlog = Backlog()
    arrivals = steady(times, cost, 2) + steady(after, cost, 2, start=2.0)
    taken = turns(arrivals, cost, backlog)

    assert not all(turn.accepted for turn in taken)
    assert all(turn.accepted for turn in taken if turn.arrived > 2.5)
    assert not backlog.shedding


def test_a_pause_is_no_backlog() -> None:
    """A node that stood still for a moment answers those who waited meanwhile."""
    backlog = Backlog()
    assert all(turn.accepted for turn in turns([0.0] * 50 + [60.05] * 50, 0.001, backlog))
    assert not backlog.shedding


@given(st.floats(0.0001, 0.1))
def test_long_reads_are_as_many_as_go_on_soon(step: float) -> None:
    """Each waits at its pauses for a step of all others: there are some in any case, and no more than wait briefly."""
    reads = 0
    while admits_long_read(reads, reads * step):
        reads += 1
    assert reads >= LONG_READS_WAITING_FEW
    assert reads == LONG_READS_WAITING_FEW or (reads - 1) * step <= LONG_YIELD_SECONDS
