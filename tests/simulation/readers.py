"""Who reads and writes: clients of the HTTP interface, and the product's own smart client.

Every answer is checked where it arrives. A read that fails is checked as well: it may only fail while nobody who was there all
the time, whom the node that was asked could reach all the time, had a copy that could have answered.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from queryable_app.client.exceptions import QueryableTopicError
from queryable_app.client.operations import Operations
from queryable_app.client.options import Asked, parse_options, parse_positions
from queryable_app.client.rows import Row
from queryable_app.client.session import Positions
from queryable_app.client.steps import Answer, Event, Exchange, How, Lost, Operation
from queryable_app.serve.peer_client import PeerAnswer, PeerAway, PeerClient, PeerSilent
from tests.simulation.checks import Said, Wish, Wrong, check_completeness, check_freshness, check_value
from tests.simulation.nodes import address_of, host_of
from tests.simulation.world import CLIENT, World

T = TypeVar("T")

STABLE_KEYS = 12  # that are never deleted
CHANGING_KEYS = 10
_DEADLINE_SECONDS = 2.0
_SETTLING_SECONDS = 5.0  # after that a node that could hear of everything has
_SLACK_MS = 700  # a lag grows between two looks at the log's end


def stable_key(number: int) -> bytes:
    return b"stable-%02d" % number


def changing_key(number: int) -> bytes:
    return b"changing-%02d" % number


class Writer:
    """The producers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.rng("writer")
        self._serial = 0

    def fill(self, updates: int) -> None:
        for number in range(STABLE_KEYS):
            self.write(stable_key(number))
        for _ in range(updates):
            self.some()

    def some(self) -> tuple[int, int]:
        """A record of any kind; its partition and offset."""
        choice = self._random.random()
        if choice < 0.04:
            self._world.topic.skip(self._random.randrange(self._world.partitions), self._random.randint(1, 4))
        if choice < 0.06:
            partition = self._random.randrange(self._world.partitions)
            return partition, self._world.topic.append(partition, None, b"0", self._now_ms())
        if choice < 0.4:
            return self.write(stable_key(self._random.randrange(STABLE_KEYS)))
        key = changing_key(self._random.randrange(CHANGING_KEYS))
        return self.write(key, deletes=self._random.random() < 0.4)

    def write(self, key: bytes, deletes: bool = False) -> tuple[int, int]:
        world = self._world
        partition = world.partition_of(key)
        if world.mixed and self._random.random() < 0.3:
            partition = self._random.randrange(world.partitions)
        self._serial += 1
        value = None if deletes else b"%d" % self._serial
        marker = self._random.random() < 0.1
        return partition, world.topic.append(partition, key, value, self._now_ms(), marker)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(8))
            self.some()

    def _now_ms(self) -> int:
        return self._world.scheduler.wall_ns() // 1_000_000 + self._random.randint(-40, 40)


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
            return Wish("at-least", min_positions=ends)
        return Wish("strong")

    async def ask(
        self, ordinal: int, target: str, deadline: float, method: bytes = b"GET", body: bytes = b""
    ) -> PeerAnswer:
        client = self._http.setdefault(ordinal, PeerClient(address_of(ordinal)))
        return await client.ask(method, target.encode(), b"", body, deadline)

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

    async def read(self, ordinal: int, key: bytes, wish: Wish, must: bool = False) -> None:
        world, loop = self.world, asyncio.get_running_loop()
        began = loop.time()
        before = able(world, key, wish, began)
        parameters = wish.parameters()
        target = f"/v1/keys/{key.decode()}" + (f"?{'&'.join(parameters)}" if parameters else "")
        try:
            answer = await self.ask(ordinal, target, began + _DEADLINE_SECONDS + 0.5)
        except PeerAway as away:
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
            except PeerAway:
                continue
            if answer.status == 200:
                raise Wrong(f"{key} was never written")


