"""The other nodes of the view: reads that they answer for this one, and what they know.

Strategy: a node asks another at most once for a request; what it is asked itself it answers from its own copies. A
heartbeat a second tells who is there and which partitioners their records contradict, so that every node looks for a key
in the same place. A node that did not answer is a suspect: asked last, never left out.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from queryable_app.contract import NodeSettings
from queryable_app.errors import Failure, Reason
from queryable_app.freshness import Asked, Consistency
from queryable_app.log import event
from queryable_app.peer_frames import PeerFrameError, RawRow, decode_rows
from queryable_app.routing import route
from queryable_app.serve.copies import Copies
from queryable_app.serve.peer_client import PeerAnswer, PeerAway, PeerClient

NODE_HEADER: Final = "qt-node"
FORWARDED_HEADER: Final = "qt-forwarded"
COVER: Final = "/internal/v1/cover"
ROWS: Final = "/internal/v1/rows"
KEYS: Final = "/internal/v1/keys"
COUNT: Final = "/internal/v1/count"
HEARTBEAT: Final = "/internal/v1/heartbeat"

_HEARTBEAT_SECONDS: Final = 1.0
_FIRST_HEARTBEAT_SECONDS: Final = 0.5
_SILENT_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Heard:
    """What a node said of itself."""

    at: float  # monotonic
    epoch: int
    mismatches: tuple[int, int, int]


class Peers:
    def __init__(self, settings: NodeSettings, copies: Copies) -> None:
        self._own = settings.ordinal
        self._copies = copies
        path = settings.internal_token_path
        self._token = Path(path).read_text().strip() if path else ""
        self._headers = f"{NODE_HEADER}: {self._token}\r\n".encode()
        self._clients: dict[str, PeerClient] = {}
        self._beating: asyncio.Task[None] | None = None
        self.heard: dict[int, Heard] = {}
        self.suspects: frozenset[int] = frozenset()

    async def start(self) -> None:
        """Hears of the others first, if they are there: which partitioner is in use decides where a key is."""
        if self.others():
            try:
                async with asyncio.timeout(_FIRST_HEARTBEAT_SECONDS):
                    await self._beat()
            except TimeoutError:
                pass
            self._beating = asyncio.create_task(self._keep_beating())

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        for client in self._clients.values():
            client.close()

    def knows(self, token: str) -> bool:
        return bool(self._token) and hmac.compare_digest(token.encode(), self._token.encode())

    @property
    def node_headers(self) -> bytes:
        """Header lines that show another node that this one belongs to the view."""
        return self._headers

    def candidates(self, partition: int, tried: Collection[int] = ()) -> list[int]:
        """Other nodes that serve the partition, in the order in which to ask them."""
        if not self._token:
            return []
        ordered = route(partition, self._copies.placement, self._own, self.suspects)
        return [ordinal for ordinal in ordered if ordinal != self._own and ordinal not in tried]

    def address(self, ordinal: int) -> str:
        return self._copies.placement.addresses[ordinal]

    async def forward(self, ordinal: int, target: bytes, headers: bytes, deadline: float) -> PeerAnswer:
        """A client's point read, answered by another node."""
        mark = b"%b: %b\r\nQt-Deadline-Ms: %d\r\n" % (
            FORWARDED_HEADER.encode(),
            self._token.encode(),
            _left_ms(deadline),
        )
        return await self._ask(ordinal, b"GET", target, headers + mark, b"", deadline)

    async def cover(
        self, ordinal: int, partitions: Sequence[int], asked: Asked, deadline: float
    ) -> dict[str, Any]:
        """How the copies of these partitions stand there, once they have caught up as far as was asked for."""
        body = {"partitions": list(partitions), "asked": asked_to_json(asked, deadline)}
        head, _ = await self._rows(ordinal, COVER, body, deadline)
        return head

    async def rows(
        self,
        ordinal: int,
        partitions: Sequence[int],
        start: bytes | None,
        stop: bytes | None,
        reverse: bool,
        deadline: float,
    ) -> AsyncGenerator[list[RawRow], None]:
        """The rows of these partitions there, in key order. Each batch has a deadline of its own, as long as the first."""
        loop = asyncio.get_running_loop()
        seconds = max(1.0, deadline - loop.time())
        while True:
            body = {
                "partitions": list(partitions),
                "start": _text(start),
                "stop": _text(stop),
                "reverse": reverse,
            }
            head, rows = await self._rows(ordinal, ROWS, body, loop.time() + seconds)
            if rows:
                yield rows
            if head["last"]:
                return
            if reverse:
                stop = rows[-1][0]
            else:
                start = rows[-1][0] + b"\0"

    async def keys(self, ordinal: int, keys: Mapping[int, Iterable[bytes]], deadline: float) -> list[RawRow]:
        body = {"keys": {str(p): [_text(key) for key in wanted] for p, wanted in keys.items()}}
        return (await self._rows(ordinal, KEYS, body, deadline))[1]

    async def count(self, ordinal: int, partitions: Sequence[int], approximate: bool, deadline: float) -> int:
        body = {"partitions": list(partitions), "approximate": approximate}
        return int((await self._rows(ordinal, COUNT, body, deadline))[0]["count"])

    async def _rows(
        self, ordinal: int, path: str, body: object, deadline: float
    ) -> tuple[dict[str, Any], list[RawRow]]:
        text = json.dumps(body).encode()
        answer = await self._ask(ordinal, b"POST", path.encode(), self._headers, text, deadline)
        if answer.status != 200:
            raise PeerAway(f"node {ordinal} answered {answer.status}")
        try:
            return decode_rows(answer.body)
        except PeerFrameError as error:
            raise PeerAway(str(error)) from None

    async def _ask(
        self, ordinal: int, method: bytes, target: bytes, headers: bytes, body: bytes, deadline: float
    ) -> PeerAnswer:
        address = self.address(ordinal)
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = PeerClient(address)
        try:
            answer = await client.ask(method, target, headers, body, deadline)
        except PeerAway as away:
            self._suspect(ordinal, str(away))
            raise
        return answer

    def _suspect(self, ordinal: int, why: str) -> None:
        if ordinal not in self.suspects:
            self.suspects |= {ordinal}
            event("peer-away", peer=self.address(ordinal), reason=why)

    def others(self) -> list[int]:
        """The other nodes of the placement; none without a token to show them."""
        everyone = range(len(self._copies.placement.addresses))
        return [ordinal for ordinal in everyone if ordinal != self._own] if self._token else []

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            await self._beat()

    async def _beat(self) -> None:
        await asyncio.gather(*(self._hear(ordinal) for ordinal in self.others()))
        elsewhere = [0, 0, 0]
        for heard in self.heard.values():
            elsewhere = [a + b for a, b in zip(elsewhere, heard.mismatches, strict=True)]
        self._copies.mismatches_elsewhere = (elsewhere[0], elsewhere[1], elsewhere[2])
        self._copies.note_mismatches()

    async def _hear(self, ordinal: int) -> None:
        deadline = asyncio.get_running_loop().time() + _SILENT_SECONDS
        try:
            answer = await self._ask(ordinal, b"GET", HEARTBEAT.encode(), self._headers, b"", deadline)
            said = json.loads(answer.body)
            murmur2, crc32, fnv1a = (int(count) for count in said["mismatches"])
            self.heard[ordinal] = Heard(time.monotonic(), int(said["epoch"]), (murmur2, crc32, fnv1a))
        except (PeerAway, ValueError, KeyError, TypeError) as error:
            self._suspect(ordinal, str(error))
            return
        if ordinal in self.suspects:
            self.suspects -= {ordinal}
            event("peer-back", peer=self.address(ordinal))


