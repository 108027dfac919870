"""Hydrate a replica from a peer's checkpoint, if a peer has one worth fetching. Otherwise the topic hydrates it.

Strategy: files arrive in ranges, several files at once, over connections of their own, so that no forwarded read waits behind a
megabyte. An interrupted fetch continues where it ended: at the same range after a lost connection, and with the same files after
a lease has ended or this process has restarted. If a peer is unavailable, refuses, or sends bytes that do not match its manifest,
the fetch continues at the next peer; corrupt files are deleted and never opened. How long a fetch waits for a peer depends on its
progress. A peer that still digests a large replica reports its progress. A peer that has sent something may come back, unless its
heartbeats have ended and another peer has the replica. If no peer sends anything for a while, the topic hydrates the replica: it
is slower and always available.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from queryable_app.errors import Reason
from queryable_app.platform.log import event
from queryable_app.serve.base.background import in_thread
from queryable_app.serve.peers.client import PeerClient, PeerResponse, PeerUnavailable
from queryable_app.serve.peers.connection import TlsOf
from queryable_app.serve.peers.peers import Peers
from queryable_app.serve.replication.staging import CorruptCheckpoint, StagingDirectory
from queryable_app.wire.checkpoint_files import (
    RANGE_BYTES_MAX,
    CheckpointInProgress,
    FetchProgress,
    Manifest,
    ManifestError,
    PartialFile,
)
from queryable_app.wire.disk_format import FORMAT_VERSION, Identity
from queryable_app.wire.index_entries import RowIndexes

T = TypeVar("T")

CHECKPOINTS: Final = "/internal/v1/checkpoints"
_IN_PROGRESS: Final = 202
RECORDS_MIN: Final = 50_000
"""Fewer records stream from the topic in a quarter of a second."""

_FILES_AT_ONCE: Final = 2
_RANGES_AHEAD: Final = 3  # of a file; a checkpoint is often one large file and some small ones
_FETCHES_AT_ONCE: Final = 2
_LEASES_MAX: Final = 5  # of one peer, for one fetch
_ANSWER_SECONDS: Final = 5.0  # a peer answers at once, or after half a second at the most
_MAKING_SECONDS: Final = 5.0  # without progress of a checkpoint
_RANGE_SECONDS: Final = 15.0
_RELEASE_SECONDS: Final = 2.0
_STALLED_SECONDS: Final = 20.0
_RETRY_SECONDS: Final = 0.25
_SUSPECTED_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 0.1


class _Refused(Exception):
    """The peer has no checkpoint for this node."""


class _Busy(PeerUnavailable):
    """The peer has no capacity at present."""


class _LeaseEnded(Exception):
    """The peer no longer has the checkpoint, or a file of it."""


class PeerHydration:
    """Fetch checkpoints from peers. Use it from one event loop."""

    def __init__(
        self,
        peers: Peers,
        application_id: str,
        topic: str,
        records_min: int = RECORDS_MIN,
        stalled_seconds: float = _STALLED_SECONDS,
        indexes: RowIndexes | None = None,
    ) -> None:
        self._indexes = indexes
        self.records_min = records_min
        self.stalled_seconds = stalled_seconds
        self.progress: dict[int, FetchProgress] = {}
        """The running fetches, by partition."""
        self._peers = peers
        self._application_id = application_id
        self._topic = topic
        self._fetches = asyncio.Semaphore(_FETCHES_AT_ONCE)

    async def fetch(self, partition: int, into: Path, replace_damaged: bool = False) -> bool:
        """Fetch a verified store to `into` and return True, or return False if a store exists or no peer has one worth fetching.

        After a cancellation the next call continues where this one ended. `replace_damaged` replaces the closed store at `into`,
        however few records the peer has.
        """
        staging = StagingDirectory(into)
        async with self._fetches:
            if not replace_damaged and await in_thread(staging.destination_occupied):
                return False
            try:
                if await self._fetch(partition, staging, 1 if replace_damaged else self.records_min):
                    return True
            finally:
                self.progress.pop(partition, None)
            await in_thread(staging.discard)
            return False

    async def _fetch(self, partition: int, staging: StagingDirectory, records_min: int) -> bool:
        interrupted = await in_thread(staging.interrupted_fetch)
        # Resolve all addresses now: a peer may leave the placement before the fetch gets to it.
        peers = [(ordinal, self._peers.address(ordinal)) for ordinal in self._peers.candidates(partition)]
        if interrupted is not None:  # continue at its peer first
            peers.sort(key=lambda peer: peer[1] != interrupted.peer)
        for number, (ordinal, address) in enumerate(peers, 1):
            before = interrupted.manifest if interrupted is not None and interrupted.peer == address else None
            source = _Source(address, self._peers.node_headers, self._peers.tls)
            transfer = _Transfer(self, source, staging, partition, records_min)
            is_lost = partial(self._is_lost, ordinal, partition, [other for other, _ in peers[number:]])
            try:
                await self._fetch_from(
                    source, _unless_lost(is_lost, transfer.run(before)), partition, staging
                )
                return True
            except (PeerUnavailable, _Refused) as error:
                event("peer-copy-given-up", partition=partition, peer=address, reason=str(error))
            except (CorruptCheckpoint, ManifestError) as error:
                event("peer-copy-thrown-away", partition=partition, peer=address, reason=str(error))
                await in_thread(staging.discard)
            except OSError as error:
                event("peer-copy-thrown-away", partition=partition, peer=address, reason=f"disk: {error}")
                return False
        return False

    async def _fetch_from(
        self, source: _Source, transfer: Awaitable[Manifest], partition: int, staging: StagingDirectory
    ) -> None:
        identity = Identity(self._application_id, self._topic, partition)
        started = time.monotonic()
        try:
            manifest = await transfer
            await in_thread(staging.finish, manifest, identity, self._indexes)
            event(
                "copied-from-peer",
                partition=partition,
                peer=source.address,
                position=manifest.position,
                bytes=manifest.size,
                seconds=round(time.monotonic() - started, 3),
            )
            await source.release()
        except PeerUnavailable:
            raise  # the peer cannot release its lease either
        except Exception:
            await source.release()  # not after a cancellation, because the next fetch may continue
            raise
        finally:
            source.close()

    def _is_lost(self, ordinal: int, partition: int, others: Sequence[int]) -> bool:
        """Return whether the peer is suspected and another peer has a complete replica."""
        return ordinal in self._peers.suspected and any(
            self._peers.has_complete_replica(other, partition) for other in others
        )

    def check_manifest(self, manifest: Manifest, partition: int) -> None:
        """Raise ManifestError if the checkpoint is not the requested one."""
        found = (manifest.application_id, manifest.partition, manifest.format)
        if found != (self._application_id, partition, FORMAT_VERSION):
            raise ManifestError(
                f"is of {found}, and partition {partition} of {self._application_id} was asked for"
            )


async def _unless_lost(is_lost: Callable[[], bool], transfer: Coroutine[Any, Any, T]) -> T:
    """Run the transfer, and raise PeerUnavailable once the peer was lost for a second. A shorter suspicion means little."""
    running = asyncio.create_task(transfer)
    alive_at = time.monotonic()
    try:
        while not (await asyncio.wait([running], timeout=_CHECK_SECONDS))[0]:
            if not is_lost():
                alive_at = time.monotonic()
            elif time.monotonic() - alive_at > _SUSPECTED_SECONDS:
                raise PeerUnavailable("its heartbeats have ended, and another node has the replica")
        return running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class _Transfer:
    """Fetch the files of one partition from one peer."""

    def __init__(
        self,
        owner: PeerHydration,
        source: _Source,
        staging: StagingDirectory,
        partition: int,
        records_min: int,
    ) -> None:
        self._owner = owner
        self._source = source
        self._staging = staging
        self._partition = partition
        self._records_min = records_min
        self._started_at = self._progress_at = time.monotonic()
        self._received = 0  # bytes

    async def run(self, before: Manifest | None) -> Manifest:
        """Fetch and check every file. `before` is the manifest of an interrupted fetch from this peer."""
        manifest = before if before is not None and await self._source.has(before) else None
        for _ in range(_LEASES_MAX):
            if manifest is None:
                manifest = await self._with_retries(self._create)
            try:
                await self._fetch_files(manifest)
                return manifest
            except _LeaseEnded:
                await self._source.release()
                manifest = None
        raise _Refused(f"{_LEASES_MAX} checkpoints ended before they were copied")

    async def _create(self) -> Manifest:
        manifest = await self._source.create(self._partition, self._records_min)
        self._owner.check_manifest(manifest, self._partition)
        return manifest

    async def _fetch_files(self, manifest: Manifest) -> None:
        parts = await in_thread(self._staging.begin, self._source.address, manifest)
        self._progress_at = time.monotonic()
        retained = sum(part.start for part in parts) - self._received
        self._note_progress(retained, manifest)
        remaining = iter(parts)

        async def fetch_next_files() -> None:
            for part in remaining:
                await self._fetch_file(manifest, part, retained)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_FILES_AT_ONCE):
                    group.create_task(fetch_next_files())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _fetch_file(self, manifest: Manifest, part: PartialFile, retained: int) -> None:
        file = await in_thread(self._staging.open, part)
        requested_to, requests = file.size, deque[asyncio.Task[bytes]]()
        try:
            while requested_to < part.file.size or requests:
                while requested_to < part.file.size and len(requests) < _RANGES_AHEAD:
                    length = min(RANGE_BYTES_MAX, part.file.size - requested_to)
                    read = partial(self._source.read, manifest.lease, part.file.name, requested_to, length)
                    requests.append(asyncio.create_task(self._with_retries(read)))
                    requested_to += length
                block = await requests.popleft()
                await in_thread(file.append, block)
                self._received += len(block)
                self._progress_at = time.monotonic()
                self._note_progress(retained, manifest)
        finally:
            for task in requests:
                task.cancel()
            await asyncio.gather(*requests, return_exceptions=True)
        file.check()

    async def _with_retries(self, request: Callable[[], Awaitable[T]]) -> T:
        """Retry while the peer is busy, or is unavailable after it has sent something, until it made no progress for a while."""
        while True:
            try:
                return await request()
            except PeerUnavailable as error:
                worth_waiting = self._received > 0 or isinstance(error, _Busy)
                if not worth_waiting or time.monotonic() - self._progress_at > self._owner.stalled_seconds:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    def _note_progress(self, retained: int, manifest: Manifest) -> None:
        rate = self._received / max(1e-3, time.monotonic() - self._started_at)
        self._owner.progress[self._partition] = FetchProgress(
            self._partition, self._source.address, retained + self._received, manifest.size, rate
        )


class _Source:
    """Call a peer's checkpoint routes over connections of its own, so that no forwarded read waits behind a file."""

    def __init__(self, address: str, node_headers: bytes, tls: TlsOf | None) -> None:
        self.address = address
        self._client = PeerClient(address, tls=tls)
        self._headers = node_headers
        self._lease: str | None = None

    async def create(self, partition: int, records_min: int) -> Manifest:
        """Request a checkpoint, and wait for its manifest while the peer makes progress."""
        body = json.dumps({"partition": partition, "recordsMin": records_min}).encode()
        answer = await self._request(b"POST", "", body, _ANSWER_SECONDS)
        time_of, bytes_read = asyncio.get_running_loop().time, -1
        while answer.status == _IN_PROGRESS:
            progress = CheckpointInProgress.from_json(answer.body)
            self._lease = progress.lease
            if progress.bytes_read > bytes_read:
                bytes_read, until = progress.bytes_read, time_of() + _MAKING_SECONDS
            elif time_of() > until:
                raise PeerUnavailable(f"its checkpoint does not get beyond {bytes_read} bytes")
            answer = await self._request(b"GET", f"/{progress.lease}", b"", _ANSWER_SECONDS)
        manifest = Manifest.from_json(answer.body)
        self._lease = manifest.lease
        return manifest

    async def has(self, manifest: Manifest) -> bool:
        """Return whether the lease of an interrupted fetch still exists, and renew it."""
        self._lease = manifest.lease
        try:
            await self._request(b"GET", f"/{manifest.lease}", b"", _ANSWER_SECONDS)
        except _LeaseEnded:
            return False
        return True

    async def read(self, lease: str, name: str, offset: int, length: int) -> bytes:
        target = f"/{lease}/files/{name}?offset={offset}&length={length}"
        answer = await self._request(b"GET", target, b"", _RANGE_SECONDS)
        if len(answer.body) != length:
            raise CorruptCheckpoint(f"{len(answer.body)} bytes of {name} came, and {length} were asked for")
        return answer.body

    async def release(self) -> None:
        """Release the lease early. Otherwise it expires."""
        if self._lease is not None:
            lease, self._lease = self._lease, None
            with suppress(PeerUnavailable, _Refused, _LeaseEnded):
                await self._request(b"DELETE", f"/{lease}", b"", _RELEASE_SECONDS)

    async def _request(self, method: bytes, target: str, body: bytes, seconds: float) -> PeerResponse:
        deadline = asyncio.get_running_loop().time() + seconds
        path = (CHECKPOINTS + target).encode()
        answer = await self._client.request(method, path, self._headers, body, deadline)
        if answer.status in (200, _IN_PROGRESS):
            return answer
        why = f"it answered {answer.status}: {answer.body[:300].decode(errors='replace')}"
        if answer.status == Reason.OVERLOADED.status:
            raise _Busy(why)
        if answer.status == Reason.NO_SUCH_RESOURCE.status:
            raise _LeaseEnded(why)
        raise _Refused(why)

    def close(self) -> None:
        self._client.close()
