"""Split long work of one task into steps, between which the event loop serves its sockets.

Strategy: the size of the work counts, not its time, so that a run of the simulation repeats exactly. A step of the size below
takes a millisecond or two; a single call into C of a larger size is a step of its own.
"""

from __future__ import annotations

import asyncio
from typing import Final

STEP_BYTES: Final = 256 * 1024
ITEM_BYTES: Final = 1024
"""The size to add for each item (a key, a record, a value of JSON), whose handling costs time however short it is."""

PARSING_FACTOR: Final = 4
"""How much more a byte of a JSON value costs to parse than a byte that is copied."""

RENDERING_FACTOR: Final = 8
"""How much more a byte of an aggregate's state costs to render than a byte that is copied."""


class StepBudget:
    """Count the work of one task since the event loop last ran other callbacks."""

    __slots__ = ("_spent",)

    def __init__(self) -> None:
        self._spent = 0

    async def spend(self, size: int) -> None:
        """Count work of this size as done, and yield to the event loop if the step has become long."""
        self._spent += size
        if self._spent >= STEP_BYTES:
            self._spent = 0
            await asyncio.sleep(0)
