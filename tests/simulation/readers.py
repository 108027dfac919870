"""Who reads, as any client of the HTTP interface does.

Every answer is checked where it arrives. A read that fails is checked as well: it may only fail while nobody who was there all
the time, whom the node that was asked could reach all the time, had a copy that could have answered.
"""

from __future__ import annotations

import asyncio
import json
import random

from queryable_app.serve.peers.client import PeerClient, PeerResponse, PeerUnavailable
from queryable_app.wire.http_text import parse_positions
from tests.simulation.able import able, may_not_fail
from tests.simulation.checks import (
    Said,
    Wish,
    Wrong,
    check_completeness,
    check_freshness,
    check_named,
    check_value,
)
from tests.simulation.nodes import address_of, host_of
from tests.simulation.world import World
from tests.simulation.writer import CHANGING_KEYS, STABLE_KEYS, changing_key, stable_key

_DEADLINE_SECONDS = 2.0


class Reader:
    """What readers have in common. Runs in the clients' process."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random: random.Random = world.rng(name)
        self._http: dict[int, PeerClient] = {}

    def any_node(self) -> int:
        return self.random.randrange(len(self.world.placement.addresses))

    def any_key(self) -> bytes:
        if self.random.random() < 0.1:
            return b"never-written"
        if self.random.random() < 0.5:
            return stable_key(self.random.randrange(STABLE_KEYS))
        return changing_key(self.random.randrange(CHANGING_KEYS))

    def any_wish(self) -> Wish:
        choice = self.random.random()
        if choice < 0.5:
            return Wish()
        if choice < 0.7:
            return Wish(max_lag_ms=self.random.choice((800, 2_000, 5_000)))
        if choice < 0.8:
            return Wish("any")
        topic = self.world.topic
        if choice < 0.9:
            ends = {p: topic.end(p) for p in range(topic.partitions) if topic.end(p)}
            return Wish("at-least", self.random.choice((None, 2_000)) if ends else None, ends)
        return Wish("strong")

    async def ask(
        self, ordinal: int, target: str, deadline: float, method: bytes = b"GET", body: bytes = b""
    ) -> PeerResponse:
        client = self._http.setdefault(ordinal, PeerClient(address_of(ordinal)))
        return await client.request(method, target.encode(), b"", body, deadline)

    def check(
        self,
        wish: Wish,
        said: Said,
        served_by: str,
        began: float,
        alone: bool = True,
    ) -> None:
        check_value(self.world.topic, said)
        check_freshness(self.world.topic, wish, said.positions, began)
        check_named(self.world.topic, wish, said)
        complete = wish.consistency != "any" or said.record is None
        if complete and alone and served_by.startswith("node"):
            births = self.world.births(int(served_by.removeprefix("node")), began)
            check_completeness(self.world.topic, said.positions, births)


class PlainReader(Reader):
    """Reads keys from any node, as curl does."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(5))
            await self.read(self.any_node(), self.any_key(), self.any_wish())

    async def read_everywhere(self) -> None:
        """One read of each node, at once."""
        nodes = range(len(self.world.placement.addresses))
        await asyncio.gather(*(self.read(ordinal, self.any_key(), Wish()) for ordinal in nodes))

    async def read(self, ordinal: int, key: bytes, wish: Wish, must: bool = False) -> None:
        world, loop = self.world, asyncio.get_running_loop()
        began = loop.time()
        before = able(world, key, wish, began)
        parameters = wish.parameters()
        target = f"/v1/keys/{key.decode()}" + (f"?{'&'.join(parameters)}" if parameters else "")
        try:
            answer = await self.ask(ordinal, target, began + _DEADLINE_SECONDS + 0.5)
        except PeerUnavailable as away:
            world.happened["silence"] += 1
            if must or may_not_fail(world, ordinal, key, before, wish, began):
                raise Wrong(f"{host_of(ordinal)} does not answer for {key!r}, {wish}: {away}") from None
            return
        headers = {name.decode(): value.decode() for name, value in answer.headers}
        if answer.status == 200:
            record = int(headers["qt-partition"]), int(headers["qt-offset"])
        elif answer.status == 404:
            record = None
        elif answer.status in (503, 504, 421):
            said = json.loads(answer.body)
            world.happened[f"{answer.status} {wish.consistency}"] += 1
            world.note(
                f"{answer.status} for {key!r} {wish.consistency} at {host_of(ordinal)}: {said['detail']}"
            )
            if answer.status == 421 or must or may_not_fail(world, ordinal, key, before, wish, began):
                raise Wrong(f"{host_of(ordinal)} refuses {key!r}, {wish}: {said}")
            return
        else:
            raise Wrong(f"{host_of(ordinal)} answers {answer.status} {answer.body!r}")
        positions = parse_positions(headers["qt-position"]) or {}
        served_by, hops = headers["qt-served-by"], headers["qt-hops"]
        if hops not in ("0", "1") or (hops == "0" and served_by != host_of(ordinal)):
            raise Wrong(f"{host_of(ordinal)} answers by {served_by}, after {hops} hops")
        world.happened[f"{answer.status} {wish.consistency} hops {hops}"] += 1
        world.note(
            f"{answer.status} {key.decode()} {wish.consistency} {headers['qt-position']} {served_by} {hops}"
        )
        exact = len(positions) == 1 or hops == "0"
        said_here = Said(key, positions, record, answer.body if record else None, exact)
        self.check(wish, said_here, served_by, began, alone=len(positions) == 1 or hops == "0")


class BaitReader(Reader):
    """Reads keys that nobody wrote, each once, so that whoever passes a request on that was passed on to it is seen."""

    async def run(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(self.random.expovariate(2))
            number += 1
            ordinal, key = self.any_node(), f"bait-{number}"
            self.world.baits[key.encode()] = host_of(ordinal)
            began = asyncio.get_running_loop().time()
            try:
                answer = await self.ask(ordinal, f"/v1/keys/{key}", began + _DEADLINE_SECONDS + 0.5)
            except PeerUnavailable:
                continue
            if answer.status == 200:
                raise Wrong(f"{key} was never written")
