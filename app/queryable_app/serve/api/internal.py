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
from queryable_app.platform.clock import moment_ms
from queryable_app.policy.freshness import DEADLINE_MS_MAX, next_offset
from queryable_app.serve.api.request import json_body, respond
from queryable_app.serve.api.status import read_of
from queryable_app.serve.base.peer_frames import RawRow, asked_from_json, encode_rows
from queryable_app.serve.node import Node
from queryable_app.serve.peers.peers import DEADLINE_HEADER, HEARTBEAT
from queryable_app.serve.reads.coverage import copies_here, until
from queryable_app.serve.reads.multi_get import VALUE_BYTES_MAX, rows_of_keys, too_large
from queryable_app.serve.reads.peer_reads import COUNT, COVER, KEYS, ROWS, refused_to_json
from queryable_app.serve.reads.point import Reads, not_here, standing_of
from queryable_app.serve.reads.scans import Bounds, count_here, rows_here
from queryable_app.serve.replication.assigned_replicas import PlacementRefused
from queryable_app.serve.store.replicas import Copy
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
        require_token(request, node)
        return await json_body(request)

    def held(positions: Mapping[int, int]) -> list[Copy]:
        """The copies of which these positions were said. Not what has taken their place meanwhile and is behind them."""
        copies = []
        for partition, position in positions.items():
            copy = node.copies.held(partition)  # a scan that has begun here ends here
            if copy is None or next_offset(copy) < position:
                raise not_here(partition)
            copies.append(copy)
        return copies

    @router.get(PLACEMENT_PATH)
    async def placement(request: Request) -> Response:
        require_token(request, node)
        return respond(body_answer(node.placement.to_json().encode(), JSON))

    @router.put(PLACEMENT_PATH)
    async def follow(request: Request) -> Response:
        """Answers the epoch that the node follows now; a lower or equal one changes nothing."""
        body = await body_of(request)
        with well_formed():
            newer = Placement.from_raw(body)
        try:
            return respond(json_answer({"epoch": node.holdings.follow(newer)}))
        except PlacementRefused as error:
            raise invalid("body", f"is no placement for this node: {error}", "ask who sent it") from None

    @router.put(READ_PATH)
    async def follow_read(request: Request) -> Response:
        """From the next request on. Answers what the node follows now."""
        body = await body_of(request)
        with well_formed():
            for name in READ_FIELDS:  # one that is left out would be turned off
                field(body, name, lambda value: value)
        try:
            node.follow_read(parse_read(body))
        except SpecError as error:
            raise invalid("body", str(error), "send spec.read of the resource") from None
        return respond(json_answer(read_of(node)))

    @router.get(HEARTBEAT)
    async def heartbeat(request: Request) -> Response:
        """In the fast lane, unless it is asked with other header lines than nodes send."""
        require_token(request, node)
        return respond(body_answer(node.peers.said(), JSON))

    @router.post(COVER)
    async def cover(request: Request) -> Response:
        """How copies here stand, once they have caught up as far as was asked for."""
        body = await body_of(request)
        with well_formed():
            asked = field(body, "asked", asked_from_json)
            partitions = field(body, "partitions", list_of(whole(0, reads.copies.partitions - 1)))
        deadline = asyncio.get_running_loop().time() + asked.deadline_ms / 1000
        copies, refusals = await copies_here(reads, partitions, asked, deadline, last=True)
        now_ms = moment_ms()
        return _rows(
            {
                "standings": [standing_of(copy, now_ms) for copy in copies.values()],
                "refused": [refused_to_json(partition, refusal) for partition, refusal in refusals.items()],
                "contradicted": sorted(node.copies.contradicted),
            }
        )

    @router.post(ROWS)
    async def rows(request: Request) -> Response:
        """The next rows, with all rows of the last key."""
        body = await body_of(request)
        with well_formed():
            positions = field(body, "positions", by_partition(offset))
            start, stop = (field(body, name, optional(base64_bytes)) for name in ("start", "stop"))
            bounds = Bounds(start, stop, field(body, "reverse", flag))
        copies = held(positions)
        taken: list[RawRow] = []
        size = 0
        async with (
            until(_deadline(request)),
            aclosing(rows_here(copies, bounds, node.turns.pause)) as batches,
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
        with well_formed():
            wanted = field(body, "keys", by_partition(list_of(base64_bytes)))
            positions = field(body, "positions", by_partition(offset))
            if not wanted.keys() <= positions.keys():
                raise Malformed("positions: not of all partitions of the keys")
            # A node of an earlier version asks for all of them at once.
            bytes_max = (
                field(body, "bytesMax", whole(1, VALUE_BYTES_MAX)) if "bytesMax" in body else VALUE_BYTES_MAX
            )
        copies = {copy.partition: copy for copy in held({p: positions[p] for p in wanted})}
        found: list[RawRow] = []
        answered = weight = 0
        async with (
            until(_deadline(request)),
            aclosing(rows_of_keys(copies, wanted, node.turns.pause)) as batches,
        ):
            async for looked_up, batch in batches:
                answered += looked_up
                found += batch
                weight += sum([len(stored) for _, _, stored in batch])
                if weight > bytes_max:
                    if "bytesMax" not in body:
                        raise too_large()
                    break
        return _rows({"answered": answered}, found)

    @router.post(COUNT)
    async def count(request: Request) -> Response:
        body = await body_of(request)
        with well_formed():
            positions = field(body, "positions", by_partition(offset))
            approximate = field(body, "approximate", flag)
        copies = held(positions)
        async with until(_deadline(request)):
            return _rows({"count": await count_here(copies, approximate, node.turns.pause)})

    return router


def require_token(request: Request, node: Node) -> None:
    given = request.headers.get(NODE_HEADER)
    if given is None:
        raise Failure(
            Reason.UNAUTHENTICATED,
            "this path is for the nodes of the view",
            "ask the paths under /v1, which answer for all nodes",
        )
    if not node.peers.knows(given):
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
    return respond(body_answer(encode_rows(head, rows or ()), BYTES))


@contextmanager
def well_formed() -> Iterator[None]:
    try:
        yield
    except Malformed as error:
        raise invalid("body", str(error), "send what a node of this release sends") from None
