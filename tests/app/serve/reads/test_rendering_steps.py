"""Test that the rows of an aggregated view are rendered in steps, between which the event loop serves others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.base.step_budget import RENDERING_FACTOR, STEP_BYTES
from queryable_app.serve.reads.rendering_steps import in_rendering_steps

STEP_ROWS = 4
LARGE = bytes(STEP_BYTES // RENDERING_FACTOR // STEP_ROWS)


async def batches_of(sizes: Sequence[int], content: bytes) -> AsyncGenerator[list[RawRow], None]:
    for size in sizes:
        yield [(b"%d" % number, 0, content) for number in range(size)]


async def steps_and_turns(batches: AsyncGenerator[list[RawRow], None]) -> list[tuple[list[RawRow], int]]:
    """Return each step, and how often another task had run before it."""
    turns = 0

    async def run_besides() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(run_besides())
    steps = [(step, turns) async for step in in_rendering_steps(batches)]
    task.cancel()
    return steps


def test_large_states_are_rendered_a_few_at_a_time() -> None:
    """No step is larger than the budget, every row is there once and in order, and other tasks run between the steps."""
    steps = asyncio.run(steps_and_turns(batches_of([10, 3], LARGE)))

    assert [len(step) for step, _ in steps] == [4, 4, 2, 3]
    assert [row[0] for step, _ in steps for row in step] == [b"%d" % n for n in [*range(10), *range(3)]]
    assert steps[0][1] < steps[1][1] < steps[2][1]


def test_small_states_stay_one_batch() -> None:
    """Rows that are cheap to render are not divided."""
    steps = asyncio.run(steps_and_turns(batches_of([512], bytes(35))))

    assert [len(step) for step, _ in steps] == [512]
