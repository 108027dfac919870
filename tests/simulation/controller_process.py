"""Send placements to the nodes over the simulated network; the product decides the next one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from queryable_app.contract import NODE_HEADER, PLACEMENT_PATH
from queryable_app.placement.assignment import DesiredPlacement, Placement, settled
from queryable_app.placement.controller import NodeObservation, next_step, parse_observation, unresponsive
from queryable_app.serve.peers.client import PeerClient, PeerUnavailable
from tests.simulation.nodes import TOKEN

_TICK_SECONDS = 0.1
_ASK_AGAIN_SECONDS = 0.25
_ANSWER_SECONDS = 2.0
_HEADERS = f"{NODE_HEADER}: {TOKEN}\r\n".encode()


async def push_outdated(address: str, placement: Placement) -> None:
    """Send an outdated placement, as if it had been delayed in the network."""
    deadline = asyncio.get_running_loop().time() + _ANSWER_SECONDS
    with suppress(PeerUnavailable):
        body = placement.to_json().encode()
        await PeerClient(address).request(b"PUT", PLACEMENT_PATH.encode(), _HEADERS, body, deadline)


class ControllerProcess:
    """Run the placement controller. `stepped` is called with each placement before a node receives it."""

    def __init__(
        self, placement: Placement, wanted: DesiredPlacement, stepped: Callable[[Placement, Placement], None]
    ) -> None:
        self.placement = placement
        self.wanted = wanted
        self._stepped = stepped
        self._seen: dict[int, NodeObservation] = {}
        self._requests: dict[int, asyncio.Task[NodeObservation]] = {}
        self._due: dict[int, float] = {}
        self._clients: dict[int, PeerClient] = {}

    @property
    def settled(self) -> bool:
        """Tell whether the placement is the desired one, and every node has it."""
        return settled(self.placement, self.wanted) and all(
            ordinal in self.wanted.lost
            or (ordinal in self._seen and self._seen[ordinal].epoch >= self.placement.epoch)
            for ordinal in range(len(self.placement.addresses))
        )

    async def run(self) -> None:
        while True:
            self._tick(asyncio.get_running_loop().time())
            await asyncio.sleep(_TICK_SECONDS)

    def _tick(self, now: float) -> None:
        for ordinal, request in list(self._requests.items()):
            if request.done():
                del self._requests[ordinal]
                if request.exception() is None:
                    self._seen[ordinal] = request.result()
                elif ordinal in self._seen:
                    self._seen[ordinal] = unresponsive(self._seen[ordinal])
        nodes = len(self.placement.addresses)
        self._seen = {o: seen for o, seen in self._seen.items() if o < nodes}
        following = next_step(self.placement, self.wanted, self._seen, now)
        if following is not self.placement:
            before, self.placement = self.placement, following
            self._stepped(before, following)
        for ordinal, address in enumerate(self.placement.addresses):
            if ordinal not in self._requests and now >= self._due.get(ordinal, now):
                self._due[ordinal] = now + _ASK_AGAIN_SECONDS
                self._requests[ordinal] = asyncio.create_task(self._ask(ordinal, address, self.placement))

    async def _ask(self, ordinal: int, address: str, placement: Placement) -> NodeObservation:
        client = self._clients.setdefault(ordinal, PeerClient(address))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _ANSWER_SECONDS
        status = await self._get(client, b"GET", b"/v1/status", b"", deadline)
        if status["epoch"] < placement.epoch:
            await self._get(
                client, b"PUT", PLACEMENT_PATH.encode(), placement.to_json().encode(), loop.time() + 2.0
            )
            status = await self._get(client, b"GET", b"/v1/status", b"", loop.time() + 2.0)
        return parse_observation(status, loop.time())

    async def _get(
        self, client: PeerClient, method: bytes, target: bytes, body: bytes, deadline: float
    ) -> dict[str, Any]:
        answer = await client.request(method, target, _HEADERS, body, deadline)
        if answer.status != 200:
            raise PeerUnavailable(f"{answer.status}: {answer.body[:200]!r}")
        document: dict[str, Any] = json.loads(answer.body)
        return document
