"""`/internal/v1`: what nodes ask of one another. A client's token is not accepted here, and a node's copies alone answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.config.topic_spec import READ_FIELDS, SpecError, parse_read
from queryable_app.contract import NODE_HEADER, PLACEMENT_PATH, READ_PATH
from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.placement.assignment import Placement
from queryable_app.platform.clock import monotonic_ms
from queryable_app.policy.freshness import DEADLINE_MS_MAX, next_offset
from queryable_app.serve.api.request import json_body, to_response
from queryable_app.serve.api.status import read_settings_json
from queryable_app.serve.base.peer_frames import RawRow, asked_from_json, encode_rows
from queryable_app.serve.node import Node
from queryable_app.serve.peers.peers import DEADLINE_HEADER, HEARTBEAT
from queryable_app.serve.reads.coverage import readable_local_replicas, within_deadline
from queryable_app.serve.reads.multi_get import VALUE_BYTES_MAX, rows_of_keys, values_too_large
from queryable_app.serve.reads.peer_reads import COUNT, COVER, KEYS, ROWS, refusal_to_json
from queryable_app.serve.reads.point import Reads, not_hosted_here, progress_of
from queryable_app.serve.reads.scans import Bounds, count_local, local_rows
from queryable_app.serve.replication.assigned_replicas import PlacementRefused
from queryable_app.serve.store.replica import Replica
from queryable_app.wire.checked import (
    Malformed,
    base64_bytes,
    by_partition,
    field,
    flag,
    list_of,
    offset,
    optional,
    whole,
)
from queryable_app.wire.http_text import BYTES, JSON, body_answer, json_answer

_ROWS_MAX: Final = 2048  # of one answer, and the rest of its last key
_BYTES_MAX: Final = 1 << 20


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    async def body_of(request: Request) -> Any:
        require_node_token(request, node)
        return await json_body(request)

    def held(positions: Mapping[int, int]) -> list[Replica]:
        """The copies of which these positions were said. Not what has taken their place meanwhile and is behind them."""
        replicas = []
        for partition, position in positions.items():
            replica = node.replicas.assigned_or_removing(partition)  # a scan that has begun here ends here
            if replica is None or next_offset(replica) < position:
                raise not_hosted_here(partition)
            replicas.append(replica)
        return replicas

    @router.get(PLACEMENT_PATH)
    async def placement(request: Request) -> Response:
        require_node_token(request, node)
        return to_response(body_answer(node.placement.to_json().encode(), JSON))

    @router.put(PLACEMENT_PATH)
    async def follow(request: Request) -> Response:
        """Answers the epoch that the node follows now; a lower or equal one changes nothing."""
        body = await body_of(request)
        with malformed_body_refused():
            newer = Placement.from_raw(body)
        try:
            return to_response(json_answer({"epoch": node.assigned_replicas.follow(newer)}))
        except PlacementRefused as error:
            raise invalid("body", f"is no placement for this node: {error}", "ask who sent it") from None

    @router.put(READ_PATH)
    async def apply_read_settings(request: Request) -> Response:
        """From the next request on. Answers what the node follows now."""
        body = await body_of(request)
        with malformed_body_refused():
            for name in READ_FIELDS:  # one that is left out would be turned off
                field(body, name, lambda value: value)
        try:
            node.apply_read_settings(parse_read(body))
        except SpecError as error:
            raise invalid("body", str(error), "send spec.read of the resource") from None
        return to_response(json_answer(read_settings_json(node)))

    @router.get(HEARTBEAT)
    async def heartbeat(request: Request) -> Response:
        """In the fast lane, unless it is asked with other header lines than nodes send."""
        require_node_token(request, node)
        return to_response(body_answer(node.peers.heartbeat_body(), JSON))

    @router.post(COVER)
    async def cover(request: Request) -> Response:
        """How copies here stand, once they have caught up as far as was asked for."""
        body = await body_of(request)
        with malformed_body_refused():
            asked = field(body, "asked", asked_from_json)
            partitions = field(body, "partitions", list_of(whole(0, reads.replicas.partitions - 1)))
        deadline = asyncio.get_running_loop().time() + asked.deadline_ms / 1000
        replicas, refusals = await readable_local_replicas(reads, partitions, asked, deadline, last=True)
        now_ms = monotonic_ms()
        return _rows(
            {
                "standings": [progress_of(replica, now_ms) for replica in replicas.values()],
                "refused": [refusal_to_json(partition, refusal) for partition, refusal in refusals.items()],
                "contradicted": sorted(node.replicas.partitioner.mismatched),
            }
        )

    @router.post(ROWS)
    async def rows(request: Request) -> Response:
        """The next rows, with all rows of the last key."""
        body = await body_of(request)
        with malformed_body_refused():
            positions = field(body, "positions", by_partition(offset))
            start, stop = (field(body, name, optional(base64_bytes)) for name in ("start", "stop"))
            bounds = Bounds(start, stop, field(body, "reverse", flag))
        replicas = held(positions)
        taken: list[RawRow] = []
        size = 0
        async with (
            within_deadline(_deadline(request)),
            aclosing(local_rows(replicas, bounds, node.read_admission.yield_slot)) as batches,
        ):
            async for batch in batches:
                for row in batch:
                    full = len(taken) >= _ROWS_MAX or size > _BYTES_MAX
                    if full and row[0] != taken[-1][0]:
                        return _rows({"last": False}, taken)
                    taken.append(row)
                    size += len(row[2])
        return _rows({"last": True}, taken)

    @router.post(KEYS)
    async def keys(request: Request) -> Response:
        body = await body_of(request)
        with malformed_body_refused():
            wanted = field(body, "keys", by_partition(list_of(base64_bytes)))
            positions = field(body, "positions", by_partition(offset))
            if not wanted.keys() <= positions.keys():
                raise Malformed("positions: not of all partitions of the keys")
            # A node of an earlier version asks for all of them at once.
            bytes_max = (
                field(body, "bytesMax", whole(1, VALUE_BYTES_MAX)) if "bytesMax" in body else VALUE_BYTES_MAX
            )
        replicas = {replica.partition: replica for replica in held({p: positions[p] for p in wanted})}
        found: list[RawRow] = []
        answered = weight = 0
        async with (
            within_deadline(_deadline(request)),
            aclosing(rows_of_keys(replicas, wanted, node.read_admission.yield_slot)) as batches,
        ):
            async for looked_up, batch in batches:
                answered += looked_up
                found += batch
                weight += sum([len(stored) for _, _, stored in batch])
                if weight > bytes_max:
                    if "bytesMax" not in body:
                        raise values_too_large()
                    break
        return _rows({"answered": answered}, found)

    @router.post(COUNT)
    async def count(request: Request) -> Response:
        body = await body_of(request)
        with malformed_body_refused():
            positions = field(body, "positions", by_partition(offset))
            approximate = field(body, "approximate", flag)
        replicas = held(positions)
        async with within_deadline(_deadline(request)):
            return _rows({"count": await count_local(replicas, approximate, node.read_admission.yield_slot)})

    return router


def require_node_token(request: Request, node: Node) -> None:
    given = request.headers.get(NODE_HEADER)
    if given is None:
        raise Failure(
            Reason.UNAUTHENTICATED,
            "this path is for the nodes of the view",
            "ask the paths under /v1, which answer for all nodes",
        )
    if not node.peers.accepts_token(given):
        raise Failure(
            Reason.FORBIDDEN,
            "the token is not the one of this view's nodes",
            "give every node of the view the same token",
        )


def _deadline(request: Request) -> float:
    """Until when the node that asks waits, in loop time. What nobody waits for any more is not worked on."""
    given = request.headers.get(DEADLINE_HEADER, str(DEADLINE_MS_MAX))
    if not (given.isascii() and given.isdigit() and len(given) <= 10):
        raise invalid(DEADLINE_HEADER, f"{shown(given)} is not a whole number", "send milliseconds")
    return asyncio.get_running_loop().time() + min(int(given), DEADLINE_MS_MAX) / 1000


def _rows(head: dict[str, Any], rows: list[RawRow] | None = None) -> Response:
    return to_response(body_answer(encode_rows(head, rows or ()), BYTES))


@contextmanager
def malformed_body_refused() -> Iterator[None]:
    try:
        yield
    except Malformed as error:
        raise invalid("body", str(error), "send what a node of this release sends") from None
