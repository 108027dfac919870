"""How a store ends: when nobody reads it any more. Until then RocksDB keeps its directory locked, even if it is closed."""

from __future__ import annotations

import asyncio
import shutil
from math import inf
from pathlib import Path

from queryable_app.serve.base.background import in_thread
from queryable_app.serve.store.store import Store


async def wait_until_unused(store: Store, seconds: float = inf) -> None:
    """Until nobody reads it step by step. Asked again and again, since iterators end wherever they are dropped."""
    time_of = asyncio.get_running_loop().time
    until = time_of() + seconds
    while store.in_use and time_of() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def close_when_unused(store: Store) -> None:
    """Also when this is cancelled. In a thread: after a write that found the disk full, RocksDB takes a second to close."""
    try:
        store.cancel_compaction()
        await wait_until_unused(store)
    finally:
        await in_thread(store.close)


def delete_directory(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
