"""Wait for a condition, for at most so long: the one place in which tests poll.

Strategy: the pause grows with what a check costs. A check that starts a program or lists many objects would else take the CPU
that the awaited processes need, in every wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 0.02
_PAUSE_SECONDS_MAX = 1.0
_PAUSE_SHARE = 3  # a check takes at most a quarter of the time


def eventually(
    what: str, check: Callable[[], T | None], seconds: float = 90, *, story: Callable[[], str] = str
) -> T:
    """Return the first result of `check` that is true, or fail with what was waited for and the story."""
    began = time.monotonic()
    deadline = began + seconds
    while not (result := check()):
        now = time.monotonic()
        assert now < deadline, f"not within {seconds:.0f} s: {what}\n{story()}".rstrip()
        time.sleep(min(max(_PAUSE_SECONDS, _PAUSE_SHARE * (now - began)), _PAUSE_SECONDS_MAX))
        began = time.monotonic()
    return result


async def until(what: str, check: Callable[[], object], seconds: float = 20) -> None:
    """Wait on the event loop until `check` is true, or fail with what was waited for."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        await asyncio.sleep(_PAUSE_SECONDS / 2)
