"""Wait for a condition, for at most so long: the one place in which tests poll."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 0.02


def eventually(
    what: str, check: Callable[[], T | None], seconds: float = 90, *, story: Callable[[], str] = str
) -> T:
    """Return the first result of `check` that is true, or fail with what was waited for and the story."""
    deadline = time.monotonic() + seconds
    while not (result := check()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}\n{story()}".rstrip()
        time.sleep(_PAUSE_SECONDS)
    return result


async def until(what: str, check: Callable[[], object], seconds: float = 20) -> None:
    """Wait on the event loop until `check` is true, or fail with what was waited for."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        await asyncio.sleep(_PAUSE_SECONDS / 2)
