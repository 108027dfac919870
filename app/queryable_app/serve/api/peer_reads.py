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
from queryable_app.errors import Failure, invalid, shown
from queryable_app.platform.clock import monotonic_ms
from queryable_app.policy.freshness import DEADLINE_MS_MAX, next_offset
from queryable_app.policy.routing import not_hosted_here
from queryable_app.serve.api.internal import internal_body, refuse_malformed_body
from queryable_app.serve.api.request import to_response
from queryable_app.serve.base.combining import added_counts
from queryable_app.serve.base.look_budget import LookBudget
from queryable_app.serve.base.peer_frames import RawRow, encode_rows, read_options_from_json
from queryable_app.serve.base.step_budget import ITEM_BYTES, StepBudget
from queryable_app.serve.node import Node
from queryable_app.serve.peers.peers import DEADLINE_HEADER
from queryable_app.serve.reads.change_sources import local_changes
from queryable_app.serve.reads.chosen_replica import ChosenReplica, started_over
from queryable_app.serve.reads.coverage import readable_local_replicas, within_deadline
from queryable_app.serve.reads.covered_reads import count_here
from queryable_app.serve.reads.multi_get import VALUE_BYTES_MAX, rows_of_keys, values_too_large
from queryable_app.serve.reads.past_rows import version_range_from_json
from queryable_app.serve.reads.peer_reads import (
    CHANGES,
    COUNT,
    COVER,
    KEYS,
    LOOK_BYTES_MAX,
    LOOKS_MAX,
    ROWS,
    ROWS_MAX,
    Chosen,
    Positions,
    marks_from_json,
    marks_to_json,
    refusal_to_json,
)
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.replica_progress import progress_of, progress_to_json
from queryable_app.serve.reads.row_filter import LOOKED_AT, row_filter
from queryable_app.serve.reads.scans import BATCH_ROWS, Bounds, IndexPart, local_rows, one_row_of_each_key
from queryable_app.wire.as_of import as_of_from_json
from queryable_app.wire.checked import (
    OFFSET_MAX,
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
from queryable_app.wire.where import Where, parse_where

_BYTES_MAX: Final = 1 << 20
_KEYS_AT_ONCE: Final = 64


def routes(node: Node, reads: Reads) -> APIRouter:
    peer_reads = _PeerReads(node, reads)
    router = APIRouter(include_in_schema=False)
    router.add_api_route(COVER, peer_reads.cover, methods=["POST"])
    router.add_api_route(ROWS, peer_reads.rows, methods=["POST"])
    router.add_api_route(KEYS, peer_reads.keys, methods=["POST"])
    router.add_api_route(COUNT, peer_reads.count, methods=["POST"])
    router.add_api_route(CHANGES, peer_reads.changes, methods=["POST"])
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
            chosen = _chosen(body)
            start, stop = (field(body, name, optional(base64_bytes)) for name in ("start", "stop"))
            starts = field(body, "starts", _starts) if "starts" in body else None
            index = field(body, "index", self._index_part) if "index" in body else None
            as_of = field(body, "asOf", as_of_from_json) if "asOf" in body else None
            past = field(body, "versions", version_range_from_json) if "versions" in body else None
            if (as_of or past) and self._node.replicas.history is None:
                raise Malformed("this view has no history")
            bounds = Bounds(start, stop, field(body, "reverse", flag), starts, index, as_of, past)
            # A node of an earlier version sets no limit.
            rows_max = field(body, "rowsMax", whole(1, ROWS_MAX)) if "rowsMax" in body else ROWS_MAX
            where = field(body, "where", _where) if "where" in body else None
            looks_max = LOOKS_MAX if where is None else field(body, "looksMax", whole(1, LOOKS_MAX))
        replicas = self._replicas_at(chosen)
        row_matches, looks = row_filter(self._node, where), LookBudget(looks_max, LOOK_BYTES_MAX)
        wanted = rows_max + 1 if row_matches is None else BATCH_ROWS
        found = local_rows(replicas, bounds, self._node.read_admission.yield_slot, wanted)
        if row_matches is not None:
            found = row_matches.matching(found, looks)
        if bounds.index == "values":
            found = one_row_of_each_key(found, added_counts)
        taken: list[RawRow] = []
        size = 0
        last = True
        async with within_deadline(_deadline(request)), aclosing(found) as batches:
            async for batch in batches:
                if taken and taken[-1][2] is LOOKED_AT:
                    taken.pop()  # the rows behind it show how far the rows were looked at
                for row in batch:
                    full = len(taken) >= rows_max or size > _BYTES_MAX
                    if full and row[0] != taken[-1][0]:
                        last = False
                        break
                    taken.append(row)
                    size += len(row[2])
                if row_matches is not None and looks.is_spent:
                    last = False
                if not last:
                    break
        looked = {} if row_matches is None else {"looked": [looks.rows, looks.bytes]}
        return _frames({"last": last, **looked}, taken)

    def _index_part(self, value: object) -> IndexPart:
        if self._node.replicas.indexes is None:
            raise Malformed("this view has no indexes")
        if value == "rows":
            return "rows"
        if value == "values":
            return "values"
        raise Malformed(f"{shown(value)} is no part of an index")

    async def keys(self, request: Request) -> Response:
        """Answer the rows of keys, until they are larger than the caller takes at once."""
        body = await internal_body(request, self._node)
        with refuse_malformed_body():
            wanted = await decoded_keys(field(body, "keys", by_partition(list_of(text))))
            chosen = _chosen(body)
            if not wanted.keys() <= chosen.keys():
                raise Malformed("positions: not of all partitions of the keys")
            # A node of an earlier version asks for all of them at once.
            bytes_max = (
                field(body, "bytesMax", whole(1, VALUE_BYTES_MAX)) if "bytesMax" in body else VALUE_BYTES_MAX
            )
        replicas = {
            replica.partition: replica for replica in self._replicas_at({p: chosen[p] for p in wanted})
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
            chosen = _chosen(body)
            approximate = field(body, "approximate", flag)
            where = field(body, "where", _where) if "where" in body else None
        replicas = self._replicas_at(chosen)
        async with within_deadline(_deadline(request)):
            counted = await count_here(self._reads, replicas, approximate, where)
        return _frames({"count": counted} if where is None else {"count": counted, "where": where.text})

    async def changes(self, request: Request) -> Response:
        """Answer the next changes of replicas here, once there are some or the calling node has waited for long enough."""
        body = await internal_body(request, self._node)
        with refuse_malformed_body():
            marks = field(body, "marks", marks_from_json)
            wait_ms = field(body, "waitMs", whole(0, DEADLINE_MS_MAX))
        portions = await local_changes(self._reads, marks, wait_ms / 1000)
        following = {partition: portion.mark for partition, portion in portions.items()}
        rows = [row for portion in portions.values() for row in portion.rows]
        compacted = {p: until for p, (_, _, until) in portions.items() if until >= 0}
        return _frames({"marks": marks_to_json(following), "compacted": compacted}, rows)

    def _replicas_at(self, positions: Positions) -> list[ChosenReplica]:
        """Return the replicas that answered `cover` with these positions, but none that was emptied or replaced since and is
        behind."""
        replicas = []
        for partition, chosen in positions.items():
            replica = self._node.replicas.assigned_or_removing(partition)  # a scan may end on a removed one
            if replica is None:
                raise not_hosted_here(partition)
            # The position alone does not tell: one that was emptied may have passed it with records that replace others.
            if next_offset(replica) < chosen.position or (chosen.complete and not replica.keeps_all_rows):
                raise started_over(replica)
            replicas.append(ChosenReplica.of(replica))
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


def _chosen(body: Mapping[str, object]) -> dict[int, Chosen]:
    """Return the replicas that a request names. Raises Malformed."""
    positions = field(body, "positions", by_partition(offset))
    # A node of an earlier version does not say which were complete.
    complete = {*field(body, "complete", list_of(whole(0, OFFSET_MAX)))} if "complete" in body else ()
    return {partition: Chosen(at, partition in complete) for partition, at in positions.items()}


def _starts(value: object) -> tuple[int, int]:
    """Return the first start of the windows that are wanted, and the first that is not."""
    first, after = list_of(whole(START_MIN_MS, START_MAX_MS + 1))(value)
    return first, after


def _where(value: object) -> Where:
    """Parse the conditions of a read, which the node that sends them has parsed before."""
    try:
        return parse_where(text(value).encode())
    except Failure as failure:
        raise Malformed(failure.detail) from None


def _deadline(request: Request) -> float:
    """Return until when the calling node waits, in loop time. The work for the request ends then."""
    given = request.headers.get(DEADLINE_HEADER, str(DEADLINE_MS_MAX))
    if not (given.isascii() and given.isdigit() and len(given) <= 10):
        raise invalid(DEADLINE_HEADER, f"{shown(given)} is not a whole number", "send milliseconds")
    return asyncio.get_running_loop().time() + min(int(given), DEADLINE_MS_MAX) / 1000


def _frames(head: dict[str, Any], rows: list[RawRow] | None = None) -> Response:
    return to_response(body_answer(encode_rows(head, rows or ()), BYTES))
