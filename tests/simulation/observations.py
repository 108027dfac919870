"""Record reachability and hedges, so that the checks can tell what must have been possible and what was too much."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Literal

from queryable_app.policy.attempts import HedgeBudget, SendTo, Step
from tests.simulation.clock import Scheduler
from tests.simulation.nodes import HEDGE_BURST, HEDGE_SHARE

Cause = Literal["down", "stopped", "no descriptors", "cut", "slow"]
"""Why a host or a link is broken. A host is down until it serves."""


class Reachability:
    """Record which hosts were up and which links were whole, and since when. A link is a pair of hosts.

    Causes overlap: a node that starts may be stopped before it serves. A host or link is whole when all its causes have ended.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._causes: defaultdict[object, set[Cause]] = defaultdict(set)
        self._changed_at: dict[object, float] = {}

    def mark_broken(self, what: object, cause: Cause) -> None:
        self._causes[what].add(cause)
        self._changed_at[what] = self._scheduler.now

    def end_cause(self, what: object, cause: Cause) -> None:
        """End one cause, if it is there."""
        if cause in self._causes[what]:
            self._causes[what].remove(cause)
            self._changed_at[what] = self._scheduler.now

    def unchanged(self, what: object, since: float) -> bool:
        """Tell whether a host or link has been whole since then."""
        return not self._causes[what] and self._changed_at.get(what, 0.0) <= since

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

    def note_requests(self, budget: HedgeBudget, count: int) -> None:
        """Count requests, also those that are answered before they need another attempt."""
        self._budgets[id(budget)] = budget
        self._requests[id(budget)] += count

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
