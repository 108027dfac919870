"""Record reachability and hedges, so that the checks can tell what must have been possible and what was too much."""

from __future__ import annotations

from collections import Counter

from queryable_app.policy.attempts import HedgeBudget, SendTo, Step
from tests.simulation.clock import Scheduler
from tests.simulation.nodes import HEDGE_BURST, HEDGE_SHARE


class Reachability:
    """Record which hosts were up and which links were whole, and since when. A link is a pair of hosts."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._broken: set[object] = set()
        self._changed_at: dict[object, float] = {}

    def mark_broken(self, what: object) -> None:
        self._broken.add(what)
        self._changed_at[what] = self._scheduler.now

    def mark_whole(self, what: object) -> None:
        self._broken.discard(what)
        self._changed_at[what] = self._scheduler.now

    def unchanged(self, what: object, since: float) -> bool:
        """Tell whether a host or link has been whole since then."""
        return what not in self._broken and self._changed_at.get(what, 0.0) <= since

    def connected(self, one: str, other: str, since: float) -> bool:
        """Tell whether two hosts have been able to exchange messages since then."""
        return one == other or all(
            self.unchanged(what, since) for what in (one, other, (one, other), (other, one))
        )


class HedgeCounts:
    """Count the requests and hedges of each hedge budget."""

    def __init__(self) -> None:
        self._requests: Counter[int] = Counter()
        self._hedged: Counter[int] = Counter()
        self._budgets: dict[int, HedgeBudget] = {}  # retained, so that no other budget gets the same id

    def note_request(self, budget: HedgeBudget) -> None:
        self._budgets[id(budget)] = budget
        self._requests[id(budget)] += 1

    def note_step(self, budget: HedgeBudget, step: Step) -> None:
        if isinstance(step, SendTo) and step.hedge:
            self._hedged[id(budget)] += 1

    @property
    def total(self) -> int:
        return sum(self._hedged.values())

    def refusal(self, budget: HedgeBudget) -> str | None:
        """Return the violation of the budget, or None."""
        requests, hedged = self._requests[id(budget)], self._hedged[id(budget)]
        if hedged <= HEDGE_BURST + HEDGE_SHARE * requests:
            return None
        return f"hedged {hedged} of {requests} requests"
