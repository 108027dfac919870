"""Serve the parts of reads over several nodes: cover, rows, keys and count. Only this node's replicas answer.

`serve/reads/peer_reads.py` sends these requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.aggregates.window_keys import START_MAX_MS, START_MIN_MS
from queryable_app.errors import invalid, shown
from queryable_app.platform.clock import monotonic_ms
from queryable_app.policy.freshness import DEADLINE_MS_MAX, next_offset
from queryable_app.serve.api.internal import internal_body, refuse_malformed_body
from queryable_app.serve.api.request import to_response
from queryable_app.serve.base.peer_frames import RawRow, encode_rows, read_options_from_json
from queryable_app.serve.base.step_budget import ITEM_BYTES, StepBudget
from queryable_app.serve.node import Node
from queryable_app.serve.peers.peers import DEADLINE_HEADER
from queryable_app.serve.reads.coverage import readable_local_replicas, within_deadline
from queryable_app.serve.reads.multi_get import VALUE_BYTES_MAX, rows_of_keys, values_too_large
from queryable_app.serve.reads.peer_reads import COUNT, COVER, KEYS, ROWS, ROWS_MAX, refusal_to_json
from queryable_app.serve.reads.point import Reads, not_hosted_here
from queryable_app.serve.reads.replica_progress import progress_of, progress_to_json
from queryable_app.serve.reads.scans import Bounds, count_local, local_rows
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
    text,
    whole,
)
from queryable_app.wire.http_text import BYTES, body_answer

_BYTES_MAX: Final = 1 << 20
_KEYS_AT_ONCE: Final = 64


def routes(node: Node, reads: Reads) -> APIRouter:
    peer_reads = _PeerReads(node, reads)
    router = APIRouter(include_in_schema=False)
    router.add_api_route(COVER, peer_reads.cover, methods=["POST"])
    router.add_api_route(ROWS, peer_reads.rows, methods=["POST"])
    router.add_api_route(KEYS, peer_reads.keys, methods=["POST"])
    router.add_api_route(COUNT, peer_reads.count, methods=["POST"])
    return router


class _PeerReads:
    def __init__(self, node: Node, reads: Reads) -> None:
        self._node = node
        self._reads = reads

    async def cover(self, request: Request) -> Response:
        """Answer the progress of replicas here, after they have caught up as far as the read requires."""
        body = await internal_body(request, self._node)
        with refuse_malformed_body():
            options = field(body, "asked", read_options_from_json)
            partitions = field(body, "partitions", list_of(whole(0, self._reads.replicas.partitions - 1)))
        deadline = asyncio.get_running_loop().time() + options.deadline_ms / 1000
        replicas, refusals = await readable_local_replicas(
            self._reads, partitions, options, deadline, last=True
        )
        now_ms = monotonic_ms()
        return _frames(
            {
                "standings": [
                    progress_to_json(progress_of(replica, now_ms)) for replica in replicas.values()
                ],
                "refused": [refusal_to_json(partition, refusal) for partition, refusal in refusals.items()],
                "contradicted": sorted(self._node.replicas.partitioner.mismatched),
            }
        )

    async def rows(self, request: Request) -> Response:
        """Answer the next rows, with all rows of the last key."""
        body = await internal_body(request, self._node)
        with refuse_malformed_body():
            positions = field(body, "positions", by_partition(offset))
            start, stop = (field(body, name, optional(base64_bytes)) for name in ("start", "stop"))
            starts = field(body, "starts", _starts) if "starts" in body else None
            bounds = Bounds(start, stop, field(body, "reverse", flag), starts)
            # A node of an earlier version sets no limit.
            rows_max = field(body, "rowsMax", whole(1, ROWS_MAX)) if "rowsMax" in body else ROWS_MAX
        replicas = self._replicas_at(positions)
        taken: list[RawRow] = []
        size = 0
        async with (
            within_deadline(_deadline(request)),
            aclosing(
                local_rows(replicas, bounds, self._node.read_admission.yield_slot, rows_max + 1)
            ) as batches,
        ):
            async for batch in batches:
                for row in batch:
                    full = len(taken) >= rows_max or size > _BYTES_MAX
                    if full and row[0] != taken[-1][0]:
                        return _frames({"last": False}, taken)
                    taken.append(row)
                    size += len(row[2])
        return _frames({"last": True}, taken)

    async def keys(self, request: Request) -> Response:
        """Answer the rows of keys, until they are larger than the caller takes at once."""
        body = await internal_body(request, self._node)
        with refuse_malformed_body():
            wanted = await decoded_keys(field(body, "keys", by_partition(list_of(text))))
            positions = field(body, "positions", by_partition(offset))
            if not wanted.keys() <= positions.keys():
                raise Malformed("positions: not of all partitions of the keys")
            # A node of an earlier version asks for all of them at once.
            bytes_max = (
                field(body, "bytesMax", whole(1, VALUE_BYTES_MAX)) if "bytesMax" in body else VALUE_BYTES_MAX
            )
        replicas = {
            replica.partition: replica for replica in self._replicas_at({p: positions[p] for p in wanted})
        }
        found: list[RawRow] = []
        answered = weight = 0
        async with (
            within_deadline(_deadline(request)),
            aclosing(rows_of_keys(replicas, wanted, self._node.read_admission.yield_slot)) as batches,
        ):
            async for looked_up, batch in batches:
                answered += looked_up
                found += batch
                weight += sum([len(stored) for _, _, stored in batch])
                if weight > bytes_max:
                    if "bytesMax" not in body:
                        raise values_too_large()
                    break
        return _frames({"answered": answered}, found)

    async def count(self, request: Request) -> Response:
        """Answer how many rows the replicas have."""
        body = await internal_body(request, self._node)
        with refuse_malformed_body():
            positions = field(body, "positions", by_partition(offset))
            approximate = field(body, "approximate", flag)
        replicas = self._replicas_at(positions)
        async with within_deadline(_deadline(request)):
            counted = await count_local(replicas, approximate, self._node.read_admission.yield_slot)
        return _frames({"count": counted})

    def _replicas_at(self, positions: Mapping[int, int]) -> list[Replica]:
        """Return the replicas that answered `cover` with these positions, but none that has replaced one since and is behind."""
        replicas = []
        for partition, position in positions.items():
            replica = self._node.replicas.assigned_or_removing(partition)  # a scan may end on a removed one
            if replica is None or next_offset(replica) < position:
                raise not_hosted_here(partition)
            replicas.append(replica)
        return replicas


async def decoded_keys(encoded: Mapping[int, Sequence[str]]) -> dict[int, list[bytes]]:
    """Decode the keys of each partition. Raises Malformed."""
    steps = StepBudget()
    wanted: dict[int, list[bytes]] = {}
    for partition, texts in encoded.items():
        decoded = wanted[partition] = []
        for start in range(0, len(texts), _KEYS_AT_ONCE):
            portion = texts[start : start + _KEYS_AT_ONCE]
            decoded += field({"keys": portion}, "keys", list_of(base64_bytes))
            await steps.spend(len(portion) * ITEM_BYTES + sum(map(len, portion)))
    return wanted


def _starts(value: object) -> tuple[int, int]:
    """Return the first start of the windows that are wanted, and the first that is not."""
    first, after = list_of(whole(START_MIN_MS, START_MAX_MS + 1))(value)
    return first, after


def _deadline(request: Request) -> float:
    """Return until when the calling node waits, in loop time. The work for the request ends then."""
    given = request.headers.get(DEADLINE_HEADER, str(DEADLINE_MS_MAX))
    if not (given.isascii() and given.isdigit() and len(given) <= 10):
        raise invalid(DEADLINE_HEADER, f"{shown(given)} is not a whole number", "send milliseconds")
    return asyncio.get_running_loop().time() + min(int(given), DEADLINE_MS_MAX) / 1000


def _frames(head: dict[str, Any], rows: list[RawRow] | None = None) -> Response:
    return to_response(body_answer(encode_rows(head, rows or ()), BYTES))
