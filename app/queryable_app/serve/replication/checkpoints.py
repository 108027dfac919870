"""Serve checkpoints of this node's replicas, from which other nodes hydrate theirs.

Strategy: a checkpoint is a directory of hard links. It costs nothing at first, but it retains files that the store has compacted
away. So each checkpoint has a lease, which ends when it was unused for a while, and a node has only a few. The next start removes
what a killed process left. RocksDB holds the interpreter while it makes a checkpoint, so a thread flushes the memtables first.
The rest takes milliseconds and runs on the event loop, where no write can happen meanwhile: the position matches exactly the
rows in both column families.

The digests of a large replica take minutes. The lease exists at once, and a request for its manifest returns the progress until
then. So a peer can tell a node that hangs from one that has much to read.

Two threads of their own read, digest and delete files, a few milliseconds at a time. All leases share one budget of bytes a
second, because reads have priority.
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

from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.platform.log import event
from queryable_app.serve.base.background import Background, guarded
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.replicas import Replicas
from queryable_app.serve.store.store import Store
from queryable_app.serve.store.store_errors import StoreError
from queryable_app.wire.checkpoint_files import (
    RANGE_BYTES_MAX,
    CheckpointFile,
    CheckpointInProgress,
    Manifest,
    RateBudget,
)
from queryable_app.wire.disk_format import FORMAT_VERSION, ReplicaState

A = TypeVarTuple("A")
T = TypeVar("T")

_LEASES_MAX: Final = 8
_LEASE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_WAIT_SECONDS_MAX: Final = 10.0
_MANIFEST_SECONDS: Final = 0.5  # a request for the manifest waits this long
_DIGEST_BYTES: Final = 8 << 20  # at a time


@dataclass(slots=True)
class _Lease:
    id: str
    path: Path
    partition: int
    used_at: float  # monotonic
    bytes_read: int = 0
    making: asyncio.Future[Manifest] = field(init=False)
    files: dict[str, CheckpointFile] = field(default_factory=dict)
    """Empty until all digests are complete."""


class Checkpoints(Background):
    """Make, serve and expire checkpoints from `start` to `stop`. Call it from the event loop."""

    def __init__(
        self, directory: Path, application_id: str, replicas: Replicas, mb_per_second_max: int
    ) -> None:
        self.lease_seconds = _LEASE_SECONDS
        """How long an unused lease lasts."""
        self._directory = directory
        self._application_id = application_id
        self._replicas = replicas
        self._budget = RateBudget(mb_per_second_max << 20)
        self._leases: dict[str, _Lease] = {}
        self._threads = ThreadPoolExecutor(2, "checkpoints")
        shutil.rmtree(directory, ignore_errors=True)

    def create(self, partition: int, records_min: int) -> CheckpointInProgress:
        """Start a checkpoint. Raise a Failure: not_available also if the replica has fewer than `records_min` records."""
        self._checkpointable(partition, records_min)
        if len(self._leases) >= _LEASES_MAX:
            raise _busy(f"{_LEASES_MAX} checkpoints of this node are being copied already")
        lease_id = secrets.token_hex(8)
        lease = _Lease(lease_id, self._directory / lease_id, partition, time.monotonic())
        self._leases[lease_id] = lease
        lease.making = asyncio.create_task(self._make(lease, records_min))
        return CheckpointInProgress(lease_id, 0)

    async def manifest(self, lease_id: str) -> Manifest | CheckpointInProgress:
        """Return the manifest, or the progress after half a second. Raise a Failure if the checkpoint could not be made."""
        lease = self._lease(lease_id)
        lease.used_at = time.monotonic()
        await asyncio.wait([lease.making], timeout=_MANIFEST_SECONDS)
        if not lease.making.done():
            return CheckpointInProgress(lease_id, lease.bytes_read)
        if lease.making.cancelled():
            raise _no_lease(lease_id)
        if lease.making.exception():
            await self.release(lease_id)
        return lease.making.result()

    async def _make(self, lease: _Lease, records_min: int) -> Manifest:
        partition = lease.partition
        try:
            await self._in_thread(
                _prepare, self._directory, self._checkpointable(partition, records_min).store
            )
            replica = self._checkpointable(
                partition, records_min
            )  # it may have been removed or emptied meanwhile
            replica.store.checkpoint(lease.path)
            position = replica.position
            files = [await self._described(lease, path) for path in sorted(lease.path.iterdir())]
        except (StoreError, OSError) as error:
            event("checkpoint-failed", partition=partition, reason=str(error))
            raise _no_checkpoint_failure(partition, f"no checkpoint can be made ({error})") from error
        lease.used_at = time.monotonic()
        lease.files = {file.name: file for file in files}
        return Manifest(lease.id, self._application_id, partition, position, FORMAT_VERSION, tuple(files))

    async def _described(self, lease: _Lease, path: Path) -> CheckpointFile:
        digest, size = hashlib.sha256(), 0
        while read := await self._in_thread(_read_into, digest.update, path, size):
            size += read
            lease.bytes_read += read
        return CheckpointFile(path.name, size, digest.hexdigest())

    async def read(self, lease_id: str, name: str, offset: int, length: int) -> bytes:
        """Return a range of a file. It is shorter than `length` only if the file has shrunk."""
        lease = self._lease(lease_id)
        file = lease.files.get(name)
        if file is None:
            raise Failure(
                Reason.NO_SUCH_RESOURCE,
                f"the checkpoint has no file {shown(name)}",
                "ask for a file of its manifest",
            )
        if not (0 <= offset <= file.size and 0 < length <= RANGE_BYTES_MAX):
            raise invalid(
                "offset, length",
                f"{offset} and {length} are no range of a file of {file.size} bytes",
                f"ask for up to {RANGE_BYTES_MAX} bytes within the file",
            )
        lease.used_at = now = time.monotonic()
        if self._budget.wait(now) > _WAIT_SECONDS_MAX:
            raise _busy("other checkpoint fetches use all that this node may send")
        await asyncio.sleep(self._budget.take(min(length, file.size - offset), now))
        try:
            return await self._in_thread(_read, lease.path / name, offset, min(length, file.size - offset))
        except FileNotFoundError:
            raise _no_lease(lease_id) from None
        finally:
            lease.used_at = time.monotonic()

    async def release(self, lease_id: str) -> None:
        """End the lease and delete its checkpoint."""
        lease = self._lease(lease_id)
        del self._leases[lease_id]
        lease.making.cancel()
        await asyncio.gather(lease.making, return_exceptions=True)
        await self._in_thread(_remove, lease.path)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            unused_since = time.monotonic() - self.lease_seconds
            for lease_id, lease in list(self._leases.items()):
                if lease.used_at < unused_since:
                    event("checkpoint-expired", partition=lease.partition, lease=lease_id)
                    with guarded("Checkpoints"):
                        await self.release(lease_id)

    async def _close(self) -> None:
        for lease_id in list(self._leases):
            await self.release(lease_id)
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        await asyncio.to_thread(_remove, self._directory)

    def _checkpointable(self, partition: int, records_min: int) -> Replica:
        replica = self._replicas.by_partition.get(partition)
        if replica is None or not replica.writable or not replica.complete:
            raise _no_checkpoint_failure(
                partition, "this node has no replica that is complete and has not failed"
            )
        if replica.damaged is not None:
            raise _no_checkpoint_failure(partition, "a part of the replica here cannot be read")
        records = _records(replica.state)
        if records < records_min:
            raise _no_checkpoint_failure(
                partition, f"the replica has only {records} records, which the topic streams at once"
            )
        return replica

    def _lease(self, lease_id: str) -> _Lease:
        lease = self._leases.get(lease_id)
        if lease is None:
            raise _no_lease(lease_id)
        return lease

    async def _in_thread(self, function: Callable[[Unpack[A]], T], *args: *A) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


def _records(state: ReplicaState) -> int:
    """Return how many records ingest would have to read, unless the topic was compacted since."""
    return state.rows + state.deletes + state.null_keys + state.bad + state.dropped


def _prepare(directory: Path, store: Store) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    store.flush()


def _read_into(digest: Callable[[bytes], None], path: Path, offset: int) -> int:
    """Digest the next block of the file, and return its length."""
    block = _read(path, offset, _DIGEST_BYTES)
    digest(block)
    return len(block)


def _read(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), length, offset)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _no_checkpoint_failure(partition: int, why: str) -> Failure:
    return Failure(
        Reason.NOT_AVAILABLE, why, "ask another node, or hydrate from the topic", partition=partition
    )


def _no_lease(lease_id: str) -> Failure:
    return Failure(
        Reason.NO_SUCH_RESOURCE,
        f"there is no checkpoint {shown(lease_id)}: it was released, or unused for a while",
        "ask for a new one; identical files need not be copied again",
    )


def _busy(why: str) -> Failure:
    return Failure(Reason.OVERLOADED, why, "retry in a while", retry_after_ms=1000)
