"""Bound the rows that a read with conditions looks at before it answers, however few of them match."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

PAGE_LOOKS_MAX: Final = 100_000
"""The rows that one page looks at. Its cursor continues behind them."""
PAGE_LOOK_BYTES_MAX: Final = 32 << 20


class LookBudget:
    """Count the rows that a read looks at, on this node and on others, and say when they are enough for one answer."""

    __slots__ = ("_bytes_max", "_rows_max", "_until", "bytes", "rows")

    def __init__(
        self, rows_max: int = sys.maxsize, bytes_max: int = sys.maxsize, until: float | None = None
    ) -> None:
        self.rows = self.bytes = 0
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._until = until  # loop time

    def take(self, rows: int, size: int) -> None:
        self.rows += rows
        self.bytes += size

    @property
    def is_spent(self) -> bool:
        if self.rows >= self._rows_max or self.bytes >= self._bytes_max:
            return True
        return self._until is not None and asyncio.get_running_loop().time() >= self._until


def page_looks(deadline: float) -> LookBudget:
    """Return the budget of a page that is due at a moment (loop time): half of the time that is left is for looking."""
    now = asyncio.get_running_loop().time()
    return LookBudget(PAGE_LOOKS_MAX, PAGE_LOOK_BYTES_MAX, now + (deadline - now) / 2)
