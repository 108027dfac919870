"""Test the memory of writes: its bounds, and when it forgets."""

from __future__ import annotations

import asyncio

import pytest

from queryable_app.errors import Failure
from queryable_app.serve.kafka import remembered_writes
from queryable_app.serve.kafka.remembered_writes import Record, RememberedWrites, digest_of

A: list[Record] = [(b"a", b"1")]


class Log:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, key: bytes, value: bytes | None, partition: int, seconds: float) -> int:
        await self.open.wait()
        self.sent.append(key)
        return len(self.sent) - 1


async def send(writes: RememberedWrites, key: str, now: float, records: list[Record]) -> object:
    write = writes.write(key, digest_of("POST", records), [0] * len(records), 10, now)
    return await writes.outcomes(write, records, 1)


def test_write_is_forgotten_after_its_window() -> None:
    """The window begins with the first request. After it, the key may be another write's."""

    async def check() -> None:
        log = Log()
        writes = RememberedWrites(log.send)
        for now in (0.0, 9.9, 10.1):
            await send(writes, "k", now, A)
        assert log.sent == [b"a", b"a"]
        await send(writes, "k", 21.0, [(b"b", None)])
        assert log.sent[2:] == [b"b"]

    asyncio.run(check())


def test_oldest_writes_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many records are remembered."""

    async def check() -> None:
        monkeypatch.setattr(remembered_writes, "RECORDS_MAX", 2)
        log = Log()
        writes = RememberedWrites(log.send)
        for key in ("1", "2", "3", "3", "1"):
            await send(writes, key, 0.0, A)
        assert len(log.sent) == 4

    asyncio.run(check())


def test_write_that_waits_for_kafka_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """If only such writes are remembered, a further one is refused as too many."""

    async def check() -> None:
        monkeypatch.setattr(remembered_writes, "RECORDS_MAX", 1)
        log = Log()
        log.open.clear()
        writes = RememberedWrites(log.send)
        first = asyncio.create_task(send(writes, "1", 0.0, A))
        await asyncio.sleep(0)
        with pytest.raises(Failure, match="too many requests"):
            await send(writes, "2", 100.0, A)
        log.open.set()
        assert await first == [0]

    asyncio.run(check())


def test_bytes_that_wait_for_kafka_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """While Kafka is away, a node keeps no more than the bound for requests that have ended."""

    async def check() -> None:
        monkeypatch.setattr(remembered_writes, "PENDING_BYTES_MAX", 3)
        log = Log()
        log.open.clear()
        writes = RememberedWrites(log.send)
        first = asyncio.create_task(send(writes, "1", 0.0, A))
        await asyncio.sleep(0)
        with pytest.raises(Failure, match="too many writes wait for Kafka"):
            await send(writes, "2", 0.0, A)
        log.open.set()
        await first
        assert await send(writes, "2", 0.0, A) == [1]

    asyncio.run(check())


def test_digest_tells_writes_apart() -> None:
    """Bytes that move from a key to its value, a deletion and an empty value, and the method make another write."""
    digests = {
        digest_of("POST", [(b"ab", b"c")]),
        digest_of("POST", [(b"a", b"bc")]),
        digest_of("POST", [(b"a", None)]),
        digest_of("POST", [(b"a", b"")]),
        digest_of("DELETE", [(b"a", None)]),
        digest_of("POST", [(b"a", b""), (b"a", b"")]),
    }
    assert len(digests) == 6
