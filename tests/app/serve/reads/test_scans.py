"""The stages of a read over many rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads.scans import merge_sources


class Away(Exception):
    """As of a node that has gone."""


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


def test_a_source_that_fails_ends_the_merge_while_another_is_being_read() -> None:
    """A source's failure is the merge's own, although another source still waits for its rows; that one is closed."""
    closed: list[str] = []

    async def read() -> None:
        async for _ in merge_sources([_slow(closed), _failing()], reverse=False):
            pass

    with pytest.raises(Away):
        asyncio.run(read())
    assert closed == ["slow"]
