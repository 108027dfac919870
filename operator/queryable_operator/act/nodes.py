"""Read the status of query nodes, and send them what they must follow.

All nodes are requested at once, by the address of their pod and their own port, for at most a second. A node that does not
answer keeps its last status, but none of its replicas counts as caught up.
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
from queryable_app.wire.ingest_failures import one_line, parse_failure
from queryable_app.wire.partitioners import ALGORITHMS
from queryable_operator.spec.observed import NodeStatus

_STATUS_PATH: Final = "/v1/status"
_ANSWER_SECONDS: Final = 1.0
_ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
_REFUSAL_BYTES_MAX: Final = 1024 * 1024
_AT_ONCE_MAX: Final = 256


NodeKey = tuple[str, int]
"""The uid of a pod, and the ordinal of a node in it."""


class NodeRefused(Exception):
    """Report that a node refused an update, with the reason."""


@dataclass(frozen=True, slots=True)
class Node:
    """Locate a node: a pod of a revision, or one of its workers."""

    revision: int
    ordinal: int
    uid: str  # of the pod: a newer pod with the same name has not reported yet
    ip: str
    epoch: int | None
    """The epoch of the placement in the revision's ConfigMap. None: that placement is unreadable."""

    port: int = DEFAULT_PORT

    @property
    def key(self) -> NodeKey:
        """Identify the node: a newer pod's nodes have other keys."""
        return self.uid, self.ordinal

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

    async def statuses(
        self, nodes: Mapping[Node, str], before: Mapping[NodeKey, NodeStatus]
    ) -> dict[int, dict[int, NodeStatus]]:
        """Return each node's status, by revision and ordinal. `nodes` maps each node to its revision's token; `before` holds
        the last statuses."""
        received = await asyncio.gather(*(self._request_status(node, token) for node, token in nodes.items()))
        statuses: dict[int, dict[int, NodeStatus]] = {}
        for node, status in zip(nodes, received, strict=True):
            if status is None and node.key in before:
                status = replace(before[node.key], seen=unresponsive(before[node.key].seen))
            if status is not None:
                statuses.setdefault(node.revision, {})[node.ordinal] = status
        return statuses

    async def send_placement(self, node: Node, token: str, placement: Placement) -> None:
        await self._put(node, token, PLACEMENT_PATH, placement.to_json())

    async def send_read_settings(self, node: Node, token: str, read: Mapping[str, Any]) -> None:
        await self._put(node, token, READ_PATH, json.dumps(read))

    async def _request_status(self, node: Node, token: str) -> NodeStatus | None:
        try:
            async with self._turn, asyncio.timeout(_ANSWER_SECONDS):
                headers = {NODE_HEADER: token} if token else {}  # a view with authentication requires it
                text = await self._get(f"{node.url}{_STATUS_PATH}", headers)
                status = parse_node_status(json.loads(text), time.time())
                if token and status.seen.epoch != node.epoch:
                    text = await self._get(f"{node.url}{PLACEMENT_PATH}", headers)
                    status = replace(status, placement=Placement.from_json(text))
        except (httpx.HTTPError, TimeoutError):
            return None  # unreachable, or not started yet
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None  # something else answers at this address
        return status

    async def _get(self, url: str, headers: Mapping[str, str]) -> str:
        async with self._http.stream("GET", url, headers=dict(headers)) as answer:
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
                body_text = await _body(answer, _REFUSAL_BYTES_MAX)
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            raise NodeRefused(f"it does not answer: {error!r}") from error
        if not answer.is_success:
            raise NodeRefused(f"it answers {answer.status_code}: {body_text.decode(errors='replace')[:300]}")


async def _body(answer: httpx.Response, bytes_max: int) -> bytes:
    """Read a body without decompressing it: a resource may name an image whose answers are no node's."""
    body = bytearray()
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > bytes_max:
            raise ValueError(f"{answer.url} answers more than {bytes_max} bytes")
    return bytes(body)


def parse_node_status(status: Mapping[str, Any], now: float) -> NodeStatus:
    """Parse a node's `/v1/status`."""
    replicas = status["partitions"]
    lags = [int(replica["lagRecords"]) for replica in replicas]
    waits = [
        c["remainingSeconds"] for c in replicas if not c["complete"] and c["remainingSeconds"] is not None
    ]
    ingest = status["ingest"]
    return NodeStatus(
        seen=parse_observation(status, now),
        ready=bool(status["ready"]),
        read=dict(status.get("read") or {}),
        replicas=len(replicas),
        complete=sum(bool(replica["complete"]) for replica in replicas),
        lag_records=-1 if any(lag < 0 for lag in lags) else sum(lags),
        records_per_second=sum(float(replica["recordsPerSecond"]) for replica in replicas),
        remaining_seconds=max(waits, default=None),
        topic_partitions=status["topicPartitions"],
        partitioner=str(status["partitioner"]["inUse"]),
        mismatches=_mismatches(status["partitioner"]),
        disk_paused=status["disk"]["paused"] != "none",
        failed={
            int(replica["partition"]): str(replica["failed"])
            for replica in replicas
            if replica["failed"] is not None
        },
        ingest_error=str(ingest["detail"]) if ingest["state"] == "failed" else None,
        failure=parse_failure(ingest.get("failure")),  # a node of an earlier version has none
        rekey_error=_rekey_error(status.get("rekey")),
    )


_JOB_STOPPED: Final = ("failed", "waiting-for-executors")


def _rekey_error(job: Any) -> str | None:
    """Return why the rekey job cannot continue. Only a node of a rekeyed view reports its job."""
    failed = isinstance(job, Mapping) and job.get("state") in _JOB_STOPPED
    return one_line(str(job.get("detail"))) if failed else None


def _mismatches(partitioner: Mapping[str, Any]) -> int:
    """Count mismatches with the declared partitioner; with `auto`, with the best fitting one."""
    counts = partitioner["mismatches"]
    declared = partitioner["declared"]
    if declared in ALGORITHMS:
        return int(counts[declared])
    return min((int(count) for count in counts.values()), default=0) if declared == "auto" else 0
