"""One request to several copies: whom to ask now, when to ask another one as well, when to give up.

Strategy: a state machine without I/O. The driver calls `step` until it is told to wait, and again whenever something
happened or the wait is over; each copy is asked at most once. The next copy is asked
- at once when the one before has failed, has refused, or is doubted while another is not;
- as a hedge, when the one before is later than it usually is. Hedges are paid from a budget that requests fill slowly, so
  that a system that is slow as a whole is not asked twice for everything;
- in any case when the one before has used up its share of the time, so that every copy is asked before the deadline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from queryable_app.errors import Failure, Reason
from queryable_app.policy.failure_detector import PeerHealth

_LOOK_AGAIN_SECONDS: Final = 0.05  # what is known of nodes changes meanwhile, and the budget fills
_OVERLOADED: Final = 429
_WRONG_OWNER: Final = (
    421  # it followed another placement than who asked it: nothing that a caller has to know
)
_REFUSALS: Final = (_OVERLOADED, 500, 503)  # the more a refusal says to the caller, the later


class SendTo(NamedTuple):
    ordinal: int
    hedge: bool


class Wait(NamedTuple):
    until: float


class Exhausted(NamedTuple):
    refusal: Any  # the answer to pass back when everyone refused; None: there is none


Step = SendTo | Wait | Exhausted


class HedgeBudget:
    """At most `burst` hedges, and then `share` of the requests."""

    __slots__ = ("_burst", "_share", "_tokens", "hedges", "requests")

    def __init__(self, share: float = 0.05, burst: float = 50.0) -> None:
        self._share, self._burst = share, burst
        self._tokens = burst
        self.requests = self.hedges = 0

    def note_request(self) -> None:
        self.requests += 1
        self._tokens = min(self._burst, self._tokens + self._share)

    def take(self) -> bool:
        if self._tokens < 1:
            return False
        self._tokens -= 1
        self.hedges += 1
        return True


class Attempts:
    """Of one request. `candidates` are ordinals in the order of `routing.route`, without this node. `patience` are
    seconds before which no hedge makes sense, for reads that wait for freshness themselves."""

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
    )

    def __init__(
        self,
        candidates: Sequence[int],
        deadline: float,
        health: Mapping[int, PeerHealth],
        budget: HedgeBudget,
        patience: float = 0.0,
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
        budget.note_request()

    def step(self, now: float) -> Step:
        if now >= self._deadline:
            return self._give_up()
        if not self._left:
            return Wait(self._deadline) if self._running else self._give_up()
        if self._last not in self._running:
            return self._ask(now, hedge=False)
        last = self._health[self._last]
        share_at = self._last_at + (self._deadline - self._last_at) / (len(self._left) + 1)
        if now >= share_at or (last.unhealthy and any(self._health[o].allows(now) for o in self._left)):
            return self._ask(now, hedge=False)
        hedge_at = self._last_at + max(self._patience, last.hedge_after)
        if now >= hedge_at:
            if self._budget.take():
                return self._ask(now, hedge=True)
            hedge_at = self._deadline
        return Wait(min(hedge_at, share_at, now + _LOOK_AGAIN_SECONDS))

    def answered(self, ordinal: int, status: int, answer: Any) -> bool:
        """True: this is the request's answer. Otherwise the node refused, and the others are to be asked."""
        self.failed(ordinal)
        if status == _WRONG_OWNER:
            return False
        if status not in _REFUSALS:
            return True
        if status == _OVERLOADED and not (self._left and self._budget.take()):
            return True
        if self._refusal is None or _REFUSALS.index(status) >= _REFUSALS.index(self._refusal[0]):
            self._refusal = status, answer
        return False

    def failed(self, ordinal: int) -> None:
        """Nothing is to be expected of this node any more."""
        if ordinal in self._running:
            self._running.remove(ordinal)

    def _ask(self, now: float, hedge: bool) -> SendTo:
        ordinal = next((o for o in self._left if self._health[o].allows(now)), self._left[0])
        self._left.remove(ordinal)
        self._running.append(ordinal)
        self._last, self._last_at = ordinal, now
        return SendTo(ordinal, hedge)

    def _give_up(self) -> Exhausted:
        return Exhausted(None if self._refusal is None else self._refusal[1])


def no_other_replica_failure(refusal: Failure) -> Failure:
    """When no other node has an answer: why, given why this one has none."""
    if refusal.reason is not Reason.WRONG_OWNER or refusal.partition is None:
        return refusal
    return unreachable_failure(refusal.partition)


def unreachable_failure(partition: int) -> Failure:
    return Failure(
        Reason.NOT_AVAILABLE,
        f"no node that holds partition {partition} can be reached",
        "retry; /v1/placement names the nodes",
        partition=partition,
        retry_after_ms=1000,
    )
