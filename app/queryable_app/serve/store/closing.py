"""Close a store once nothing reads it: until then RocksDB keeps its directory locked, even after `close`."""

from __future__ import annotations

import asyncio
import shutil
from math import inf
from pathlib import Path
from typing import Final

from queryable_app.serve.base.background import in_thread
from queryable_app.serve.store.store import Store

_POLL_SECONDS: Final = 0.05


async def wait_until_unused(store: Store, seconds: float = inf) -> None:
    """Wait until no iterator and no thread uses the store. This polls, because an iterator may end when it is collected."""
    time_of = asyncio.get_running_loop().time
    until = time_of() + seconds
    while store.in_use and time_of() < until:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SECONDS)


async def close_when_unused(store: Store) -> None:
    """Close the store, also if cancelled. Use a thread: after a write to a full disk RocksDB takes a second to close."""
    try:
        store.cancel_compaction()
        await wait_until_unused(store)
    finally:
        await in_thread(store.close)


def delete_directory(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
