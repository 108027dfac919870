"""Checkpoints of this node's copies, from which other nodes build theirs.

Strategy: a checkpoint is a directory of hard links, so it costs nothing but keeps what the store has compacted away. Hence
leases: a few at once, and each ends when nobody has used it for a while; what a killed process left is gone at the next start.
RocksDB holds the interpreter while it makes one, so memtables are written out before, in a thread. What then remains takes
milliseconds, and it happens on the event loop, where nothing is written meanwhile: the position speaks of exactly the
rows that are there, in both column families.

Reading, digests and removal have two threads of their own, and all leases share one budget of bytes a second: reads go first.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple, Unpack

from queryable_app.checkpoint_files import RANGE_BYTES_MAX, CheckpointFile, Manifest, RateBudget
from queryable_app.disk_format import FORMAT_VERSION, CopyState
from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.log import event
from queryable_app.serve.background import Background
from queryable_app.serve.copies import Copies, Copy
from queryable_app.serve.store import Store, StoreError

A = TypeVarTuple("A")
T = TypeVar("T")

_LEASES_MAX: Final = 8
_LEASE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_WAIT_SECONDS_MAX: Final = 10.0


@dataclass(slots=True)
class _Lease:
    manifest: Manifest
    path: Path
    used_at: float  # monotonic
    files: dict[str, CheckpointFile] = field(init=False)

    def __post_init__(self) -> None:
        self.files = {file.name: file for file in self.manifest.files}


class Checkpoints(Background):
    """Runs from `start` to `stop`. Call it from the event loop."""

    def __init__(self, directory: Path, application_id: str, copies: Copies, mb_per_second_max: int) -> None:
        self.lease_seconds = _LEASE_SECONDS
        """How long a checkpoint is kept that nobody reads."""
        self._directory = directory
        self._application_id = application_id
        self._copies = copies
        self._budget = RateBudget(mb_per_second_max << 20)
        self._leases: dict[str, _Lease] = {}
        self._being_made = 0
        self._threads = ThreadPoolExecutor(2, "checkpoints")
        shutil.rmtree(directory, ignore_errors=True)

    async def create(self, partition: int, records_min: int) -> Manifest:
        """Raises Failure; not_available also when there are fewer records than make a copy worth while."""
        copy = self._copyable(partition, records_min)
        if len(self._leases) + self._being_made >= _LEASES_MAX:
            raise _busy(f"{_LEASES_MAX} checkpoints of this node are being copied already")
        lease = secrets.token_hex(8)
        path = self._directory / lease
        self._being_made += 1
        try:
            await self._in_thread(_prepare, self._directory, copy.store)
            copy = self._copyable(partition, records_min)  # it may have gone, or been emptied
            copy.store.checkpoint(path)
            position = copy.position
            files = await self._in_thread(_described, path)
        except (StoreError, OSError) as error:
            await self._in_thread(_remove, path)
            event("checkpoint-failed", partition=partition, reason=str(error))
            raise _not_copyable(partition, f"no checkpoint can be made ({error})") from error
        finally:
            self._being_made -= 1
        manifest = Manifest(lease, self._application_id, partition, position, FORMAT_VERSION, files)
        self._leases[lease] = _Lease(manifest, path, time.monotonic())
        return manifest

    async def read(self, lease_id: str, name: str, offset: int, length: int) -> bytes:
        """Less than `length` only where the file has become shorter than it was."""
        lease = self._lease(lease_id)
        file = lease.files.get(name)
        if file is None:
            raise Failure(
                Reason.NO_SUCH_RESOURCE,
                f"the checkpoint has no file {shown(name)}",
                "ask for those in its manifest",
            )
        if not (0 <= offset <= file.size and 0 < length <= RANGE_BYTES_MAX):
            raise invalid(
                "offset, length",
                f"{offset} and {length} are no range of a file of {file.size} bytes",
                f"ask for up to {RANGE_BYTES_MAX} bytes that are in the file",
            )
        lease.used_at = now = time.monotonic()
        if self._budget.wait(now) > _WAIT_SECONDS_MAX:
            raise _busy("other copies use all that this node may send")
        await asyncio.sleep(self._budget.take(min(length, file.size - offset), now))
        try:
            return await self._in_thread(_read, lease.path / name, offset, min(length, file.size - offset))
        except FileNotFoundError:
            raise _no_lease(lease_id) from None
        finally:
            lease.used_at = time.monotonic()

    async def release(self, lease_id: str) -> None:
        lease = self._lease(lease_id)
        del self._leases[lease_id]
        await self._in_thread(_remove, lease.path)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            unused_since = time.monotonic() - self.lease_seconds
            for lease_id, lease in list(self._leases.items()):
                if lease.used_at < unused_since:
                    event("checkpoint-expired", partition=lease.manifest.partition, lease=lease_id)
                    await self.release(lease_id)

    async def _close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        await asyncio.to_thread(_remove, self._directory)

    def _copyable(self, partition: int, records_min: int) -> Copy:
        copy = self._copies.by_partition.get(partition)
        if copy is None or copy.failed is not None or not copy.complete:
            raise _not_copyable(partition, "there is no copy here that is complete and has not failed")
        if copy.damaged is not None:
            raise _not_copyable(partition, "a part of the copy here cannot be read")
        records = _records(copy.state)
        if records < records_min:
            raise _not_copyable(partition, f"it was made from {records} records, which stream at once")
        return copy

    def _lease(self, lease_id: str) -> _Lease:
        lease = self._leases.get(lease_id)
        if lease is None:
            raise _no_lease(lease_id)
        return lease

    async def _in_thread(self, function: Callable[[Unpack[A]], T], *args: *A) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


def _records(state: CopyState) -> int:
    """That would have to be streamed, where none of them has been compacted away since."""
    return state.rows + state.deletes + state.null_keys + state.bad + state.dropped


def _prepare(directory: Path, store: Store) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    store.flush()


def _described(path: Path) -> tuple[CheckpointFile, ...]:
    files = []
    for entry in sorted(path.iterdir()):
        with entry.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            files.append(CheckpointFile(entry.name, os.fstat(file.fileno()).st_size, digest))
    return tuple(files)


def _read(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), length, offset)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _not_copyable(partition: int, why: str) -> Failure:
    return Failure(
        Reason.NOT_AVAILABLE, why, "ask another node, or build the copy from the topic", partition=partition
    )


def _no_lease(lease_id: str) -> Failure:
    return Failure(
        Reason.NO_SUCH_RESOURCE,
        f"there is no checkpoint {shown(lease_id)}: it was released, or not used for a while",
        "ask for a new one; files that are the same need not be copied again",
    )


def _busy(why: str) -> Failure:
    return Failure(Reason.OVERLOADED, why, "retry in a while", retry_after_ms=1000)
