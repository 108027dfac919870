"""Divide the rows of a read into steps, where a row costs more to render than to copy.

Strategy: the size of the stored state counts, since it bounds the work: a set of a thousand values takes a millisecond. Between
two steps the event loop serves its other connections.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.base.step_budget import RENDERING_FACTOR, STEP_BYTES
from queryable_app.serve.reads.scans import Batches


async def in_rendering_steps(batches: Batches, factor: int = RENDERING_FACTOR) -> Batches:
    """Yield the same rows in batches that are rendered within a few milliseconds.

    `factor` says how much more a byte costs than one that is copied.
    """
    async with aclosing(batches):
        async for batch in batches:
            step: list[RawRow] = []
            size = 0
            for row in batch:
                step.append(row)
                size += len(row[2]) * factor
                if size >= STEP_BYTES:
                    yield step
                    await asyncio.sleep(0)
                    step, size = [], 0
            if step:
                yield step