class SmartReader(Reader):
    """The product's client, with sessions."""

    def __init__(self, world: World, name: str, writer: Writer) -> None:
        super().__init__(world, name)
        self._writer = writer
        urls = [address_of(ordinal) for ordinal in range(min(2, len(world.placement.addresses)))]
        self._operations = Operations(urls, lambda: world.scheduler.now, self.random)
        self._by_url: dict[str, PeerClient] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(3))
            session = Positions({})
            for _ in range(self.random.randint(1, 12)):
                await asyncio.sleep(self.random.expovariate(10))
                await self._one(session)

    async def _one(self, session: Positions) -> None:
        if self.random.random() < 0.25:  # it writes, and then reads its write
            partition, offset = self._writer.some()
            session.note({partition: offset + 1})
        wish = self.any_wish()
        began = asyncio.get_running_loop().time()
        key = self.any_key()
        before = able(self.world, key, wish, began)
        known = self._operations._where._map
        floors = session.seen
        try:
            row = await self.carry_out(self._operations.get(key, False, _asked(wish), session))
        except QueryableTopicError as error:
            self.world.happened[f"client {type(error).__name__}"] += 1
            self.world.note(f"{self.name}: {error}")
            owners = known.owners_of(key) if known else ()
            for ordinal in before:
                if (
                    wish == Wish()
                    and not floors
                    and address_of(ordinal) in owners
                    and ordinal in able(self.world, key, wish, began)
                    and self.world.connected(CLIENT, host_of(ordinal), began)
                ):
                    raise Wrong(
                        f"the client fails for {key!r}, and {host_of(ordinal)} has it: {error}"
                    ) from None
            return
        seen = session.seen
        for partition, floor in floors.items():
            if seen.get(partition, 0) < floor:
                raise Wrong(f"the session forgets what it has seen of {partition}")
        positions = _positions_of(row, seen) if row is not None else None
        if positions is None:
            return
        assert row is not None
        for partition, position in positions.items():
            if position < floors.get(partition, 0):
                raise Wrong(f"the session has seen {floors}, and gets an answer as of {positions}")
        said = Said(
            key, positions, (row.partition, row.offset), json.dumps(row.value).encode(), len(positions) == 1
        )
        self.world.happened["client reads"] += 1
        self.check(wish, said, row.freshness.served_by, began, alone=len(positions) == 1)

    async def scan(self, page_rows: int, order: Any) -> list[Row]:
        """All rows, page by page; a page that fails is asked for again."""
        scan = self._operations.scan(Asked(), order, None, page_rows)
        rows: list[Row] = []
        while not scan.ended:
            try:
                await self.carry_out(self._operations.next_page(scan, None))
            except QueryableTopicError as error:
                self.world.happened[f"scan {type(error).__name__}"] += 1
                await asyncio.sleep(0.5)
            rows += scan.ready
            scan.ready.clear()
        return rows

    async def carry_out(self, operation: Operation[T]) -> T:
        """As the product's carriers, over the simulated network."""
        running: dict[asyncio.Task[Answer | Lost], Exchange] = {}
        loop = asyncio.get_running_loop()
        event: Event | None = None
        try:
            while True:
                try:
                    step = operation.send(event)
                except StopIteration as end:
                    result: T = end.value
                    return result
                for exchange in step.start:
                    running[loop.create_task(self._exchange(exchange))] = exchange
                timeout = max(0.0, step.until - loop.time())
                if not running:
                    await asyncio.sleep(timeout)
                    event = None
                    continue
                done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                first = next((task for task in running if task in done), None)
                event = None if first is None else Event(running.pop(first), first.result())
        finally:
            operation.close()
            for task in running:
                task.cancel()

    async def _exchange(self, exchange: Exchange) -> Answer | Lost:
        client = self._by_url.setdefault(exchange.address, PeerClient(exchange.address))
        request = exchange.request
        try:
            answer = await client.ask(
                request.method.encode(),
                request.target.encode(),
                f"Accept: {request.accept}\r\n".encode(),
                request.body or b"",
                exchange.deadline,
            )
        except PeerSilent as silent:
            return Lost(How.LATE, str(silent))
        except PeerAway as away:
            return Lost(How.NOT_SENT if "refused" in str(away) else How.CUT, str(away))
        headers = {name.decode(): value.decode() for name, value in answer.headers}
        return Answer(answer.status, headers, answer.body)


