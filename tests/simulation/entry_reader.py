"""Read the entries of keys by their time like an HTTP client, and compare every answer with the fold of the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from queryable_app.serve.peers.client import PeerResponse
from queryable_app.wire.http_text import parse_positions
from queryable_app.wire.times import to_iso
from tests.simulation.checks import GuaranteeBroken, ReadRequest, check_freshness
from tests.simulation.entry_fold import Entry, FoldedEntries, entries_at, watermark_at
from tests.simulation.readers import PlainReader, Reader


class EntryReader(PlainReader):
    def target(self, key: bytes) -> str:
        return f"/v1/entries/{key.decode()}"

    def check_answer(
        self,
        key: bytes,
        read_request: ReadRequest,
        answer: PeerResponse,
        headers: Mapping[str, str],
        began: float,
    ) -> None:
        page, topic, view = json.loads(answer.body), self.world.topic, self.world.view
        found = _entries(page)
        positions = parse_positions(headers["qt-position"]) or {}
        check_freshness(topic, read_request, positions, began)
        partition = topic.partition_of(key)
        self.world.event_counts["entries"] += len(found)
        self.world.note(f"{len(found)} entries of {key.decode()} {read_request.consistency} {positions}")
        position, end = positions[partition], topic.end(partition)
        stated = watermark_at(topic, view, partition, position)
        swept = watermark_at(topic, view, partition, end)  # what has expired since may be there or not
        for each in range(position, end + 1):
            made = FoldedEntries(topic, view, partition, each).of_key(key, each)
            there = [entry for entry in made if entry.at_ms >= stated]
            if page["cursor"] is not None:
                there = [entry for entry in there if entry[:2] <= found[-1][:2]]
            if all(entry in there and entry.at_ms >= stated for entry in found) and all(
                entry in found or entry.at_ms < swept for entry in there
            ):
                return
        there = entries_at(topic, view, partition, position).get(key, [])
        raise GuaranteeBroken(
            f"the entries of {key!r} are {found} as of {positions}, and not {there} from {stated} on"
        )


class EntryPagesReader(Reader):
    """Read the entries of a key in both orders, page by page, with bounds and conditions; each page may come from other nodes."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(2))
            await self._read(self.any_key())

    async def _read(self, key: bytes) -> None:
        topic, view = self.world.topic, self.world.view
        partition, began = topic.partition_of(key), asyncio.get_running_loop().time()
        begin = topic.end_at(partition, began)
        mark = watermark_at(topic, view, partition, begin)
        bounds, first, after, least = self._bounds()
        order = self.random.choice(("asc", "desc"))
        path = f"/v1/entries/{key.decode()}?{bounds}order={order}&limit={self.random.choice((1, 3, 50))}"
        found: list[Entry] = []
        cursor = ""
        while True:
            page = await self.ask_strong(path + cursor, "entry pages")
            if page is None:
                return
            found += _entries(page)
            if page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"
        self.world.event_counts["entries in pages"] += len(found)
        places = [entry[:2] for entry in found]
        if places != sorted(set(places), reverse=order == "desc"):
            raise GuaranteeBroken(f"{path} gives {found}, which is not once each, in order")
        wanted = [
            entry
            for entry in FoldedEntries(topic, view, partition, topic.end(partition)).of_key(key, begin)
            if first <= entry.at_ms < after and entry.value["n"] >= least
        ]
        wrong = [entry for entry in found if entry not in wanted or entry.at_ms < mark]
        now = entries_at(topic, view, partition, topic.end(partition)).get(key, [])
        missing = [
            entry
            for entry in entries_at(topic, view, partition, begin).get(key, [])
            if entry in wanted and entry in now and entry not in found
        ]
        if wrong or missing:
            raise GuaranteeBroken(
                f"{path} finds {wrong}, which cannot be there, and lacks {missing}, since {partition}:{begin}"
            )

    def _bounds(self) -> tuple[str, int, int, int]:
        """Return the parameters of a read, and the bounds of the times and of the numbers that it asks for."""
        now_ms = self.world.scheduler.wall_ns() // 1_000_000
        first, after, least, text = -(1 << 62), 1 << 62, 0, ""
        if self.random.random() < 0.4:
            first = now_ms - self.random.randrange(12_000)
            text += f"from={quote(to_iso(first))}&"
        if self.random.random() < 0.4:
            after = max(first, now_ms - 9000) + self.random.randrange(1, 9000)
            text += f"to={quote(to_iso(after))}&"
        if self.random.random() < 0.3:
            least = self.random.randrange(1 + sum(map(len, self.world.topic.written)))
            text += f"where={quote(f'n >= {least}')}&"
        return text, first, after, least


def _entries(page: Mapping[str, Any]) -> list[Entry]:
    return [Entry(item["value"]["at"], item["offset"], item["value"]) for item in page["items"]]
