"""Decide which replica one request tries, when to hedge, and when to stop.

Strategy: a state machine without I/O. The driver calls `step` until it returns Wait or Exhausted, and again after the wait or
after an event. The request goes to each replica at most once, and to the next replica
- at once, if the last one failed or refused, or if it is unhealthy while another is not;
- as a hedge, if the last one takes longer than it usually does. Each request adds a little to the budget of hedges, so a system
  that is slow as a whole does not get every request twice;
- in any case, if the last one has used its share of the time, so that every replica gets the request before the deadline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from queryable_app.errors import Failure, Reason
from queryable_app.policy.failure_detector import PeerHealth

_LOOK_AGAIN_SECONDS: Final = 0.05  # meanwhile health changes, and the budget grows
_OVERLOADED: Final = 429
_WRONG_OWNER: Final = (
    421  # the node follows another placement, which is nothing that the caller needs to know
)
_REFUSALS: Final = (_OVERLOADED, 500, 503)  # the most useful refusal for the caller comes last


class SendTo(NamedTuple):
    ordinal: int
    hedge: bool


class Wait(NamedTuple):
    until: float


class Exhausted(NamedTuple):
    refusal: Any  # the answer to return if every replica refused; None: there is none
    timed_out: bool = False  # a replica that is healthy has not answered by the deadline


Step = SendTo | Wait | Exhausted


class HedgeBudget:
    """Allow `burst` hedges, and then one for a `share` of the requests."""

    __slots__ = ("_burst", "_share", "_tokens", "hedges", "requests")

    def __init__(self, share: float = 0.05, burst: float = 50.0) -> None:
        self._share, self._burst = share, burst
        self._tokens = burst
        self.requests = self.hedges = 0

    def note_requests(self, count: int) -> None:
        self.requests += count
        self._tokens = min(self._burst, self._tokens + count * self._share)

    def take(self) -> bool:
        if self._tokens < 1:
            return False
        self._tokens -= 1
        self.hedges += 1
        return True


class Attempts:
    """Track the attempts of one request.

    `candidates` are ordinals in the order of `routing.route`, without this node. `patience` is the minimum of seconds before a
    hedge, for reads that wait for freshness. `sent` names a candidate that has got the request already, and when; the caller has
    noted the request in the budget.
    """

    __slots__ = (
        "_budget",
        "_deadline",
        "_health",
        "_last",
        "_last_at",
        "_left",
        "_patience",
        "_refusal",
        "_running",
        "_timed_out",
    )

    def __init__(
        self,
        candidates: Sequence[int],
        deadline: float,
        health: Mapping[int, PeerHealth],
        budget: HedgeBudget,
        patience: float = 0.0,
        sent: tuple[int, float] | None = None,
    ) -> None:
        self._left = list(candidates)
        self._deadline = deadline
        self._health = health
        self._budget = budget
        self._patience = patience
        self._running: list[int] = []
        self._last = -1
        self._last_at = 0.0
        self._refusal: tuple[int, Any] | None = None
        self._timed_out = False
        if sent is None:
            budget.note_requests(1)
        else:
            self._last, self._last_at = sent
            self._left.remove(self._last)
            self._running.append(self._last)

    def step(self, now: float) -> Step:
        if now >= self._deadline:
            return self._exhausted()
        if not self._left:
            return Wait(self._deadline) if self._running else self._exhausted()
        if self._last not in self._running:
            return self._send(now, hedge=False)
        last = self._health[self._last]
        share_at = self._last_at + (self._deadline - self._last_at) / (len(self._left) + 1)
        if now >= share_at or (last.unhealthy and any(self._health[o].allows(now) for o in self._left)):
            return self._send(now, hedge=False)
        hedge_at = self._last_at + max(self._patience, last.hedge_after)
        if now >= hedge_at:
            if self._budget.take():
                return self._send(now, hedge=True)
            hedge_at = self._deadline
        return Wait(min(hedge_at, share_at, now + _LOOK_AGAIN_SECONDS))

    def answered(self, ordinal: int, status: int, answer: Any) -> bool:
        """Return whether this answers the request. Otherwise the node refused, and another attempt runs or is due."""
        self.failed(ordinal)
        if status == _WRONG_OWNER:
            return False
        if status not in _REFUSALS:
            return True
        if status == _OVERLOADED and not (self._left and self._budget.take()):
            if not self._running:
                return True
            self._left.clear()
        if self._refusal is None or _REFUSALS.index(status) >= _REFUSALS.index(self._refusal[0]):
            self._refusal = status, answer
        return False

    def failed(self, ordinal: int, timed_out: bool = False) -> None:
        """Record that this node will not answer, or has not by the deadline."""
        if ordinal in self._running:
            self._running.remove(ordinal)
        if timed_out and not self._health[ordinal].unhealthy:
            self._timed_out = True

    def _send(self, now: float, hedge: bool) -> SendTo:
        ordinal = self._left[0]
        if not self._health[ordinal].allows(now):
            ordinal = next((o for o in self._left if self._health[o].allows(now)), ordinal)
        self._left.remove(ordinal)
        self._running.append(ordinal)
        self._last, self._last_at = ordinal, now
        return SendTo(ordinal, hedge)

    def _exhausted(self) -> Exhausted:
        timed_out = self._timed_out or any(not self._health[ordinal].unhealthy for ordinal in self._running)
        return Exhausted(None if self._refusal is None else self._refusal[1], timed_out)


def no_other_replica_failure(refusal: Failure, timed_out: bool = False) -> Failure:
    """Return the failure of a request for which no other node has an answer, given this node's refusal.

    `timed_out` is that of `Exhausted`: a node that is alive may have the answer.
    """
    if refusal.reason is not Reason.WRONG_OWNER or refusal.partition is None:
        return refusal
    return (_timed_out if timed_out else _unreachable)(refusal.partition)


def _timed_out(partition: int) -> Failure:
    return Failure(
        Reason.DEADLINE_EXCEEDED,
        f"no node that holds partition {partition} has answered in time",
        "ask for more time with deadline-ms",
        partition=partition,
    )


def _unreachable(partition: int) -> Failure:
    return Failure(
        Reason.NOT_AVAILABLE,
        f"no node that holds partition {partition} can be reached",
        "retry; /v1/placement names the nodes",
        partition=partition,
        retry_after_ms=1000,
    )
