"""Read over several partitions like an HTTP client: many keys at once, exact counts, and pages of rows that match.

Such a read may fail only while no reachable replica had the rows of some key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from queryable_app.serve.peers.client import PeerUnavailable
from tests.simulation.checks import GuaranteeBroken, KeyAnswer, ReadRequest
from tests.simulation.nodes import host_of
from tests.simulation.readable_replicas import begin_read, must_be_answered
from tests.simulation.readers import Reader
from tests.simulation.writer_keys import CHANGING_KEYS, STABLE_KEYS, changing_key, stable_key

_KEYS = [stable_key(n) for n in range(STABLE_KEYS)] + [changing_key(n) for n in range(CHANGING_KEYS)]
_DEADLINE_SECONDS = 4.0  # two nodes may become unreachable one after the other during a read


class MultiPartitionReader(Reader):
    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(2))
            await self.random.choice((self._multi_get, self._multi_get, self._count, self._search))()

    async def _multi_get(self) -> None:
        read_request = self.any_request()
        keys = self.random.sample(_KEYS, self.random.randint(1, len(_KEYS)))
        began = asyncio.get_running_loop().time()
        body = json.dumps({"keys": [key.decode() for key in keys]}).encode()
        answer = await self._ask(b"POST", "/v1/multi-get", read_request, keys, body)
        if answer is None:
            return
        positions = {int(partition): position for partition, position in answer["positions"].items()}
        for key, item in zip(keys, answer["items"], strict=True):
            if item["found"] is None:
                if read_request.consistency != "any":
                    raise GuaranteeBroken(f"the answer leaves {key!r} open, and no partition is missing")
                continue
            record = (item["partition"], item["offset"]) if item["found"] else None
            value = json.dumps(item["value"]).encode() if item["found"] else None
            alone = self.world.topic.partition_of(key)
            everywhere = self.world.mixed or self.world.view.rekeyed
            as_of = positions if everywhere else {alone: positions[alone]}
            self.check(read_request, KeyAnswer(key, as_of, record, value, False), "", began, alone=False)

    async def _count(self) -> None:
        answer = await self._ask(b"GET", "/v1/count", ReadRequest(), _KEYS)
        if answer is not None and not STABLE_KEYS <= answer["count"] <= len(_KEYS):
            raise GuaranteeBroken(
                f"{answer['count']} keys are counted, of {STABLE_KEYS} to {len(_KEYS)} that there are"
            )

    async def _search(self) -> None:
        """Read all pages of a scan whose conditions are true of every value. Each page may come from other nodes."""
        found: list[str] = []
        wanted = ["where=" + quote("$ is not null"), f"limit={self.random.randint(2, 12)}"]
        cursor: list[str] = []
        while True:
            parameters = [*wanted, *cursor]
            page = await self._ask(b"GET", "/v1/scan", ReadRequest(), _KEYS, parameters=parameters)
            if page is None:
                return
            found += [item["key"] for item in page["items"]]
            if page["cursor"] is None:
                break
            cursor = [f"cursor={page['cursor']}"]
        if found != sorted(set(found)):
            raise GuaranteeBroken(f"the pages have rows twice, or out of order: {found}")
        missing = {stable_key(n).decode() for n in range(STABLE_KEYS)} - {*found}
        if missing:
            raise GuaranteeBroken(f"the pages lack {missing}")

    async def _ask(
        self,
        method: bytes,
        path: str,
        read_request: ReadRequest,
        keys: list[bytes],
        body: bytes = b"",
        parameters: Sequence[str] = (),
    ) -> dict[str, Any] | None:
        """Return the answer, or None if the read failed and no replica could have answered."""
        world, ordinal = self.world, self.any_node()
        began = asyncio.get_running_loop().time()
        begun = [begin_read(world, ordinal, key, read_request, began) for key in keys]
        of_read = [*parameters, *read_request.parameters(), f"deadline-ms={_DEADLINE_SECONDS * 1000:.0f}"]
        try:
            answer = await self.ask(
                ordinal, f"{path}?{'&'.join(of_read)}", began + _DEADLINE_SECONDS + 0.5, method, body
            )
            status, document = answer.status, json.loads(answer.body)
        except PeerUnavailable as away:
            status, document = 0, {"detail": str(away)}
        world.event_counts[f"{path} {status}"] += 1
        if status == 200:
            found: dict[str, Any] = document
            return found
        world.note(
            f"{status} for {path} {read_request.consistency} at {host_of(ordinal)}: {document['detail']}"
        )
        if status not in (0, 503, 504):
            raise GuaranteeBroken(f"{host_of(ordinal)} answers {status} {document}")
        if all(must_be_answered(world, read) for read in begun):
            raise GuaranteeBroken(
                f"{host_of(ordinal)} refuses {path}, and each key has a readable replica: {status} {document}"
            )
        return None
