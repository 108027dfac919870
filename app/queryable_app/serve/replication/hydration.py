"""Builds a copy from one that another node has, where there is one worth copying. Otherwise the topic builds it.

Strategy: files come in ranges, several files at once, over connections of their own, so that no forwarded read waits behind a
megabyte. What is broken off goes on where it ended: at the same range after a lost connection, with the same files after a
lease has ended or this process has been started anew. A node that is away, refuses, or sends what does not match its own
manifest is given up for the next one; what was corrupt is thrown away and never opened. How long a node is waited for depends on
what it shows: one that reads a large copy says how far it is, and one that has given something may come back, unless its
heartbeats have ended and another node has the copy. When nothing has come for a while from any of them, the stream has the copy:
it is slower and always there.
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

T = TypeVar("T")

CHECKPOINTS: Final = "/internal/v1/checkpoints"
_BEING_MADE: Final = 202
RECORDS_MIN: Final = 50_000
"""Fewer stream in a quarter of a second, once the stream runs."""

_FILES_AT_ONCE: Final = 2
_RANGES_AHEAD: Final = 3  # of a file; a copy is often one large file and some small ones
_FETCHES_AT_ONCE: Final = 2
_LEASES_MAX: Final = 5  # of one peer, for one copy
_ANSWER_SECONDS: Final = 5.0  # for what is answered at once, or after half a second at the most
_MAKING_SECONDS: Final = 5.0  # without progress in a checkpoint that is being made
_RANGE_SECONDS: Final = 15.0
_RELEASE_SECONDS: Final = 2.0
_STALLED_SECONDS: Final = 20.0
_RETRY_SECONDS: Final = 0.25
_GONE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.1


class _Refused(Exception):
    """The peer has none to give, or none to us."""


class _Busy(PeerUnavailable):
    """The peer gives to others all that it may give."""


class _LeaseEnded(Exception):
    """The peer no longer has this checkpoint."""


class PeerHydration:
    """Use it from one event loop."""

    def __init__(
        self,
        peers: Peers,
        application_id: str,
        topic: str,
        records_min: int = RECORDS_MIN,
        stalled_seconds: float = _STALLED_SECONDS,
    ) -> None:
        self.records_min = records_min
        self.stalled_seconds = stalled_seconds
        self.progress: dict[int, FetchProgress] = {}
        """By partition, the copies that are coming in."""
        self._peers = peers
        self._application_id = application_id
        self._topic = topic
        self._turns = asyncio.Semaphore(_FETCHES_AT_ONCE)

    async def fetch(self, partition: int, into: Path, replace_damaged: bool = False) -> bool:
        """True: `into` is a verified store, ready for Store.open. False: no live peer has one worth copying, or there is a
        store already, and the stream goes on from what is there. After a cancellation the next call goes on where it was.
        `replace_damaged`: of the store that is there, closed, however few records there are."""
        incoming = StagingDirectory(into)
        async with self._turns:
            if not replace_damaged and await in_thread(incoming.occupied):
                return False
            try:
                if await self._fetch(partition, incoming, 1 if replace_damaged else self.records_min):
                    return True
            finally:
                self.progress.pop(partition, None)
            await in_thread(incoming.discard)
            return False

    async def _fetch(self, partition: int, incoming: StagingDirectory, records_min: int) -> bool:
        interrupted_fetch = await in_thread(incoming.interrupted_fetch)
        # Their addresses at once: they may leave the placement before it is their turn.
        peers = [(ordinal, self._peers.address(ordinal)) for ordinal in self._peers.candidates(partition)]
        if interrupted_fetch is not None:  # first who has the rest of it
            peers.sort(key=lambda peer: peer[1] != interrupted_fetch.peer)
        for number, (ordinal, address) in enumerate(peers, 1):
            before = (
                interrupted_fetch.manifest
                if interrupted_fetch is not None and interrupted_fetch.peer == address
                else None
            )
            source = _Source(address, self._peers.node_headers)
            transfer = _Transfer(self, source, incoming, partition, records_min)
            gone = partial(self._gone, ordinal, partition, [other for other, _ in peers[number:]])
            try:
                await self._fetch_from(source, _unless(gone, transfer.run(before)), partition, incoming)
                return True
            except (PeerUnavailable, _Refused) as error:
                event("peer-copy-given-up", partition=partition, peer=address, reason=str(error))
            except (CorruptCheckpoint, ManifestError) as error:
                event("peer-copy-thrown-away", partition=partition, peer=address, reason=str(error))
                await in_thread(incoming.discard)
            except OSError as error:
                event("peer-copy-thrown-away", partition=partition, peer=address, reason=f"disk: {error}")
                return False
        return False

    async def _fetch_from(
        self, source: _Source, transfer: Awaitable[Manifest], partition: int, incoming: StagingDirectory
    ) -> None:
        identity = Identity(self._application_id, self._topic, partition)
        started = time.monotonic()
        try:
            manifest = await transfer
            await in_thread(incoming.finish, manifest, identity)
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
            raise  # there is nobody to give it back to
        except Exception:
            await source.release()  # not when cancelled: then somebody will go on with it
            raise
        finally:
            source.close()

    def _gone(self, ordinal: int, partition: int, others: Sequence[int]) -> bool:
        """Nothing is heard of the peer, and one of the others has the copy."""
        return ordinal in self._peers.suspected and any(
            self._peers.has_complete_replica(other, partition) for other in others
        )

    def check(self, manifest: Manifest, partition: int) -> None:
        """That it is of what was asked for, before anything of it is fetched."""
        said = (manifest.application_id, manifest.partition, manifest.format)
        if said != (self._application_id, partition, FORMAT_VERSION):
            raise ManifestError(
                f"is of {said}, and partition {partition} of {self._application_id} was asked for"
            )


async def _unless(gone: Callable[[], bool], transfer: Coroutine[Any, Any, T]) -> T:
    """Ends it (PeerAway) when the peer has been gone for a second. That it is a suspect for less says little."""
    running = asyncio.create_task(transfer)
    there_at = time.monotonic()
    try:
        while not (await asyncio.wait([running], timeout=_LOOK_SECONDS))[0]:
            if not gone():
                there_at = time.monotonic()
            elif time.monotonic() - there_at > _GONE_SECONDS:
                raise PeerUnavailable("its heartbeats have ended, and another node has the copy")
        return running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class _Transfer:
    """The files of one partition, from one peer."""

    def __init__(
        self,
        owner: PeerHydration,
        source: _Source,
        incoming: StagingDirectory,
        partition: int,
        records_min: int,
    ) -> None:
        self._owner = owner
        self._source = source
        self._incoming = incoming
        self._partition = partition
        self._records_min = records_min
        self._started_at = self._progress_at = time.monotonic()
        self._came = 0  # bytes, since then

    async def run(self, before: Manifest | None) -> Manifest:
        """Every file is there afterwards, and what its digest says. `before` is what this node was copying from the peer
        when it was broken off."""
        manifest = before if before is not None and await self._source.has(before) else None
        for _ in range(_LEASES_MAX):
            if manifest is None:
                manifest = await self._with_retries(self._create)
            try:
                await self._files(manifest)
                return manifest
            except _LeaseEnded:  # or a file of it is gone
                await self._source.release()
                manifest = None
        raise _Refused(f"{_LEASES_MAX} checkpoints ended before they were copied")

    async def _create(self) -> Manifest:
        manifest = await self._source.create(self._partition, self._records_min)
        self._owner.check(manifest, self._partition)
        return manifest

    async def _files(self, manifest: Manifest) -> None:
        parts = await in_thread(self._incoming.begin, self._source.address, manifest)
        self._progress_at = time.monotonic()
        there = sum(part.start for part in parts) - self._came
        self._note(there, manifest)
        waiting = iter(parts)

        async def take_turns() -> None:
            for part in waiting:
                await self._file(manifest, part, there)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_FILES_AT_ONCE):
                    group.create_task(take_turns())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _file(self, manifest: Manifest, part: PartialFile, there: int) -> None:
        file = await in_thread(self._incoming.open, part)
        asked_to, coming = file.size, deque[asyncio.Task[bytes]]()
        try:
            while asked_to < part.file.size or coming:
                while asked_to < part.file.size and len(coming) < _RANGES_AHEAD:
                    length = min(RANGE_BYTES_MAX, part.file.size - asked_to)
                    read = partial(self._source.read, manifest.lease, part.file.name, asked_to, length)
                    coming.append(asyncio.create_task(self._with_retries(read)))
                    asked_to += length
                block = await coming.popleft()
                await in_thread(file.append, block)
                self._came += len(block)
                self._progress_at = time.monotonic()
                self._note(there, manifest)
        finally:
            for task in coming:
                task.cancel()
            await asyncio.gather(*coming, return_exceptions=True)
        file.check()

    async def _with_retries(self, ask: Callable[[], Awaitable[T]]) -> T:
        """A peer that has given something may be away for a while; one that is busy, from the beginning."""
        while True:
            try:
                return await ask()
            except PeerUnavailable as away:
                worth_waiting = self._came > 0 or isinstance(away, _Busy)
                if not worth_waiting or time.monotonic() - self._progress_at > self._owner.stalled_seconds:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    def _note(self, there: int, manifest: Manifest) -> None:
        rate = self._came / max(1e-3, time.monotonic() - self._started_at)
        self._owner.progress[self._partition] = FetchProgress(
            self._partition, self._source.address, there + self._came, manifest.size, rate
        )


class _Source:
    """A peer's checkpoints. It has connections of its own, so that no read between nodes waits behind a file."""

    def __init__(self, address: str, node_headers: bytes) -> None:
        self.address = address
        self._client = PeerClient(address)
        self._headers = node_headers
        self._lease: str | None = None

    async def create(self, partition: int, records_min: int) -> Manifest:
        """Waits for the manifest for as long as the peer gets on with it."""
        body = json.dumps({"partition": partition, "recordsMin": records_min}).encode()
        answer = await self._ask(b"POST", "", body, _ANSWER_SECONDS)
        time_of, bytes_read = asyncio.get_running_loop().time, -1
        while answer.status == _BEING_MADE:
            said = CheckpointInProgress.from_json(answer.body)
            self._lease = said.lease
            if said.bytes_read > bytes_read:
                bytes_read, until = said.bytes_read, time_of() + _MAKING_SECONDS
            elif time_of() > until:
                raise PeerUnavailable(f"its checkpoint does not get beyond {bytes_read} bytes")
            answer = await self._ask(b"GET", f"/{said.lease}", b"", _ANSWER_SECONDS)
        manifest = Manifest.from_json(answer.body)
        self._lease = manifest.lease
        return manifest

    async def has(self, manifest: Manifest) -> bool:
        """The lease of before is still there; from now on it counts as used."""
        self._lease = manifest.lease
        try:
            await self._ask(b"GET", f"/{manifest.lease}", b"", _ANSWER_SECONDS)
        except _LeaseEnded:
            return False
        return True

    async def read(self, lease: str, name: str, offset: int, length: int) -> bytes:
        target = f"/{lease}/files/{name}?offset={offset}&length={length}"
        answer = await self._ask(b"GET", target, b"", _RANGE_SECONDS)
        if len(answer.body) != length:
            raise CorruptCheckpoint(f"{len(answer.body)} bytes of {name} came, and {length} were asked for")
        return answer.body

    async def release(self) -> None:
        """As a courtesy: it ends by itself as well."""
        if self._lease is not None:
            lease, self._lease = self._lease, None
            with suppress(PeerUnavailable, _Refused, _LeaseEnded):
                await self._ask(b"DELETE", f"/{lease}", b"", _RELEASE_SECONDS)

    async def _ask(self, method: bytes, target: str, body: bytes, seconds: float) -> PeerResponse:
        deadline = asyncio.get_running_loop().time() + seconds
        path = (CHECKPOINTS + target).encode()
        answer = await self._client.request(method, path, self._headers, body, deadline)
        if answer.status in (200, _BEING_MADE):
            return answer
        said = f"it answered {answer.status}: {answer.body[:300].decode(errors='replace')}"
        if answer.status == Reason.OVERLOADED.status:
            raise _Busy(said)
        if answer.status == Reason.NO_SUCH_RESOURCE.status:
            raise _LeaseEnded(said)
        raise _Refused(said)

    def close(self) -> None:
        self._client.close()
