"""Follow the change feed over all nodes, page by page, and check that the fold of its changes is the view.

Each page may come from another node, and the follower pauses at times for longer than the log of changes is retained. After
each page it has, of every partition, all changes up to the position in the page's id: each one in order, or where the feed says
so only the last one of each key.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from queryable_app.serve.peers.client import PeerUnavailable
from queryable_app.wire.change_log import Mark
from queryable_app.wire.change_positions import decode_positions
from tests.simulation.checks import GuaranteeBroken
from tests.simulation.nodes import SOURCE_TOPIC, host_of
from tests.simulation.readers import Reader
from tests.simulation.world import World
from tests.support.fold import LogRecord

_ACCEPT: Final = b"Accept: application/x-ndjson\r\n"
_PAUSE_SECONDS: Final = (0.05, 0.3, 1.0, 14.0)
_WAIT_MS: Final = (0, 50, 2000)
_ANSWER_SECONDS: Final = 8.0


class ChangeFollower(Reader):
    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._id = "start"
        self._marks = [Mark(0)] * world.partitions
        self._until = [0] * world.partitions
        """Below that offset the follower has only the last change of each key."""
        self._last: dict[tuple[int, bytes], int] = {}
        """The offset of the last change of each key, by partition."""

    async def run(self) -> None:
        while True:
            longest = 0.0 if self.world.settling else self.random.choices(_PAUSE_SECONDS, (6, 3, 2, 0.2))[0]
            await asyncio.sleep(self.random.uniform(0.01, 0.02 + longest))
            await self._page()

    @property
    def at_end(self) -> bool:
        """Tell whether the follower has all changes."""
        ends = map(self.world.topic.end, range(self.world.partitions))
        return all(mark.position >= end for mark, end in zip(self._marks, ends, strict=True))

    async def _page(self) -> None:
        ordinal = self.any_node()
        target = f"/v1/changes?from={self._id}&wait-ms={self.random.choice(_WAIT_MS)}"
        deadline = asyncio.get_running_loop().time() + _ANSWER_SECONDS
        try:
            answer = await self.ask(ordinal, target, deadline, headers=_ACCEPT)
        except PeerUnavailable:
            self.world.event_counts["changes silence"] += 1
            return
        self.world.event_counts[f"changes {answer.status}"] += 1
        if answer.status in (503, 504):
            return
        if answer.status != 200:
            raise GuaranteeBroken(f"{host_of(ordinal)} answers {answer.status} {answer.body!r} for changes")
        *changes, last = map(json.loads, answer.body.splitlines())
        before, self._id = self._marks, last["next"]
        self._marks = decode_positions(self._id, SOURCE_TOPIC)
        self.world.note(f"{self.name}: {len(changes)} changes from {host_of(ordinal)} up to {self._marks}")
        taken: list[list[int]] = [[] for _ in before]
        for change in changes:
            if "compacted" in change:
                self._compact(change["compacted"])
            else:
                self._take(change)
                taken[change["partition"]].append(change["offset"])
        for partition, mark in enumerate(self._marks):
            if not mark.catching_up:
                self._check_order(partition, before[partition], taken[partition])
                self._check_fold(partition)

    def _compact(self, about: dict[str, int]) -> None:
        self.world.event_counts["changes compacted"] += 1
        self._until[about["partition"]] = about["until"]

    def _take(self, change: dict[str, Any]) -> None:
        partition, offset, key = change["partition"], change["offset"], change["key"].encode()
        record = self.world.topic.written_at(partition, offset)
        value = None if change.get("deleted") else json.dumps(change["value"]).encode()
        if (record.offset, record.key, record.value) != (offset, key, value):
            raise GuaranteeBroken(f"the change {change} is not that of {record}")
        self._last[partition, key] = offset

    def _check_order(self, partition: int, before: Mark, taken: list[int]) -> None:
        """Check that each change came once and in order, from where the log of changes was read."""
        first, end = max(self._until[partition], before.position), self._marks[partition].position
        expected = [
            record.offset
            for record in self.world.topic.written[partition]
            if record.key is not None and first <= record.offset < end
        ]
        found = [offset for offset in taken if offset >= first]
        if found != expected:
            raise GuaranteeBroken(
                f"the changes of partition {partition} from {first} to {end} are {found}, and not {expected}"
            )

    def _check_fold(self, partition: int) -> None:
        """Check that the last change of each key is that of the log."""
        position, until = self._marks[partition].position, self._until[partition]
        for key, records in self.world.topic.of_key.items():
            wanted = self.world.topic.last_before(partition, key, position)
            if wanted is None or self._last.get((partition, key)) == wanted.offset:
                continue
            if wanted.offset >= until or not _has_later(records, wanted, until):
                raise GuaranteeBroken(f"the changes up to {partition}:{position} lack {wanted}")


def _has_later(records: list[LogRecord], record: LogRecord, until: int) -> bool:
    """Tell whether a key has a record that follows in the log of changes, and took the place of this one in the rows."""
    return any(each.partition == record.partition and each.offset >= until for each in records)
