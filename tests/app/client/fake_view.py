"""Simulate a view without a network: a virtual clock, nodes that behave as a test sets them, and the client's operations."""

from __future__ import annotations

import heapq
import json
from base64 import urlsafe_b64decode
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

from queryable_app.client.attempts import Attempt, Event, FailureKind, Operation, Response, TransportFailure
from queryable_app.client.operations import Operations
from queryable_app.client.options import ReadSettings
from queryable_app.client.rows import Row
from queryable_app.errors import Failure, Reason
from queryable_app.wire.partitioners import partition_for

T = TypeVar("T")

SERVICE = "http://service"
PLAIN = ReadSettings()


@dataclass
class Node:
    """Simulate a node: `away` refuses connections, `hangs` accepts them and never answers, `refusals` come before responses."""

    name: str
    seconds: float = 0.001
    away: bool = False
    hangs: bool = False
    refusals: list[Failure] = field(default_factory=list)
    always: Failure | None = None
    position: int = 100
    revision: str = ""  # if it is not the placement's
    known_placement: tuple[int, list[list[str]]] | None = (
        None  # an older epoch and its owners, which it serves as the placement
    )


class FakeView:
    def __init__(self, nodes: int, replicas: int, partitions: int = 6) -> None:
        self.now = 1000.0
        self.nodes = {f"http://n{n}": Node(f"n{n}") for n in range(nodes)}
        self.nodes[SERVICE] = Node("n0")
        self.rows: dict[bytes, Any] = {}
        self.epoch = 1
        self.application: str | None = "tests.users.r1"  # None: no view
        self.owners = [[f"http://n{(p + c) % nodes}" for c in range(replicas)] for p in range(partitions)]
        self.attempts: list[Attempt] = []
        self.texts: dict[bytes, bytes] = {}
        """Replacements of texts in bodies, for JSON that `json` itself does not write."""
        self.mixed = False
        """Whether producers use several partitioners: a response for one key then has the positions of all partitions."""

    def clock(self) -> float:
        return self.now

    def attempted_addresses(self, path: str = "/v1/keys/") -> list[str]:
        return [attempt.address for attempt in self.attempts if attempt.request.target.startswith(path)]

    def run_operation(self, operation: Operation[T]) -> T:
        """Run an operation as a transport does, in virtual time."""
        coming: list[tuple[float, int, Event]] = []
        numbers = count()
        event: Event | None = None
        while True:
            try:
                step = operation.send(event)
            except StopIteration as end:
                result: T = end.value
                return result
            for attempt in step.start:
                assert attempt.started == self.now
                self.attempts.append(attempt)
                seconds, outcome = self._meet(attempt)
                ends = self.now + seconds
                if ends >= attempt.deadline:
                    ends, outcome = attempt.deadline, TransportFailure(FailureKind.TIMEOUT, "late")
                heapq.heappush(coming, (ends, next(numbers), Event(attempt, outcome)))
            assert step.until != float("inf")
            if coming and coming[0][0] <= step.until:
                ends, _, event = heapq.heappop(coming)
                self.now = max(self.now, ends)
            else:
                self.now, event = max(self.now, step.until), None

    def _meet(self, attempt: Attempt) -> tuple[float, Response | TransportFailure]:
        node = self.nodes.get(attempt.address)
        if node is None or node.away:
            return 0.0005, TransportFailure(FailureKind.NOT_SENT, "refused")
        if node.hangs:
            return float("inf"), TransportFailure(FailureKind.CONNECTION_LOST, "never")
        refusal = node.refusals.pop(0) if node.refusals else node.always
        url = urlsplit(attempt.request.target)
        if refusal is not None and url.path != "/v1/placement":
            return node.seconds, self._answer(node, refusal.problem(), refusal.reason.status)
        return node.seconds, self._result(node, url.path, parse_qs(url.query), attempt.request.body)

    def _result(self, node: Node, path: str, values: dict[str, list[str]], body: bytes | None) -> Response:
        if path == "/v1/placement":
            return self._answer(node, self._placement(node))
        if path == "/v1/multi-get":
            keys = [urlsafe_b64decode(text + "==") for text in json.loads(body or b"")["keys"]]
            of = None if self.mixed else {partition_for(key, "murmur2", len(self.owners)) for key in keys}
            return self._answer(node, {"items": [self._item(key) for key in keys]}, of=of)
        if path == "/v1/scan":
            start, limit = int(values.get("cursor", ["0"])[0]), int(values["limit"][0])
            items = [self._item(key) for key in sorted(self.rows)]
            more = start + limit < len(items)
            page = {
                "items": items[start : start + limit],
                "cursor": str(start + limit) if more else None,
                "missing": [],
            }
            return self._answer(node, page)
        if path == "/v1/records":
            return self._answer(node, {"partition": 0, "offset": 7, "position": "0:8"})
        key = unquote_to_bytes(path.removeprefix("/v1/keys/"))
        of = None if self.mixed else {partition_for(key, "murmur2", len(self.owners))}
        if key not in self.rows:
            return self._answer(node, Failure(Reason.KEY_NOT_FOUND, "no", "no").problem(), 404, of=of)
        return self._answer(node, self.rows[key], offset=1, of=of)

    def _placement(self, node: Node) -> dict[str, Any]:
        epoch, owners = node.known_placement or (self.epoch, self.owners)
        return {
            "epoch": epoch,
            "applicationId": self.application,
            "partitioner": "murmur2",
            "keyFormat": "string",
            "partitions": [
                {"partition": p, "addresses": addresses, "hydrating": []}
                for p, addresses in enumerate(owners)
            ],
        }

    def _item(self, key: bytes) -> dict[str, Any]:
        item: dict[str, Any] = {"key": key.decode(), "found": key in self.rows}
        if key in self.rows:
            partition = partition_for(key, "murmur2", len(self.owners))
            item |= {"value": self.rows[key], "partition": partition, "offset": 1, "timestamp": 1}
        return item

    def _answer(
        self, node: Node, body: Any, status: int = 200, offset: int = 0, of: set[int] | None = None
    ) -> Response:
        headers = {
            "qt-served-by": node.name,
            "qt-epoch": str(self.epoch),
            "qt-partition": "0",
            "qt-offset": str(offset),
            "qt-position": ",".join(
                f"{p}:{node.position}" for p in range(len(self.owners)) if of is None or p in of
            ),
            "qt-role": "active",
            "qt-lag-ms": "3",
            "qt-lag-records": "-1",
        }
        if self.application is not None:
            headers["qt-application"] = node.revision or self.application
        raw = json.dumps(body).encode()
        for mark, text in self.texts.items():
            raw = raw.replace(mark, text)
        return Response(status, headers, raw)


def refusal(reason: Reason, retry_after_ms: int | None = None) -> Failure:
    return Failure(reason, "as the test has it", "none", retry_after_ms=retry_after_ms)


def client(view: FakeView) -> Operations:
    return Operations([SERVICE], view.clock, Random(1))


def read(
    view: FakeView, operations: Operations, key: str = "a", read_settings: ReadSettings = PLAIN
) -> Row | None:
    return view.run_operation(operations.get(key, False, read_settings, None))


def owners(view: FakeView, key: str = "a") -> list[str]:
    return view.owners[partition_for(key.encode(), "murmur2", len(view.owners))]


def with_placement(view: FakeView) -> Operations:
    """Return a client that has fetched the placement while all nodes were good."""
    operations = client(view)
    nodes = dict(view.nodes)
    view.nodes = {address: Node("good") for address in nodes}
    read(view, operations)
    view.nodes = nodes
    view.attempts.clear()
    return operations
