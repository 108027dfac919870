"""One question to several nodes, for whoever has a task: the first answer counts, as `Attempts` decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from queryable_app.policy.attempts import Attempts, Exhausted, SendTo
from queryable_app.serve.peers.client import PeerUnavailable


class HasStatus(Protocol):
    @property
    def status(self) -> int: ...


Answer = TypeVar("Answer", bound=HasStatus)


async def first_answer(attempts: Attempts, ask: Callable[[int], Awaitable[Answer]]) -> Answer | None:
    """The answer, or the refusal that says most; None when nobody could be reached in time. Others are let go."""
    loop = asyncio.get_running_loop()
    running: dict[asyncio.Future[Answer], int] = {}
    try:
        while True:
            step = attempts.step(loop.time())
            if isinstance(step, SendTo):
                running[asyncio.ensure_future(ask(step.ordinal))] = step.ordinal
                continue
            if isinstance(step, Exhausted):
                refusal: Answer | None = step.refusal
                return refusal
            done, _ = await asyncio.wait(
                running, timeout=step.until - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
            for asking in done:
                ordinal = running.pop(asking)
                try:
                    answer = asking.result()
                except PeerUnavailable:
                    attempts.failed(ordinal)
                    continue
                if attempts.answered(ordinal, answer.status, answer):
                    return answer
    finally:
        for asking in running:
            asking.cancel()
