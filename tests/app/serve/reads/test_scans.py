"""The stages of a read over many rows end together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads.scans import merge_sources


class Away(Exception):
    """Stand for the failure of a node."""


async def _slow(closed: list[str]) -> AsyncGenerator[list[RawRow], None]:
    try:
        await asyncio.sleep(60)
        yield []
    finally:
        closed.append("slow")


async def _failing() -> AsyncGenerator[list[RawRow], None]:
    rows: list[list[RawRow]] = []
    for batch in rows:
        yield batch
    raise Away


def test_failing_source_ends_the_merge_while_another_is_read() -> None:
    """The merge raises the failure of one source, and closes another one that still waits for its rows."""
    closed: list[str] = []

    async def read() -> None:
        async for _ in merge_sources([_slow(closed), _failing()], reverse=False):
            pass

    with pytest.raises(Away):
        asyncio.run(read())
    assert closed == ["slow"]
