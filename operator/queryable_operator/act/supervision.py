"""Restart a background task after a defect, so that one failure ends neither its task nor the operator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

_RESTART_SECONDS: Final = 5.0

_LOG: Final = logging.getLogger("queryable_operator.act.supervision")


async def supervised(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Await `run` until it returns. After an exception, log it and call `run` again."""
    while True:
        try:
            return await run()
        except Exception:
            _LOG.exception(
                "%s failed, which is a defect of the operator; it restarts in %g s", name, _RESTART_SECONDS
            )
        await asyncio.sleep(_RESTART_SECONDS)
