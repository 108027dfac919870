"""Follow the changes of all partitions once for all clients of this node.

Strategy: while a client follows the feed, one task for each source reads the newest changes into a bounded ring of chunks. Each
client reads the ring at its own pace, so a chunk is rendered once for all clients that see every row. A client that is behind the
ring reads the change logs itself until it is not (`change_feed.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final

from queryable_app.serve.base.background import supervise
from queryable_app.serve.base.peer_frames import RawRow
from queryable_app.serve.reads.change_sources import ChangeSources, SourceLost
from queryable_app.serve.reads.log_ends import LogEnds
from queryable_app.wire.change_log import Mark

RING_BYTES_MAX: Final = 8 << 20
_WAIT_SECONDS: Final = 1.0
_ASSIGN_SECONDS: Final = 0.25
_COMPARE_SECONDS: Final = 5.0
"""How often the ring is compared with the ends of the log."""
_SECONDS_PER_CLIENT: Final = 0.0002
"""The clients are woken once in this time for each of them: a thousand take at most half of a core."""


class Chunk:
    """Changes of one partition from one position up to another."""

    __slots__ = ("partition", "rows", "size", "stop", "text")

    def __init__(self, partition: int, rows: Sequence[RawRow], stop: int) -> None:
        self.partition = partition
        self.rows = rows
        self.stop = stop
        self.size = 100 + sum([len(key) + len(stored) for key, _, stored in rows])
        self.text: bytes | None = None
        """All rows as events, once a client has rendered them."""


class ChangeTail:
    """The newest changes of a view, from `positions` of the first client on."""

    def __init__(self, sources: ChangeSources, ends: LogEnds) -> None:
        self._sources = sources
        self._ends = ends
        self.starts: list[int] = []
        """Where the ring begins, by partition."""
        self.positions: list[int] = []
        """Where it ends."""
        self._chunks: deque[Chunk] = deque()
        self._first = 0  # the number of the first chunk in the ring
        self._bytes = 0
        self.clients = 0
        self._assigning: asyncio.Task[None] | None = None
        self._following: dict[int, asyncio.Task[None]] = {}  # by source
        self._news: asyncio.Future[None] | None = None
        self._told = 0  # the chunk after those of which clients have been told
        self._woken_at = 0.0  # loop time
        self._waking: asyncio.TimerHandle | None = None

    @property
    def followed(self) -> bool:
        return self.clients > 0

    @property
    def next_number(self) -> int:
        """Return the number of the next chunk."""
        return self._first + len(self._chunks)

    @property
    def first_number(self) -> int:
        return self._first

    def chunks(self, number: int) -> Iterator[Chunk]:
        """Return the chunks from this number on of which clients have been told."""
        return islice(self._chunks, number - self._first, max(0, self._told - self._first))

    async def wait(self, number: int, deadline: float) -> None:
        """Wait until clients are told of the chunk with this number, or until the deadline (loop time)."""
        if number < self._told:
            return
        if self._news is None or self._news.done():
            self._news = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(self._news)
        except TimeoutError:
            pass

    @asynccontextmanager
    async def used(self, positions: Sequence[int]) -> AsyncIterator[None]:
        """Follow the changes for one more client; for the first one from `positions` on."""
        if not self.clients:
            self._start(positions)
        self.clients += 1
        try:
            yield
        finally:
            self.clients -= 1
            if not self.clients:
                await self._stop()

    def _start(self, positions: Sequence[int]) -> None:
        self.starts, self.positions = list(positions), list(positions)
        self._first = self.next_number
        self._chunks.clear()
        self._bytes = 0
        self._assigning = asyncio.create_task(supervise("ChangeTail", self._assign))

    async def _stop(self) -> None:
        tasks = [*self._following.values(), *([self._assigning] if self._assigning else [])]
        self._following, self._assigning = {}, None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _assign(self) -> None:
        """Keep a task for each source that has a partition. Sources change with the placement and with the health of nodes.

        If the topic was made again, continue at its end."""
        time = asyncio.get_running_loop().time
        compare_at = time() + _COMPARE_SECONDS
        while True:
            if time() >= compare_at:
                for partition, end in (await self._ends.beyond(self.positions)).items():
                    self._restart_at(partition, end)
                compare_at = time() + _COMPARE_SECONDS
            for source in set(map(self._sources.source_of, range(len(self.positions)))):
                task = self._following.get(source)
                if task is None or task.done():
                    follow = self._follow(source)
                    self._following[source] = asyncio.create_task(follow)
            await asyncio.sleep(_ASSIGN_SECONDS)

    async def _follow(self, source: int) -> None:
        """Read a source until it is lost or has no partition any more."""
        while True:
            everything = range(len(self.positions))
            marks = {p: Mark(self.positions[p]) for p in everything if self._sources.source_of(p) == source}
            if not marks:
                return
            try:
                portions = await self._sources.read(source, marks, _WAIT_SECONDS)
            except SourceLost:
                return
            for partition, portion in portions.items():
                # Another source may have had the partition meanwhile.
                if self.positions[partition] != marks[partition].position:
                    continue
                if portion.compacted_until >= 0:
                    self._restart_at(partition, portion.compacted_until)
                elif portion.mark != marks[partition]:
                    self._append(Chunk(partition, portion.rows, portion.mark.position))

    def _append(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._bytes += chunk.size
        self.positions[chunk.partition] = chunk.stop
        while self._bytes > RING_BYTES_MAX and len(self._chunks) > 1:
            oldest = self._chunks.popleft()
            self._first += 1
            self._bytes -= oldest.size
            self.starts[oldest.partition] = oldest.stop
        self.wake()

    def _restart_at(self, partition: int, position: int) -> None:
        """Leave out changes that are only in the rows any more. Clients read them by themselves."""
        self._first = self.next_number
        self._chunks.clear()
        self._bytes = 0
        self.positions[partition] = position
        self.starts = list(self.positions)
        self.wake()

    def wake(self) -> None:
        """End the waits for news, now or a little later.

        Each client costs a write to its socket whenever it is woken. So the more clients there are, the more chunks they get
        at once.
        """
        if self._waking is not None:
            return
        loop = asyncio.get_running_loop()
        due = self._woken_at + self.clients * _SECONDS_PER_CLIENT
        if due <= loop.time():
            self._wake_now()
        else:
            self._waking = loop.call_at(due, self._wake_now)

    def _wake_now(self) -> None:
        self._waking, self._woken_at = None, asyncio.get_running_loop().time()
        self._told = self.next_number
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
