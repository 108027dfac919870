"""Follow the change feed over all nodes, page by page, and check that the fold of its changes is the view.

Each page may come from another node, and the follower pauses at times for longer than the log of changes is retained. After
each page it has, of every partition, all changes up to the position in the page's id: each one in order, or where the feed says
so only the last one of each key. What the changes must say depends on the view: `CheckedFeed` is implemented here for latest
values, and in `folded_feeds` for the other kinds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final, Protocol

from queryable_app.config.rekey import internal_topic
from queryable_app.serve.peers.client import PeerUnavailable
from queryable_app.wire.change_log import Mark
from queryable_app.wire.change_positions import decode_positions
from tests.simulation.checks import GuaranteeBroken
from tests.simulation.nodes import APPLICATION_ID, SOURCE_TOPIC, host_of
from tests.simulation.readers import Reader
from tests.simulation.topic import Topic
from tests.simulation.world import World
from tests.support.fold import LogRecord

_ACCEPT: Final = b"Accept: application/x-ndjson\r\n"
_PAUSE_SECONDS: Final = (0.05, 0.3, 1.0, 14.0)
_WAIT_MS: Final = (0, 50, 2000)
_ANSWER_SECONDS: Final = 8.0


class CheckedFeed(Protocol):
    """Fold the changes of a view, and raise GuaranteeBroken where they contradict the log."""

    def compact(self, partition: int, until: int) -> None:
        """Note that the changes below an offset come as the last one of each key."""

    def take(self, change: dict[str, Any]) -> None:
        """Take the next change."""

    def check_page(self, partition: int, before: Mark, mark: Mark, taken: Sequence[int]) -> None:
        """Check a partition whose changes up to the mark have been taken. The page has those with the offsets `taken`."""


class ChangeFollower(Reader):
    def __init__(self, world: World, name: str, feed: CheckedFeed) -> None:
        super().__init__(world, name)
        self._feed = feed
        self._topic = internal_topic(APPLICATION_ID) if world.view.rekeyed else SOURCE_TOPIC
        self._id = "start"
        self._marks = [Mark(0)] * world.partitions

    async def run(self) -> None:
        while True:
            longest = 0.0 if self.world.settling else self.random.choices(_PAUSE_SECONDS, (6, 3, 2, 0.2))[0]
            await asyncio.sleep(self.random.uniform(0.01, 0.02 + longest))
            await self._page()

    @property
    def at_end(self) -> bool:
        """Tell whether the follower has all changes."""
        ends = map(self.world.ingested.end, range(self.world.partitions))
        return all(
            mark.position >= end and not mark.catching_up for mark, end in zip(self._marks, ends, strict=True)
        )

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
        self._marks = decode_positions(self._id, self._topic)
        self.world.note(f"{self.name}: {len(changes)} changes from {host_of(ordinal)} up to {self._marks}")
        taken: list[list[int]] = [[] for _ in before]
        for change in changes:
            if "compacted" in change:
                self.world.event_counts["changes compacted"] += 1
                about = change["compacted"]
                self._feed.compact(about["partition"], about["until"])
            else:
                self.world.event_counts["changes"] += 1
                self._feed.take(change)
                taken[change["partition"]].append(change["offset"])
        for partition, mark in enumerate(self._marks):
            if not mark.catching_up:
                self._feed.check_page(partition, before[partition], mark, taken[partition])


class LatestFeed:
    """Check the changes of a view of latest values: each record is one."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._until = [0] * topic.partitions
        """Below that offset the follower has only the last change of each key."""
        self._last: dict[tuple[int, bytes], int] = {}
        """The offset of the last change of each key, by partition."""

    def compact(self, partition: int, until: int) -> None:
        self._until[partition] = until

    def take(self, change: dict[str, Any]) -> None:
        partition, offset, key = change["partition"], change["offset"], change["key"].encode()
        record = self._topic.written_at(partition, offset)
        value = None if change.get("deleted") else json.dumps(change["value"]).encode()
        if (record.offset, record.key, record.value) != (offset, key, value):
            raise GuaranteeBroken(f"the change {change} is not that of {record}")
        self._last[partition, key] = offset

    def check_page(self, partition: int, before: Mark, mark: Mark, taken: Sequence[int]) -> None:
        self._check_order(partition, before, mark, taken)
        self._check_fold(partition, mark.position)

    def _check_order(self, partition: int, before: Mark, mark: Mark, taken: Sequence[int]) -> None:
        """Check that each change came once and in order, from where the log of changes was read."""
        first, end = max(self._until[partition], before.position), mark.position
        expected = [
            record.offset
            for record in self._topic.written[partition]
            if record.key is not None and first <= record.offset < end
        ]
        found = [offset for offset in taken if offset >= first]
        if found != expected:
            raise GuaranteeBroken(
                f"the changes of partition {partition} from {first} to {end} are {found}, and not {expected}"
            )

    def _check_fold(self, partition: int, position: int) -> None:
        """Check that the last change of each key is that of the log."""
        until = self._until[partition]
        for key, records in self._topic.of_key.items():
            wanted = self._topic.last_before(partition, key, position)
            if wanted is None or self._last.get((partition, key)) == wanted.offset:
                continue
            if wanted.offset >= until or not _has_later(records, wanted, until):
                raise GuaranteeBroken(f"the changes up to {partition}:{position} lack {wanted}")


def _has_later(records: list[LogRecord], record: LogRecord, until: int) -> bool:
    """Tell whether a key has a record that follows in the log of changes, and took the place of this one in the rows."""
    return any(each.partition == record.partition and each.offset >= until for each in records)
