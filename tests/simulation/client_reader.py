"""Read with the product's own client: sessions, and long scans."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from queryable_app.client.attempts import Attempt, FailureKind, Operation, Response, TransportFailure
from queryable_app.client.exceptions import QueryableTopicError
from queryable_app.client.operations import Operations
from queryable_app.client.options import ReadSettings, parse_options
from queryable_app.client.rows import Row
from queryable_app.client.session import SessionPositions
from queryable_app.client.task_transport import run_operation
from queryable_app.serve.peers.client import PeerClient, PeerTimeout, PeerUnavailable
from queryable_app.wire.http_text import parse_positions
from tests.simulation.checks import GuaranteeBroken, KeyAnswer, ReadRequest
from tests.simulation.nodes import CLIENT, address_of, host_of
from tests.simulation.readable_replicas import readable_replicas
from tests.simulation.readers import Reader
from tests.simulation.world import World
from tests.simulation.writer import Writer
from tests.simulation.writer_keys import STABLE_KEYS, stable_key

T = TypeVar("T")


class ClientReader(Reader):
    """Read and write with the product's client, in sessions."""

    def __init__(self, world: World, name: str, writer: Writer) -> None:
        super().__init__(world, name)
        self._writer = writer
        urls = [address_of(ordinal) for ordinal in range(min(2, len(world.placement.addresses)))]
        self._operations = Operations(urls, lambda: world.scheduler.now, self.random)
        self._by_url: dict[str, PeerClient] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(3))
            session = SessionPositions({})
            for _ in range(self.random.randint(1, 12)):
                await asyncio.sleep(self.random.expovariate(10))
                await self._one(session)

    async def _one(self, session: SessionPositions) -> None:
        if self.random.random() < 0.25:  # read your writes
            partition, offset = self._writer.write_any()
            session.note_written({partition: offset + 1})
        read_request = self.any_request()
        began = asyncio.get_running_loop().time()
        key = self.any_key()
        before = readable_replicas(self.world, key, read_request, began)
        known = self._operations._placements._placement
        floors = session.seen
        one_replica = read_request.consistency != "at-least" and not session.unconfirmed(
            self.world.scheduler.now
        )
        try:
            row = await self.run_operation(self._operations.get(key, False, _asked(read_request), session))
        except QueryableTopicError as error:
            self.world.event_counts[f"client {type(error).__name__}"] += 1
            self.world.note(f"{self.name}: {error}")
            owners = known.owners_of(key) if known else ()
            for ordinal in before:
                if (
                    read_request == ReadRequest()
                    and not floors
                    and address_of(ordinal) in owners
                    and ordinal in readable_replicas(self.world, key, read_request, began)
                    and self.world.reachability.connected(CLIENT, host_of(ordinal), began)
                ):
                    raise GuaranteeBroken(
                        f"the client fails for {key!r}, and {host_of(ordinal)} has it: {error}"
                    ) from None
            return
        seen = session.seen
        for partition, floor in floors.items():
            if seen.get(partition, 0) < floor:
                raise GuaranteeBroken(f"the session forgets what it has seen of {partition}")
        if row is None:
            self._check_absent(key, read_request, seen, began, one_replica)
            return
        positions = parse_positions(row.position) or {}
        for partition, position in positions.items():
            if position < floors.get(partition, 0):
                raise GuaranteeBroken(f"the session has seen {floors}, and gets an answer as of {positions}")
        one_replica = self.world.one_replica(positions)
        answer = KeyAnswer(
            key, positions, (row.partition, row.offset), json.dumps(row.value).encode(), one_replica
        )
        self.world.event_counts["client reads"] += 1
        self.check(read_request, answer, row.freshness.served_by, began, alone=one_replica)

    def _check_absent(
        self, key: bytes, read_request: ReadRequest, seen: Mapping[int, int], began: float, one_replica: bool
    ) -> None:
        """Check a 404 at the session's position, since the answer states none to the caller."""
        self.world.event_counts["client finds nothing"] += 1
        partition = self.world.topic.partition_of(key)
        if not self.world.mixed and not self.world.view.rekeyed and partition in seen:
            self.check(
                read_request, KeyAnswer(key, {partition: seen[partition]}, None, None, one_replica), "", began
            )

    async def scan(self, page_rows: int, order: Any) -> list[Row]:
        """Return all rows, page by page; retry a failed page."""
        scan = self._operations.scan(ReadSettings(), order, None, page_rows)
        rows: list[Row] = []
        while not scan.ended:
            try:
                await self.run_operation(self._operations.next_page(scan, None))
            except QueryableTopicError as error:
                self.world.event_counts[f"scan {type(error).__name__}"] += 1
                await asyncio.sleep(0.5)
            rows += scan.ready
            scan.ready.clear()
        return rows

    async def run_operation(self, operation: Operation[T]) -> T:
        """Run an operation with the product's loop over the simulated network."""
        return await run_operation(operation, self._exchange, lambda: self.world.scheduler.now)

    async def _exchange(self, attempt: Attempt) -> Response | TransportFailure:
        client = self._by_url.setdefault(attempt.address, PeerClient(attempt.address))
        request = attempt.request
        try:
            answer = await client.request(
                request.method.encode(),
                request.target.encode(),
                f"Accept: {request.accept}\r\n".encode(),
                request.body or b"",
                attempt.deadline,
            )
        except PeerTimeout as silent:
            return TransportFailure(FailureKind.TIMEOUT, str(silent))
        except PeerUnavailable as away:
            return TransportFailure(
                FailureKind.NOT_SENT if "refused" in str(away) else FailureKind.CONNECTION_LOST, str(away)
            )
        headers = {name.decode(): value.decode() for name, value in answer.headers}
        return Response(answer.status, headers, answer.body)


class ScanReader(ClientReader):
    """Scan all rows, a few at a time, while faults go on."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.5, 2.0))
            order = self.random.choice(("asc", "desc"))
            rows = await self.scan(self.random.choice((3, 5, 50)), order)
            self.check_rows(rows, order)

    def check_rows(self, rows: list[Row], order: str) -> None:
        keys = [str(row.key).encode() for row in rows]
        if keys != sorted(set(keys), reverse=order == "desc"):
            raise GuaranteeBroken(f"a scan gives {keys}, which is not once each, in order")
        for number in range(STABLE_KEYS):
            if stable_key(number) not in keys:
                raise GuaranteeBroken(
                    f"a scan misses {stable_key(number)!r}, which was there throughout: {keys}"
                )
        for row, key in zip(rows, keys, strict=True):
            value = json.dumps(row.value).encode()
            if self.world.view.rekeyed:
                nowhere = dict.fromkeys(range(self.world.partitions), 0)
                answer = KeyAnswer(key, nowhere, (row.partition, row.offset), value, False)
                self.world.source_rows.check(answer)
                continue
            where = (row.partition, row.offset, value)
            if where not in [(r.partition, r.offset, r.value) for r in self.world.topic.of_key[key]]:
                raise GuaranteeBroken(f"a scan gives {where} for {key!r}, which was never written")
        self.world.event_counts["scans"] += 1
        self.world.note(f"a scan of {len(rows)} rows")


def _asked(read_request: ReadRequest) -> ReadSettings:
    options: dict[str, object] = {}
    if read_request.max_lag_ms is not None:
        options["max_lag_ms"] = read_request.max_lag_ms
    if read_request.consistency == "at-least":
        options["min_position"] = dict(read_request.min_positions)
    elif read_request.consistency != "bounded":
        options["consistency"] = read_request.consistency
    return parse_options(options, ReadSettings())
