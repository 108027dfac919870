"""Reads over several partitions, as any client of the HTTP interface asks for them: many keys at once, and exact counts.

What nodes gather from one another may fail only while the rows of some key were nowhere to be had.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from queryable_app.serve.peers.client import PeerUnavailable
from tests.simulation.able import able, may_not_fail
from tests.simulation.checks import Said, Wish, Wrong
from tests.simulation.nodes import host_of
from tests.simulation.readers import Reader
from tests.simulation.writer import CHANGING_KEYS, STABLE_KEYS, changing_key, stable_key

_KEYS = [stable_key(n) for n in range(STABLE_KEYS)] + [changing_key(n) for n in range(CHANGING_KEYS)]
_DEADLINE_SECONDS = 4.0  # two nodes may fall silent one after the other while they are asked


class ManyReader(Reader):
    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(2))
            if self.random.random() < 0.5:
                await self._count()
            else:
                await self._multi_get()

    async def _multi_get(self) -> None:
        wish = self.any_wish()
        keys = self.random.sample(_KEYS, self.random.randint(1, len(_KEYS)))
        began = asyncio.get_running_loop().time()
        body = json.dumps({"keys": [key.decode() for key in keys]}).encode()
        answer = await self._ask(b"POST", "/v1/multi-get", wish, keys, body)
        if answer is None:
            return
        positions = {int(partition): position for partition, position in answer["positions"].items()}
        for key, item in zip(keys, answer["items"], strict=True):
            if item["found"] is None:
                if wish.consistency != "any":
                    raise Wrong(f"nobody can say whether {key!r} is there, and nothing is missing")
                continue
            record = (item["partition"], item["offset"]) if item["found"] else None
            value = json.dumps(item["value"]).encode() if item["found"] else None
            alone = self.world.topic.partition_of(key)
            as_of = positions if self.world.mixed else {alone: positions[alone]}
            self.check(wish, Said(key, as_of, record, value, False), "", began, alone=False)

    async def _count(self) -> None:
        answer = await self._ask(b"GET", "/v1/count", Wish(), _KEYS)
        if answer is not None and not STABLE_KEYS <= answer["count"] <= len(_KEYS):
            raise Wrong(
                f"{answer['count']} keys are counted, of {STABLE_KEYS} to {len(_KEYS)} that there are"
            )

    async def _ask(
        self, method: bytes, path: str, wish: Wish, keys: list[bytes], body: bytes = b""
    ) -> dict[str, Any] | None:
        """The answer; None when there is none, and could not be."""
        world, ordinal = self.world, self.any_node()
        began = asyncio.get_running_loop().time()
        before = {key: able(world, key, wish, began) for key in keys}
        parameters = "&".join([*wish.parameters(), f"deadline-ms={_DEADLINE_SECONDS * 1000:.0f}"])
        try:
            answer = await self.ask(
                ordinal, f"{path}?{parameters}", began + _DEADLINE_SECONDS + 0.5, method, body
            )
            status, said = answer.status, json.loads(answer.body)
        except PeerUnavailable as away:
            status, said = 0, {"detail": str(away)}
        world.happened[f"{path} {status}"] += 1
        if status == 200:
            found: dict[str, Any] = said
            return found
        world.note(f"{status} for {path} {wish.consistency} at {host_of(ordinal)}: {said['detail']}")
        if status not in (0, 503, 504):
            raise Wrong(f"{host_of(ordinal)} answers {status} {said}")
        if all(may_not_fail(world, ordinal, key, before[key], wish, began) for key in keys):
            raise Wrong(f"{host_of(ordinal)} refuses {path}, and somebody has each key: {status} {said}")
        return None