def asked_to_json(asked: Asked, deadline: float) -> dict[str, Any]:
    return {
        "consistency": asked.consistency.value,
        "maxLagMs": asked.max_lag_ms,
        "maxLagRecords": asked.max_lag_records,
        "minPositions": {str(partition): offset for partition, offset in asked.min_positions.items()},
        "deadlineMs": _left_ms(deadline),
    }


def asked_from_json(raw: Mapping[str, Any]) -> Asked:
    """From another node of the same version, behind its token; what is wrong raises KeyError, TypeError or ValueError."""
    return Asked(
        Consistency(raw["consistency"]),
        raw["maxLagMs"],
        raw["maxLagRecords"],
        {int(partition): int(offset) for partition, offset in raw["minPositions"].items()},
        int(raw["deadlineMs"]),
        "local",
    )


def unreachable(partition: int) -> Failure:
    return Failure(
        Reason.NOT_AVAILABLE,
        f"no node that holds partition {partition} can be reached",
        "retry; /v1/placement names the nodes",
        partition=partition,
        retry_after_ms=1000,
    )


def _left_ms(deadline: float) -> int:
    return max(1, int((deadline - asyncio.get_running_loop().time()) * 1000))


def _text(key: bytes | None) -> str | None:
    return None if key is None else b64encode(key).decode()
