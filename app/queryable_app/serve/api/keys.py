"""Serve `GET /v1/keys/{key}`: the newest value of one key."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.errors import REASONS_TO_TRY_ELSEWHERE, Failure
from queryable_app.serve.api.forwarding import forward, is_forwarded, redirect
from queryable_app.serve.api.openapi import POINT_OPTIONS, VALUE, openapi_parameters
from queryable_app.serve.api.request import (
    accept_header,
    answer_reservation,
    key_in_path,
    list_header,
    parse_parameters,
    read_options,
    to_response,
)
from queryable_app.serve.node import Node
from queryable_app.serve.reads.covered_reads import read_key_across_partitions
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.http_text import BYTES, JSON, negotiate

_PARAMETERS: Final = (*POINT_OPTIONS, "key-encoding")


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(tags=["reads"])

    @router.get("/v1/keys/{key}", openapi_extra=openapi_parameters(*_PARAMETERS, path="key"), responses=VALUE)
    async def read_key(request: Request) -> Response:
        """Return the newest value of a key. Every byte string is a key, percent-encoded, the empty one too."""
        values = parse_parameters(request, POINT_OPTIONS, "key-encoding")
        form = negotiate(accept_header(request), (JSON, BYTES))
        record_key = key_in_path(request, values, node.codec)
        options, deadline = read_options(request, values, reads)
        if_none_match = list_header(request, "if-none-match")
        local = options.route == "local" or is_forwarded(request, node)
        try:
            needed = await reads.wait_until_fresh_for_key(record_key, options, deadline, last=local)
            return to_response(reads.point(record_key, options, needed, form, if_none_match))
        except Failure as refusal:
            if local or refusal.reason not in REASONS_TO_TRY_ELSEWHERE:
                raise
            partition, *others = reads.partitions_of(record_key, options)
            if others:
                reservation = answer_reservation(request)
                answer = await read_key_across_partitions(
                    reads, record_key, options, deadline, form, if_none_match, reservation
                )
            elif options.route == "redirect":
                answer = redirect(request, reads, partition, options, refusal)
            else:
                answer = await forward(request, values, reads, partition, options, refusal, deadline)
            return to_response(answer)

    return router
