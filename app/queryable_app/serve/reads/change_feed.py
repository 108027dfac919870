"""Give one client the changes of a view, from its positions on and without an end.

Strategy: the client has a mark for each partition. As long as one is behind the ring of `change_tail.py`, the feed reads the
change logs; then it follows the ring. So a client may stay away for as long as it likes, and a slow one costs no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from queryable_app.serve.reads.change_sources import ChangeSources, SourceLost
from queryable_app.serve.reads.change_tail import ChangeTail, Chunk
from queryable_app.serve.store.replica_changes import Portion
from queryable_app.wire.change_log import Mark
from queryable_app.wire.disk_format import ROW_HEADER

_BYTES_MAX: Final = 1 << 20
_RETRY_SECONDS: Final = 0.2


class Compacted(NamedTuple):
    """Say that of the changes in a range only the last one of each key follows, in the order of keys."""

    partition: int
    start: int
    stop: int


class ChangeFeed:
    """The changes that one client has not seen."""

    def __init__(
        self, tail: ChangeTail, sources: ChangeSources, marks: Sequence[Mark], partitions: Collection[int]
    ) -> None:
        self._tail = tail
        self._sources = sources
        self._given = marks
        self._marks = {partition: marks[partition] for partition in partitions}
        self._number = -1  # of the next chunk in the ring

    @property
    def marks(self) -> Sequence[Mark]:
        """Return where each partition continues."""
        return [self._marks.get(partition, mark) for partition, mark in enumerate(self._given)]

    @property
    def caught_up(self) -> bool:
        """Return whether `next` has returned all changes of the ring, up to its last one."""
        return not self._behind() and max(self._number, self._tail.first_number) >= self._tail.next_number

    def _behind(self) -> list[int]:
        """Return the partitions whose next change is not in the ring."""
        starts = self._tail.starts
        return [p for p, mark in self._marks.items() if mark.catching_up or mark.position < starts[p]]

    async def next(self, deadline: float) -> list[Chunk | Compacted]:
        """Return the next changes; none if there are none until the deadline (loop time)."""
        tail, behind = self._tail, self._behind()
        if behind:
            self._number = -1
            # One catches up at a time, because the id of an event says how far it is.
            catching_up = [partition for partition in behind if self._marks[partition].catching_up]
            return await self._catch_up((catching_up or behind)[0])
        self._number = max(self._number, tail.first_number)
        await tail.wait(self._number, deadline)
        return self._from_ring() if self._number >= tail.first_number else []

    def _from_ring(self) -> list[Chunk | Compacted]:
        taken: list[Chunk | Compacted] = []
        size = 0
        for chunk in self._tail.chunks(self._number):
            if size > _BYTES_MAX:
                break
            self._number += 1
            mark = self._marks.get(chunk.partition)
            if mark is not None and chunk.stop > mark.position:
                taken.append(_rest_of(chunk, mark.position))
                size += chunk.size
                self._marks[chunk.partition] = Mark(chunk.stop)
        return taken

    async def _catch_up(self, partition: int) -> list[Chunk | Compacted]:
        mark = self._marks.pop(partition)
        self._marks[partition] = mark  # at the end, so that every partition has its turn
        try:
            portions = await self._sources.read(self._sources.source_of(partition), {partition: mark}, 0)
        except SourceLost:
            portions = {}
        rows, following, compacted_until = portions.get(partition, Portion((), mark))
        taken: list[Chunk | Compacted] = []
        if compacted_until >= 0:
            taken.append(Compacted(partition, mark.position, compacted_until))
        if rows:
            taken.append(Chunk(partition, rows, following.position))
        if following == mark:
            await asyncio.sleep(_RETRY_SECONDS)  # its source was lost, or has not come as far
        self._marks[partition] = following
        return taken


def _rest_of(chunk: Chunk, position: int) -> Chunk:
    """Return the part of a chunk from an offset on."""
    rows = [row for row in chunk.rows if ROW_HEADER.unpack_from(row[2])[1] >= position]
    return chunk if len(rows) == len(chunk.rows) else Chunk(chunk.partition, rows, chunk.stop)
