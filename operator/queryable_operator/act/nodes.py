"""Query nodes: what they say of themselves, and what they are told.

Strategy: all are asked at once, by the address of their pod, and nobody is waited for longer than a second. A node that
does not answer has said what it said last, but no copy is called caught up any more.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx

from queryable_app.contract import DEFAULT_PORT, NODE_HEADER, PLACEMENT_PATH, READ_PATH
from queryable_app.placement.assignment import Placement
from queryable_app.placement.controller import parse_observation, unresponsive
from queryable_app.wire.ingest_failures import parse_failure
from queryable_app.wire.partitioners import ALGORITHMS
from queryable_operator.spec.observed import NodeStatus

_STATUS_PATH: Final = "/v1/status"
_ANSWER_SECONDS: Final = 1.0
_ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
_REFUSAL_BYTES_MAX: Final = 1024 * 1024
_AT_ONCE_MAX: Final = 256


class NodeRefused(Exception):
    """A node did not take what it was told; the message says why."""


@dataclass(frozen=True, slots=True)
class Node:
    """A pod of a revision."""

    revision: int
    ordinal: int
    uid: str  # of the pod: another one under the same name has said nothing yet
    ip: str
    epoch: int | None
    """Of the placement that stands in the revision's ConfigMap. None: there is none that can be read."""

    port: int = DEFAULT_PORT

    @property
    def url(self) -> str:
        return f"http://[{self.ip}]:{self.port}" if ":" in self.ip else f"http://{self.ip}:{self.port}"


class Nodes:
    def __init__(self) -> None:
        self._http = httpx.AsyncClient(
            timeout=_ANSWER_SECONDS,
            trust_env=False,
            headers={"accept-encoding": "identity"},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=_AT_ONCE_MAX),
        )
        self._turn = asyncio.Semaphore(_AT_ONCE_MAX)

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(
        self, nodes: Mapping[Node, str], before: Mapping[str, NodeStatus]
    ) -> dict[int, dict[int, NodeStatus]]:
        """What each says, by revision and ordinal. `nodes` come with their revision's token; `before` is what pods have said
        earlier, by their uid."""
        answers = await asyncio.gather(*(self._ask(node, token) for node, token in nodes.items()))
        said: dict[int, dict[int, NodeStatus]] = {}
        for node, answer in zip(nodes, answers, strict=True):
            if answer is None and node.uid in before:
                answer = replace(before[node.uid], seen=unresponsive(before[node.uid].seen))
            if answer is not None:
                said.setdefault(node.revision, {})[node.ordinal] = answer
        return said

    async def send_placement(self, node: Node, token: str, placement: Placement) -> None:
        await self._put(node, token, PLACEMENT_PATH, placement.to_json())

    async def send_read_settings(self, node: Node, token: str, read: Mapping[str, Any]) -> None:
        await self._put(node, token, READ_PATH, json.dumps(read))

    async def _ask(self, node: Node, token: str) -> NodeStatus | None:
        try:
            async with self._turn, asyncio.timeout(_ANSWER_SECONDS):
                said = parse_node_status(
                    json.loads(await self._get(f"{node.url}{_STATUS_PATH}")), time.time()
                )
                if token and said.seen.epoch != node.epoch:
                    text = await self._get(f"{node.url}{PLACEMENT_PATH}", {NODE_HEADER: token})
                    said = replace(said, placement=Placement.from_json(text))
        except (httpx.HTTPError, TimeoutError):
            return None  # away, or not there yet
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None  # whatever answers there is no node
        return said

    async def _get(self, url: str, headers: Mapping[str, str] | None = None) -> str:
        async with self._http.stream("GET", url, headers=dict(headers or {})) as answer:
            answer.raise_for_status()
            return (await _body(answer, _ANSWER_BYTES_MAX)).decode()

    async def _put(self, node: Node, token: str, path: str, body: str) -> None:
        headers = {NODE_HEADER: token, "content-type": "application/json"}
        try:
            async with (
                self._turn,
                asyncio.timeout(_ANSWER_SECONDS),
                self._http.stream("PUT", f"{node.url}{path}", content=body, headers=headers) as answer,
            ):
                said = await _body(answer, _REFUSAL_BYTES_MAX)
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            raise NodeRefused(f"it does not answer: {error!r}") from error
        if not answer.is_success:
            raise NodeRefused(f"it answers {answer.status_code}: {said.decode(errors='replace')[:300]}")


async def _body(answer: httpx.Response, bytes_max: int) -> bytes:
    """What came over the network, not unpacked: a resource may name an image whose answers are no node's."""
    body = bytearray()
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > bytes_max:
            raise ValueError(f"{answer.url} answers more than {bytes_max} bytes")
    return bytes(body)


def parse_node_status(status: Mapping[str, Any], now: float) -> NodeStatus:
    """From a node's `/v1/status`."""
    copies = status["partitions"]
    lags = [int(copy["lagRecords"]) for copy in copies]
    waits = [c["remainingSeconds"] for c in copies if not c["complete"] and c["remainingSeconds"] is not None]
    ingest = status["ingest"]
    return NodeStatus(
        seen=parse_observation(status, now),
        ready=bool(status["ready"]),
        read=dict(status.get("read") or {}),
        copies=len(copies),
        complete=sum(bool(copy["complete"]) for copy in copies),
        lag_records=-1 if any(lag < 0 for lag in lags) else sum(lags),
        records_per_second=sum(float(copy["recordsPerSecond"]) for copy in copies),
        remaining_seconds=max(waits, default=None),
        topic_partitions=status["topicPartitions"],
        partitioner=str(status["partitioner"]["inUse"]),
        mismatches=_mismatches(status["partitioner"]),
        disk_paused=status["disk"]["paused"] != "none",
        failed={int(copy["partition"]): str(copy["failed"]) for copy in copies if copy["failed"] is not None},
        ingest_failed=str(ingest["detail"]) if ingest["state"] == "failed" else None,
        failure=parse_failure(ingest.get("failure")),  # a node of an earlier version has none
    )


def _mismatches(partitioner: Mapping[str, Any]) -> int:
    """Against the declared one. With `auto`: against the one that fits best."""
    counts = partitioner["mismatches"]
    declared = partitioner["declared"]
    if declared in ALGORITHMS:
        return int(counts[declared])
    return min((int(count) for count in counts.values()), default=0) if declared == "auto" else 0
