"""Serve `GET /v1/filter`: a filter of all keys, with which a client knows of most absent keys without a request.

Strategy: the keys are read in order, as for a scan, and sent as segments of some thousand keys, so memory does not grow with the
number of keys. A filter must not lack a key: a replica that is still being built has no part in it. That of a caller with key
prefixes has the keys with these prefixes, and names them, since it knows nothing of other keys.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from time import time_ns
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.serve.api.access import key_access
from queryable_app.serve.api.openapi import FILTER, POINT_OPTIONS, openapi_parameters
from queryable_app.serve.api.request import accept_header, multi_read_options, parse_parameters
from queryable_app.serve.api.responses import RowStream
from queryable_app.serve.node import Node
from queryable_app.serve.reads.coverage import Coverage, coverage
from queryable_app.serve.reads.covered_reads import covered_rows
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.prefixed_index import in_turn
from queryable_app.serve.reads.replica_progress import positions_of
from queryable_app.serve.reads.scans import Batches, Bounds, live_rows
from queryable_app.wire.http_text import BYTES, negotiate, single, whole_number
from queryable_app.wire.key_filter import (
    RATE,
    RATE_MAX,
    RATE_MIN,
    SEGMENT_KEYS,
    encode_head,
    encode_segment,
)

_PARAMETERS: Final = ("rate", "partition")


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(tags=["reads"])

    @router.get(
        "/v1/filter", openapi_extra=openapi_parameters(*POINT_OPTIONS, *_PARAMETERS), responses=FILTER
    )
    async def key_filter(request: Request) -> Response:
        """Return a filter of the keys of all partitions, or of one: docs/queries.md describes its form."""
        values = parse_parameters(request, POINT_OPTIONS, *_PARAMETERS)
        access = key_access(request)
        access.applied = True
        negotiate(accept_header(request), (BYTES,))
        rate = _rate(single(values, "rate"))
        partition = whole_number(values, "partition", 0, reads.replicas.partitions - 1)
        partitions = range(reads.replicas.partitions) if partition is None else (partition,)
        options, deadline = multi_read_options(request, values, reads)
        node.read_admission.require_slot_for_long_read()
        covered = await coverage(reads, partitions, options, deadline, None)
        _require_whole(reads, covered, partitions)
        rows = in_turn(
            covered_rows(reads, covered, Bounds.of_prefix(prefix), deadline, None, None)
            for prefix in access.prefixes
        )
        about: dict[str, Any] = {
            "positions": positions_of(covered.progress),
            "keyFormat": node.codec.format,
            "applicationId": node.settings.application_id,
        }
        if access.limited:
            about["prefixes"] = [b64encode(prefix).decode() for prefix in access.prefixes]
        return RowStream(_segments(rows, rate, encode_head(rate, about)), covered.headers, BYTES)

    return router


def _rate(text: str | None) -> float:
    try:
        rate = RATE if text is None else float(text)
    except ValueError:
        rate = 0.0
    if not RATE_MIN <= rate <= RATE_MAX:
        raise invalid(
            "rate",
            f"{shown(text)} is not allowed",
            f"give the rate of false positives, {RATE_MIN} to {RATE_MAX}",
        )
    return rate


def _require_whole(reads: Reads, covered: Coverage, partitions: Collection[int]) -> None:
    """Raise Failure if a key may be missing."""
    missing = covered.missing
    if len(partitions) > 1:
        missing = (*missing, *reads.replicas.unplaced_partitions)
    if missing:
        raise Failure(
            Reason.NOT_AVAILABLE,
            "a filter would lack the keys of partitions that cannot be read whole",
            "retry when their replicas are complete",
            retry_after_ms=1000,
            missing=tuple(sorted(missing)),
        )


async def _segments(rows: Batches, rate: float, head: bytes) -> AsyncGenerator[bytes, None]:
    yield head
    keys: list[bytes] = []
    async with aclosing(rows) as batches:
        async for batch in batches:
            keys += [key for key, _, _ in live_rows(batch, time_ns() // 1_000_000)]
            if len(keys) >= SEGMENT_KEYS:
                yield encode_segment(keys, rate)
                keys = []
            else:
                yield b""
    if keys:
        yield encode_segment(keys, rate)
    yield encode_segment((), rate)
