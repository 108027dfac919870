"""Read keys like an HTTP client, and check every answer on arrival.

A failed read is checked as well: it may fail only if no replica could have answered that was up, and reachable from the
requested node, all the time.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from typing import Any

from queryable_app.serve.peers.client import PeerClient, PeerResponse, PeerUnavailable
from queryable_app.wire.http_text import parse_positions
from tests.simulation.checks import (
    GuaranteeBroken,
    KeyAnswer,
    ReadRequest,
    check_completeness,
    check_freshness,
    check_named_positions,
    check_value,
)
from tests.simulation.nodes import address_of, host_of
from tests.simulation.readable_replicas import begin_read, must_be_answered
from tests.simulation.rekeyed_checks import check_internal_record
from tests.simulation.world import World
from tests.simulation.writer_keys import CHANGING_KEYS, STABLE_KEYS, changing_key, stable_key

_DEADLINE_SECONDS = 2.0
_STRONG_DEADLINE_SECONDS = 4.0


class Reader:
    """Share what all readers need. Readers run in the clients' process."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random: random.Random = world.rng(name)
        self._http: dict[int, PeerClient] = {}

    async def run(self) -> None:
        raise NotImplementedError

    def any_node(self) -> int:
        return self.random.randrange(len(self.world.placement.addresses))

    def any_key(self) -> bytes:
        if self.random.random() < 0.1:
            return b"never-written"
        if self.random.random() < 0.5:
            return stable_key(self.random.randrange(STABLE_KEYS))
        return changing_key(self.random.randrange(CHANGING_KEYS))

    def any_request(self) -> ReadRequest:
        choice = self.random.random()
        if choice < 0.5:
            return ReadRequest()
        if choice < 0.7:
            return ReadRequest(max_lag_ms=self.random.choice((800, 2_000, 5_000)))
        if choice < 0.8:
            return ReadRequest("any")
        topic = self.world.topic
        if choice < 0.9:
            ends = {p: topic.end(p) for p in range(topic.partitions) if topic.end(p)}
            return ReadRequest("at-least", self.random.choice((None, 2_000)) if ends else None, ends)
        return ReadRequest("strong")

    async def ask(
        self,
        ordinal: int,
        target: str,
        deadline: float,
        method: bytes = b"GET",
        body: bytes = b"",
        headers: bytes = b"",
    ) -> PeerResponse:
        client = self._http.setdefault(ordinal, PeerClient(address_of(ordinal)))
        return await client.request(method, target.encode(), headers, body, deadline)

    async def ask_strong(self, path: str, counted: str) -> dict[str, Any] | None:
        """Return the body of a strong read, or None if it failed. Count its status under a name."""
        ordinal, deadline = self.any_node(), asyncio.get_running_loop().time() + _STRONG_DEADLINE_SECONDS
        target = f"{path}{'&' if '?' in path else '?'}consistency=strong&deadline-ms=3500"
        try:
            answer = await self.ask(ordinal, target, deadline)
        except PeerUnavailable:
            return None
        self.world.event_counts[f"{counted} {answer.status}"] += 1
        if answer.status in (503, 504):
            return None
        if answer.status != 200:
            raise GuaranteeBroken(f"{host_of(ordinal)} answers {answer.status} {answer.body!r} for {target}")
        body: dict[str, Any] = json.loads(answer.body)
        return body

    def check(
        self,
        read_request: ReadRequest,
        answer: KeyAnswer,
        served_by: str,
        began: float,
        alone: bool = True,
    ) -> None:
        check_freshness(self.world.topic, read_request, answer.positions, began)
        if self.world.view.rekeyed:
            self.world.source_rows.check(answer)
            if answer.record is not None:
                check_internal_record(self.world.ingested, answer, self.world.view.kind == "keyed")
        else:
            check_value(self.world.topic, answer)
            check_named_positions(self.world.topic, read_request, answer)
        complete = read_request.consistency != "any" or answer.record is None
        if complete and alone and served_by.startswith("node"):
            possible_creation_times = self.world.invariants.possible_creation_times(
                int(served_by.removeprefix("node")), began
            )
            if self.world.view.rekeyed:  # each replica is measured against all source partitions
                created = possible_creation_times.get(self.world.topic.partition_of(answer.key), [])
                possible_creation_times = dict.fromkeys(answer.positions, created)
            check_completeness(self.world.topic, answer.positions, possible_creation_times)


