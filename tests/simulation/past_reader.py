"""Read the past of a view with history, and compare every answer with the log.

A moment names a part of the log. So what was answered for it must be the fold of that part, from any node and whatever was
written or lost meanwhile, or be refused. A moment may be refused only if the retention has passed it, or if compaction may have.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from queryable_app.serve.peers.client import PeerUnavailable
from tests.simulation.checks import GuaranteeBroken
from tests.simulation.clock import WALL_EPOCH_SECONDS
from tests.simulation.nodes import host_of
from tests.simulation.readers import Reader
from tests.simulation.writer_keys import ALL_KEYS
from tests.support.fold import LogRecord

_DEADLINE_SECONDS: Final = 4.0
_BEFORE_MS: Final = (0, 100, 2000, 12_000)

MayRefuse = Callable[[], bool]


class PastReader(Reader):
    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(4))
            read = self.random.choice((self._at_position, self._at_time, self._versions, self._all_rows))
            await read()

    async def _at_position(self) -> None:
        """Read a key as of a position."""
        key, topic = self.random.choice(ALL_KEYS), self.world.topic
        partition = topic.partition_of(key)
        position = self.random.randint(0, topic.end(partition))
        answer = await self._ask(
            f"/v1/keys/{key.decode()}?as-of={partition}:{position}",
            lambda: self._passed({partition: position}),
        )
        if answer is not None:
            self._check(key, f"{partition}:{position}", answer, [topic.last_before(partition, key, position)])

    async def _at_time(self) -> None:
        """Read a key as of a time. Until the clock of the partition has passed it, later records may count as well."""
        key, topic = self.random.choice(ALL_KEYS), self.world.topic
        partition = topic.partition_of(key)
        time_ms = self._any_time(partition)
        answer = await self._ask(
            f"/v1/keys/{key.decode()}?as-of={time_ms}",
            lambda: self._may_have_passed(time_ms),
        )
        if answer is not None:
            last = self._position_at(partition, time_ms)
            first = min(last, topic.end_at(partition, time_ms / 1000 - WALL_EPOCH_SECONDS))
            possible = [topic.last_before(partition, key, at) for at in range(first, last + 1)]
            self._check(key, str(time_ms), answer, possible)

    async def _versions(self) -> None:
        """Read all versions of a key, page by page, each page from any node."""
        key, found, cursor = self.random.choice(ALL_KEYS), [], ""
        path = f"/v1/keys/{key.decode()}/history?limit={self.random.randint(1, 9)}"
        while True:
            page = await self._ask(path + cursor, lambda: False)
            if page is None:
                return
            found += page["items"]
            if page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"
        partition = self.world.topic.partition_of(key)
        written = [r for r in self.world.topic.of_key.get(key, ()) if r.partition == partition]
        offsets = [item["offset"] for item in found]
        newest_first = [r for r in reversed(written) if offsets and r.offset <= offsets[0]]
        values = [None if item.get("deleted") else json.dumps(item["value"]).encode() for item in found]
        pairs = [(r.offset, r.value) for r in newest_first]
        if [*zip(offsets, values, strict=True)] != pairs[: len(offsets)]:
            raise GuaranteeBroken(f"the versions of {key!r} are {found}, and not {pairs}")
        if len(offsets) < len(pairs) and not self._passed({partition: newest_first[len(offsets)].offset}):
            raise GuaranteeBroken(f"{key!r} has lost the versions from {newest_first[len(offsets)]} back")

    async def _all_rows(self) -> None:
        """Read all rows as of positions, page by page, each page from any node."""
        topic, found, cursor = self.world.topic, [], ""
        positions = {p: self.random.randint(0, topic.end(p)) for p in range(topic.partitions)}
        text = ",".join(f"{partition}:{position}" for partition, position in positions.items())
        path = f"/v1/scan?as-of={text}&limit={self.random.choice((3, 7, 50))}"
        while True:
            page = await self._ask(path + cursor, lambda: self._passed(positions))
            if page is None:
                return
            found += [(item["key"].encode(), json.dumps(item["value"]).encode()) for item in page["items"]]
            if page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"
        there = [self._row(key, positions) for key in sorted(ALL_KEYS)]
        expected = [(row.key, row.value) for row in there if row is not None and row.value is not None]
        if found != expected:
            raise GuaranteeBroken(f"the rows as of {text} are {found}, and not {expected}")

    async def _ask(self, target: str, may_refuse: MayRefuse) -> dict[str, Any] | None:
        """Return the answer, or None if there is none. A missing key has no `value`."""
        ordinal, deadline = self.any_node(), asyncio.get_running_loop().time() + _DEADLINE_SECONDS
        sign = "&" if "?" in target else "?"
        try:
            answer = await self.ask(ordinal, f"{target}{sign}deadline-ms=3500", deadline)
        except PeerUnavailable:
            return None
        self.world.event_counts[f"history {answer.status}"] += 1
        if answer.status == 200:
            body = json.loads(answer.body)
            return body if isinstance(body, dict) else {"value": body}
        reason = json.loads(answer.body)["reason"]
        if (answer.status, reason) == (404, "key_not_found"):
            return {}
        if answer.status in (503, 504) or (reason == "not_retained" and may_refuse()):
            return None
        raise GuaranteeBroken(f"{host_of(ordinal)} answers {answer.status} {answer.body!r} for {target}")

    def _check(
        self, key: bytes, moment: str, answer: dict[str, Any], possible: Sequence[LogRecord | None]
    ) -> None:
        value = json.dumps(answer["value"]).encode() if "value" in answer else None
        if value not in [None if record is None else record.value for record in possible]:
            raise GuaranteeBroken(f"{key!r} is {value!r} as of {moment}, and must be one of {possible}")

    def _any_time(self, partition: int) -> int:
        """Return a time, often one at which a record of the partition begins to count."""
        written = self.world.topic.written[partition]
        if written and self.random.random() < 0.6:
            return min(self.now_ms(), self.random.choice(written[-200:]).timestamp_ms)
        return self.now_ms() - self.random.choice(_BEFORE_MS) - self.random.randint(0, 500)

    def _row(self, key: bytes, positions: Mapping[int, int]) -> LogRecord | None:
        partition = self.world.topic.partition_of(key)
        return self.world.topic.last_before(partition, key, positions[partition])

    def _position_at(self, partition: int, time_ms: int) -> int:
        """Return the position of a time: before the first record of a key that lets the clock pass it."""
        for record in self.world.topic.written[partition]:
            if record.key is not None and record.timestamp_ms > time_ms:
                return record.offset
        return self.world.topic.end(partition)

    def _passed(self, positions: Mapping[int, int]) -> bool:
        """Tell whether the retention has passed one of the positions, or compaction may have."""
        return self.world.topic.compacted or any(
            position < self._position_at(partition, self._horizon_ms())
            for partition, position in positions.items()
        )

    def _may_have_passed(self, time_ms: int) -> bool:
        return self.world.topic.compacted or time_ms < self._horizon_ms()

    def _horizon_ms(self) -> int:
        return self.now_ms() - self.world.view.retention_ms

    def now_ms(self) -> int:
        return self.world.scheduler.wall_ns() // 1_000_000
