"""Accept requests for an application that is still being made.

Strategy: importing FastAPI takes longer than all else that a node does before it answers. Plain reads, multi-gets and
heartbeats need none of it (`fast_lane.py`), so they are answered while it is imported, and any other request waits until then.
How many may wait is bounded where requests are admitted (`bounded_protocol.py`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from queryable_app.platform.collector import long_lived

Factory = Callable[[], ASGIApp]

_SWITCH_SECONDS: Final = 0.0005  # a tenth of Python's default
"""How long a read waits for the thread that imports. It halves the p99 of reads meanwhile (docs/experiments.md)."""


class LateApp:
    """Pass requests on to the application of a factory. `load` imports the factory, in a thread."""

    def __init__(self, load: Callable[[], Factory]) -> None:
        self._load: Final = load
        self._made = asyncio.Event()
        self._app: ASGIApp | None = None

    async def make(self) -> None:
        """Import what the application is made of in a thread, and make it on the event loop."""
        with long_lived(), _frequent_switches():
            factory = await asyncio.get_running_loop().run_in_executor(None, self._load)
            self._app = factory()
        self._made.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            await self._made.wait()
        assert self._app is not None
        await self._app(scope, receive, send)


@contextmanager
def _frequent_switches() -> Iterator[None]:
    """Let the threads of this process take turns more often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
