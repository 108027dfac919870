"""Checkpoints of this node's copies, from which other nodes build theirs.

Strategy: a checkpoint is a directory of hard links, so it costs nothing but keeps what the store has compacted away. Hence
leases: a few at once, and each ends when nobody has used it for a while; what a killed process left is gone at the next start.
RocksDB holds the interpreter while it makes one, so memtables are written out before, in a thread. What then remains takes
milliseconds, and it happens on the event loop, where nothing is written meanwhile: the position speaks of exactly the
rows that are there, in both column families.

The digests of a large copy take minutes. A lease is there at once, and whoever waits for its manifest is told how far it is, so
that a node which hangs can be told from one that has much to read.

Reading, digests and removal have two threads of their own, a few milliseconds of work at a time, and all leases share one budget
of bytes a second: reads go first.
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
from queryable_app.serve.store.store import Store, StoreError
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
_MANIFEST_SECONDS: Final = 0.5  # for so long a question for it waits
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
    """None of them before all have their digests."""


class Checkpoints(Background):
    """Runs from `start` to `stop`. Call it from the event loop."""

    def __init__(
        self, directory: Path, application_id: str, replicas: Replicas, mb_per_second_max: int
    ) -> None:
        self.lease_seconds = _LEASE_SECONDS
        """How long a checkpoint is kept that nobody reads."""
        self._directory = directory
        self._application_id = application_id
        self._replicas = replicas
        self._budget = RateBudget(mb_per_second_max << 20)
        self._leases: dict[str, _Lease] = {}
        self._threads = ThreadPoolExecutor(2, "checkpoints")
        shutil.rmtree(directory, ignore_errors=True)

    def create(self, partition: int, records_min: int) -> CheckpointInProgress:
        """Raises Failure; not_available also when there are fewer records than make a copy worth while."""
        self._checkpointable(partition, records_min)
        if len(self._leases) >= _LEASES_MAX:
            raise _busy(f"{_LEASES_MAX} checkpoints of this node are being copied already")
        lease_id = secrets.token_hex(8)
        lease = _Lease(lease_id, self._directory / lease_id, partition, time.monotonic())
        self._leases[lease_id] = lease
        lease.making = asyncio.create_task(self._make(lease, records_min))
        return CheckpointInProgress(lease_id, 0)

    async def manifest(self, lease_id: str) -> Manifest | CheckpointInProgress:
        """After a moment at the latest. Raises Failure, also when the checkpoint could not be made."""
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
            replica = self._checkpointable(partition, records_min)  # it may have gone, or been emptied
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
                partition, "there is no copy here that is complete and has not failed"
            )
        if replica.damaged is not None:
            raise _no_checkpoint_failure(partition, "a part of the copy here cannot be read")
        records = _records(replica.state)
        if records < records_min:
            raise _no_checkpoint_failure(
                partition, f"it was made from {records} records, which stream at once"
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
    """That would have to be streamed, where none of them has been compacted away since."""
    return state.rows + state.deletes + state.null_keys + state.bad + state.dropped


def _prepare(directory: Path, store: Store) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    store.flush()


def _read_into(digest: Callable[[bytes], None], path: Path, offset: int) -> int:
    """The next bytes of the file; how many there were."""
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