class PlainReader(Reader):
    """Read keys from any node, as curl does."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(5))
            await self.read(self.any_node(), self.any_key(), self.any_request())

    async def read_everywhere(self) -> None:
        """Read from all nodes at the same time."""
        nodes = range(len(self.world.placement.addresses))
        await asyncio.gather(*(self.read(ordinal, self.any_key(), ReadRequest()) for ordinal in nodes))

    async def read(self, ordinal: int, key: bytes, read_request: ReadRequest, must: bool = False) -> None:
        world, loop = self.world, asyncio.get_running_loop()
        began = loop.time()
        begun = begin_read(world, ordinal, key, read_request, began)
        parameters = read_request.parameters()
        target = self.target(key) + (f"?{'&'.join(parameters)}" if parameters else "")
        try:
            answer = await self.ask(ordinal, target, began + _DEADLINE_SECONDS + 0.5)
        except PeerUnavailable as away:
            world.event_counts["silence"] += 1
            if must or must_be_answered(world, begun):
                raise GuaranteeBroken(
                    f"{host_of(ordinal)} does not answer for {key!r}, {read_request}: {away}"
                ) from None
            return
        headers = {name.decode(): value.decode() for name, value in answer.headers}
        if answer.status in (503, 504, 421):
            body = json.loads(answer.body)
            world.event_counts[f"{answer.status} {read_request.consistency}"] += 1
            world.note(
                f"{answer.status} for {key!r} {read_request.consistency} at {host_of(ordinal)}: {body['detail']}"
            )
            if answer.status == 421 or must or must_be_answered(world, begun):
                raise GuaranteeBroken(f"{host_of(ordinal)} refuses {key!r}, {read_request}: {body}")
            return
        if answer.status not in (200, 404):
            raise GuaranteeBroken(f"{host_of(ordinal)} answers {answer.status} {answer.body!r}")
        served_by, hops = headers["qt-served-by"], headers["qt-hops"]
        if hops not in ("0", "1") or (hops == "0" and served_by != host_of(ordinal)):
            raise GuaranteeBroken(f"{host_of(ordinal)} answers by {served_by}, after {hops} hops")
        world.event_counts[f"{answer.status} {read_request.consistency} hops {hops}"] += 1
        self.check_answer(key, read_request, answer, headers, began)

    def target(self, key: bytes) -> str:
        return f"/v1/keys/{key.decode()}"

    def check_answer(
        self,
        key: bytes,
        read_request: ReadRequest,
        answer: PeerResponse,
        headers: Mapping[str, str],
        began: float,
    ) -> None:
        record, value = None, None
        if answer.status == 200:
            record = int(headers["qt-partition"]), int(headers["qt-offset"])
            value = json.dumps(json.loads(answer.body)).encode()
        positions = parse_positions(headers["qt-position"]) or {}
        served_by, hops = headers["qt-served-by"], headers["qt-hops"]
        self.world.note(
            f"{answer.status} {key.decode()} {read_request.consistency} {headers['qt-position']} {served_by} {hops}"
        )
        exact = self.world.one_replica(positions) or hops == "0"
        self.check(
            read_request, KeyAnswer(key, positions, record, value, exact), served_by, began, alone=exact
        )


class UnwrittenKeyReader(Reader):
    """Read keys that were never written, each once, so that a node that forwards a forwarded read is detected."""

    async def run(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(self.random.expovariate(2))
            number += 1
            ordinal, key = self.any_node(), f"bait-{number}"
            self.world.unwritten_keys[key.encode()] = host_of(ordinal)
            began = asyncio.get_running_loop().time()
            try:
                answer = await self.ask(ordinal, f"/v1/keys/{key}", began + _DEADLINE_SECONDS + 0.5)
            except PeerUnavailable:
                continue
            if answer.status == 200:
                raise GuaranteeBroken(f"{key} was never written")