class ScanReader(SmartReader):
    """Reads everything, a few rows at a time, while the world goes on."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.5, 2.0))
            order = self.random.choice(("asc", "desc"))
            rows = await self.scan(self.random.choice((3, 5, 50)), order)
            self.check_rows(rows, order)

    def check_rows(self, rows: list[Row], order: str) -> None:
        keys = [str(row.key).encode() for row in rows]
        if keys != sorted(set(keys), reverse=order == "desc"):
            raise Wrong(f"a scan gives {keys}, which is not once each, in order")
        for number in range(STABLE_KEYS):
            if stable_key(number) not in keys:
                raise Wrong(f"a scan misses {stable_key(number)!r}, which was there throughout: {keys}")
        for row, key in zip(rows, keys, strict=True):
            value = json.dumps(row.value).encode()
            where = (row.partition, row.offset, value)
            if where not in [(r.partition, r.offset, r.value) for r in self.world.topic.of_key[key]]:
                raise Wrong(f"a scan gives {where} for {key!r}, which was never written")
        self.world.happened["scans"] += 1
        self.world.note(f"a scan of {len(rows)} rows")


def able(world: World, key: bytes, wish: Wish, now: float) -> dict[int, object]:
    """The nodes that could answer now from what they have: by ordinal, the copy."""
    if wish.consistency not in ("bounded",) or world.mixed:
        return {}
    partition = world.partition_of(key)
    found: dict[int, object] = {}
    for ordinal, machine in world.machines.items():
        if machine.node is None:
            continue
        copy = machine.node.copies.by_partition.get(partition)
        if copy is None or not copy.complete or copy.failed is not None or copy.absent is not None:
            continue
        if wish.max_lag_ms is not None:
            then = world.scheduler.now - (wish.max_lag_ms - _SLACK_MS) / 1000
            if world.topic.away or max(0, copy.position) < world.topic.end_at(partition, then):
                continue
            now_ms = (world.scheduler.wall_ns() // 1_000_000) + _skew_ms(machine.process)
            if now_ms - copy.fresh_as_of_ms > wish.max_lag_ms - _SLACK_MS:
                continue
        found[ordinal] = copy
    return found


def may_not_fail(
    world: World, ordinal: int, key: bytes, before: Mapping[int, object], wish: Wish, began: float
) -> bool:
    """Whether somebody could have answered throughout a read of this node."""
    asked, partition = world.machines.get(ordinal), world.partition_of(key)
    if asked is None or asked.node is None or not world.connected(CLIENT, asked.host, began):
        return False
    after = able(world, key, wish, began)
    placement = asked.node.placement
    for other, copy in before.items():
        if after.get(other) is not copy or not world.connected(asked.host, host_of(other), began):
            continue
        if other == ordinal or other in placement.serving[partition]:
            return True
        settled = began - _SETTLING_SECONDS
        hosts = [host_of(o) for o in range(len(world.placement.addresses))]
        if world.connected(asked.host, "placer", settled) and all(
            world.connected(asked.host, host, settled) for host in hosts
        ):
            return True
    return False


def _skew_ms(process: Any) -> int:
    return 0 if process is None else round(process.skew_seconds * 1000)


def _asked(wish: Wish) -> Asked:
    options: dict[str, object] = {}
    if wish.max_lag_ms is not None:
        options["max_lag_ms"] = wish.max_lag_ms
    elif wish.consistency == "at-least":
        options["min_position"] = dict(wish.min_positions)
    elif wish.consistency != "bounded":
        options["consistency"] = wish.consistency
    return parse_options(options, Asked())


def _positions_of(row: Row, seen: Mapping[int, int]) -> Mapping[int, int]:
    return parse_positions(row.position) or {}


def unquoted(key: str) -> bytes:
    return unquote_to_bytes(key)
