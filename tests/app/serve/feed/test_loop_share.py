"""Test how slices and reads share the event loop."""

from __future__ import annotations

import asyncio
from statistics import median
from types import SimpleNamespace

import pytest

from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.feed import loop_share
from queryable_app.serve.feed.loop_share import LoopShare


class Clock:
    """Replace the clock of LoopShare, so that no other process stretches what a test measures."""

    def __init__(self) -> None:
        self._seconds = 100.0

    def now(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        self._seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(loop_share, "time", SimpleNamespace(monotonic=clock.now))
    return clock


def test_ingest_takes_half_of_the_loop_while_reads_arrive() -> None:
    """While reads arrive, slices pause for as long as they took. Otherwise they do not pause."""

    async def pause_of(reading: bool) -> float:
        loop = asyncio.get_running_loop()
        share = LoopShare(lambda: monotonic_ms() if reading else -1000)
        begun: list[float] = []
        ended: list[float] = []

        def work() -> None:
            begun.append(loop.time())
            while loop.time() < begun[-1] + 0.01:
                pass
            ended.append(loop.time())

        for _ in range(20):
            await share.run(work)
        return median(begin - end for end, begin in zip(ended, begun[1:], strict=False))

    assert asyncio.run(pause_of(reading=True)) >= 0.009
    assert asyncio.run(pause_of(reading=False)) < 0.005


def test_occasional_slices_are_applied_at_once(clock: Clock) -> None:
    """A slice whose predecessor ended longer ago than it took yields once and does not sleep, though reads arrive."""

    async def turns_of_the_loop() -> int:
        share = LoopShare(monotonic_ms)
        slept = 0
        for _ in range(20):
            running = asyncio.create_task(share.run(lambda: clock.advance(0.0006)))
            for _ in range(3):  # begin, yield once, end
                await asyncio.sleep(0)
            slept += not running.done()
            await running
            clock.advance(0.002)
        return slept

    assert asyncio.run(turns_of_the_loop()) == 0


def test_slice_is_not_applied_before_one_that_waits(clock: Clock) -> None:
    """A slice that could be applied at once waits while another one has the slot, or after slices took a millisecond."""

    async def run() -> list[bool]:
        share = LoopShare(lambda: -1000)

        def work() -> None:
            clock.advance(0.005)

        at_once = [share.run_now(work), share.run_now(work)]
        clock.advance(0.005)
        waiting = asyncio.create_task(share.run(work))
        await asyncio.sleep(0)
        at_once.append(share.run_now(work))
        await waiting
        clock.advance(0.005)
        at_once.append(share.run_now(work))
        return at_once

    assert asyncio.run(run()) == [True, False, False, True]
