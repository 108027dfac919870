"""Remember writes with an Idempotency-Key, so that a repeated request writes nothing again and gets the same answer.

Strategy: each record has one task, which waits for Kafka longer than any request does. A repeated request waits for the same
tasks, and starts again only those that failed. Values are kept until Kafka has them; later a write is its digest and offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Final

from queryable_app.errors import Failure, Reason, invalid
from queryable_app.serve.base.byte_budget import ByteBudget
from queryable_app.serve.kafka.producer import turn_of

PENDING_BYTES_MAX: Final = 32 << 20
RECORDS_MAX: Final = 50_000  # some 25 MB, if each is a request of its own
_TASK_SECONDS: Final = 60.0  # the longest deadline of a request
_RETRY_MS: Final = 1000

Send = Callable[[bytes, bytes | None, int, float], Awaitable[int]]
Record = tuple[bytes, bytes | None]
"""Record key and value. A value of None deletes the key."""


def digest_of(method: str, records: Sequence[Record]) -> bytes:
    """Return what distinguishes one write from another."""
    digest = blake2b(method.encode(), digest_size=16)
    for key, value in records:
        digest.update(b"%d %d " % (len(key), -1 if value is None else len(value)) + key + (value or b""))
    return digest.digest()


class RememberedWrite:
    """One write: where its records go, and what became of each."""

    def __init__(self, digest: bytes, partitions: Sequence[int], until: float) -> None:
        self.digest, self.partitions, self.until = digest, partitions, until
        self.sent: list[asyncio.Task[int] | int | None] = [None] * len(partitions)
        """By record: its offset, or the task that sends it. None: Kafka has not taken it."""

    @property
    def pending(self) -> bool:
        return any(isinstance(each, asyncio.Task) for each in self.sent)


class RememberedWrites:
    """The writes of a node's window. Use it from one event loop."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._writes: dict[str, RememberedWrite] = {}
        self._records = 0
        self._pending = ByteBudget(PENDING_BYTES_MAX)

    def write(
        self, key: str, digest: bytes, partitions: Sequence[int], window_seconds: float, now: float
    ) -> RememberedWrite:
        """Return the write of this key, or remember a new one. Raise a Failure if the key was another write's."""
        self._forget(now)
        write = self._writes.get(key)
        if write is not None and write.until <= now and not write.pending:
            self._remove(key)
            write = None
        if write is None:
            self._make_room(len(partitions))
            write = self._writes[key] = RememberedWrite(digest, partitions, now + window_seconds)
            self._records += len(partitions)
        elif write.digest != digest:
            raise invalid(
                "Idempotency-Key", "was sent with other records before", "take a new key for another request"
            )
        return write

    async def outcomes(
        self, write: RememberedWrite, records: Sequence[Record], deadline_seconds: float
    ) -> list[int | BaseException]:
        """Send the records that Kafka does not have, and return the offset of each, or why it has none."""
        missing: set[bytes] = set()
        for index, (key, _) in enumerate(records):
            # A record that failed must not become newer than a later one of its key, so that one is written again.
            if write.sent[index] is None or (key in missing and isinstance(write.sent[index], int)):
                missing.add(key)
                write.sent[index] = self._start(write, index, records[index])
        sent = list(write.sent)
        tasks = [each for each in sent if isinstance(each, asyncio.Task)]
        if tasks:
            await asyncio.wait(tasks, timeout=deadline_seconds)
        return [_outcome(each, partition) for each, partition in zip(sent, write.partitions, strict=True)]

    async def stop(self) -> None:
        tasks = [
            each for write in self._writes.values() for each in write.sent if isinstance(each, asyncio.Task)
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, write: RememberedWrite, index: int, record: Record) -> asyncio.Task[int]:
        key, value = record
        size = len(key) + len(value or b"")
        if not self._pending.take(size):
            raise _too_many("writes wait for Kafka")
        task = asyncio.create_task(self._sent(index, key, value, write.partitions[index]))

        def on_end(ended: asyncio.Task[int]) -> None:
            self._pending.release(size)
            failed = ended.cancelled() or ended.exception() is not None
            write.sent[index] = None if failed else ended.result()

        task.add_done_callback(on_end)
        return task

    async def _sent(self, index: int, key: bytes, value: bytes | None, partition: int) -> int:
        await turn_of(index)
        return await self._send(key, value, partition, _TASK_SECONDS)

    def _forget(self, now: float) -> None:
        while self._writes:
            key, write = next(iter(self._writes.items()))
            if write.until > now or write.pending:
                return
            self._remove(key)

    def _make_room(self, records: int) -> None:
        while self._writes and self._records + records > RECORDS_MAX:
            key, write = next(iter(self._writes.items()))
            if write.pending:
                raise _too_many("requests with an Idempotency-Key are remembered")
            self._remove(key)

    def _remove(self, key: str) -> None:
        self._records -= len(self._writes.pop(key).partitions)


def _outcome(sent: asyncio.Task[int] | int | None, partition: int) -> int | BaseException:
    if isinstance(sent, asyncio.Task):
        if not sent.done():
            return Failure(
                Reason.DEADLINE_EXCEEDED,
                "Kafka has not confirmed the record in time; it may still be written",
                "send the request again with the same Idempotency-Key",
                partition=partition,
            )
        return asyncio.CancelledError() if sent.cancelled() else sent.exception() or sent.result()
    assert sent is not None
    return sent


def _too_many(what: str) -> Failure:
    return Failure(
        Reason.OVERLOADED,
        f"too many {what}",
        "send the request again with the same Idempotency-Key",
        retry_after_ms=_RETRY_MS,
    )
