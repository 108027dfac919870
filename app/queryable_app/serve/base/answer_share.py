"""What the answers under way may take of a node's memory together, from the first row that is gathered to the last byte sent.

Strategy: each request has a share. Whatever gathers rows or keeps a large body takes their size first, and the share gives all
of it back when the request has ended. A small answer takes nothing, so that large ones do not keep it out; an answer that is
alone is bounded by its own bound only.
"""

from __future__ import annotations

from typing import Final

from queryable_app.serve.base.admission import overloaded
from queryable_app.serve.base.byte_budget import ByteBudget

SMALL_ANSWER_BYTES: Final = 64 * 1024


class AnswerShare:
    """What one request has taken."""

    __slots__ = ("_budget", "_needed", "_taken")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._needed = self._taken = 0

    def take(self, size: int) -> None:
        """Raises Failure (overloaded) if the other answers leave no room."""
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
        """A body of this size is there already, made of what was taken before or of nothing that was counted."""
        missing = size - self._taken
        if missing > 0:
            self._budget.take_over_limit(missing)
            self._taken += missing

    def end(self) -> None:
        self._budget.release(self._taken)
        self._needed = self._taken = 0
