"""Read the status of query nodes, and send them what they must follow.

All nodes are requested at once, by the address of their pod and their own port, for at most a second. A node that does not
answer keeps its last status, but none of its replicas counts as caught up.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx

from queryable_app.contract import DEFAULT_PORT, NODE_HEADER, PLACEMENT_PATH, READ_PATH
from queryable_app.placement.assignment import Placement
from queryable_app.placement.controller import parse_observation, unresponsive
from queryable_app.platform.certificates import client_context
from queryable_app.wire.ingest_failures import one_line, parse_failure
from queryable_app.wire.partitioners import ALGORITHMS
from queryable_operator.spec.observed import NodeStatus

_STATUS_PATH: Final = "/v1/status"
_ANSWER_SECONDS: Final = 1.0
_ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
_REFUSAL_BYTES_MAX: Final = 1024 * 1024
_AT_ONCE_MAX: Final = 256
_VERIFIED_MAX: Final = 1024


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
    tls_name: str = ""
    """The name in its certificate. Empty: it speaks plain HTTP."""

    ca: bytes = b""
    """The certificates of the CAs that may have signed it."""

    @property
    def is_tls(self) -> bool:
        return bool(self.tls_name)

    @property
    def key(self) -> NodeKey:
        """Identify the node: a newer pod's nodes have other keys."""
        return self.uid, self.ordinal

    @property
    def url(self) -> str:
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


class Nodes:
    def __init__(self) -> None:
        self._http = _client(verify=True)
        self._verified: dict[str, tuple[bytes, httpx.AsyncClient]] = {}  # by the name in the certificate
        self._turn = asyncio.Semaphore(_AT_ONCE_MAX)

    async def close(self) -> None:
        for client in (self._http, *(client for _, client in self._verified.values())):
            await client.aclose()

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
                text = await self._get(node, _STATUS_PATH, headers)
                status = parse_node_status(json.loads(text), time.time())
                if token and status.seen.epoch != node.epoch:
                    text = await self._get(node, PLACEMENT_PATH, headers)
                    status = replace(status, placement=Placement.from_json(text))
        except (httpx.HTTPError, OSError):
            return None  # unreachable, or not started yet
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None  # something else answers at this address
        return status

    async def _get(self, node: Node, path: str, headers: Mapping[str, str]) -> str:
        client = await self._client_of(node)
        extensions = _extensions(node)
        async with client.stream(
            "GET", node.url + path, headers=dict(headers), extensions=extensions
        ) as answer:
            answer.raise_for_status()
            return (await _body(answer, _ANSWER_BYTES_MAX)).decode()

    async def _client_of(self, node: Node) -> httpx.AsyncClient:
        """Return the client that verifies this node by its view's CA, and by the name in the certificate."""
        if not node.is_tls:
            return self._http
        if not node.ca:
            raise httpx.ConnectError("the Secret with the nodes' CA is missing")
        ca, client = self._verified.pop(node.tls_name, (b"", None))
        stale = None
        if client is None or ca != node.ca:
            stale, client = client, _client(verify=client_context(node.ca))
        self._verified[node.tls_name] = node.ca, client
        if len(self._verified) > _VERIFIED_MAX:
            _, stale = self._verified.pop(next(iter(self._verified)))
        if stale is not None:
            await stale.aclose()
        return client

    async def _put(self, node: Node, token: str, path: str, body: str) -> None:
        headers = {NODE_HEADER: token, "content-type": "application/json"}
        try:
            client = await self._client_of(node)
            sent = client.stream(
                "PUT", node.url + path, content=body, headers=headers, extensions=_extensions(node)
            )
            async with self._turn, asyncio.timeout(_ANSWER_SECONDS), sent as answer:
                body_text = await _body(answer, _REFUSAL_BYTES_MAX)
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise NodeRefused(f"it does not answer: {error!r}") from error
        if not answer.is_success:
            raise NodeRefused(f"it answers {answer.status_code}: {body_text.decode(errors='replace')[:300]}")


def _client(*, verify: ssl.SSLContext | bool) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        verify=verify,
        timeout=_ANSWER_SECONDS,
        trust_env=False,
        headers={"accept-encoding": "identity"},
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=_AT_ONCE_MAX),
    )


def _extensions(node: Node) -> dict[str, Any]:
    return {"sni_hostname": node.tls_name} if node.is_tls else {}


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
