"""Bound the memory of all answers under way, from the first row that a read gathers to the last byte that the client takes.

Strategy: each request has a reservation. The code that gathers rows or keeps a large body takes the size first, and the
reservation releases everything when the request ends. A small answer takes nothing, so that large answers do not block it. An
answer that is alone is bounded only by its own limit.
"""

from __future__ import annotations

from typing import Final

from queryable_app.serve.base.admission import overloaded
from queryable_app.serve.base.byte_budget import ByteBudget

SMALL_ANSWER_BYTES: Final = 64 * 1024


class AnswerReservation:
    """Track the bytes that one request takes from the budget."""

    __slots__ = ("_budget", "_needed", "_taken")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._needed = self._taken = 0

    def take(self, size: int) -> None:
        """Take bytes, or raise a Failure (overloaded) if the other answers leave too few."""
        needed = self._needed + size
        missing = needed - self._taken if needed > SMALL_ANSWER_BYTES else 0
        if missing > 0:
            if self._budget.taken == self._taken:
                self._budget.take_over_limit(missing)
            elif not self._budget.take(missing):
                raise overloaded(f"the answers under way take up to {self._budget.bytes_max} bytes")
            self._taken += missing
        self._needed = needed

    def release(self, size: int) -> None:
        self._needed -= size
        spare = self._taken - (self._needed if self._needed > SMALL_ANSWER_BYTES else 0)
        self._budget.release(spare)
        self._taken -= spare

    def keep(self, size: int) -> None:
        """Count a body that is in memory already. Bytes that were taken for its rows count towards it."""
        missing = size - self._taken
        if missing > 0:
            self._budget.take_over_limit(missing)
            self._taken += missing

    def end(self) -> None:
        self._budget.release(self._taken)
        self._needed = self._taken = 0
