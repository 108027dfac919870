"""Serve `GET /v1/keys/{key}`: the newest value of one key."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.errors import REASONS_TO_TRY_ELSEWHERE, Failure, invalid
from queryable_app.serve.api.forwarding import forward, is_forwarded, redirect
from queryable_app.serve.api.history import read_as_of
from queryable_app.serve.api.moments import failure_of_history
from queryable_app.serve.api.openapi import POINT_OPTIONS, VALUE, openapi_parameters
from queryable_app.serve.api.request import (
    Parameters,
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
from queryable_app.serve.reads.row_selection import parse_fields, with_fields, without_value
from queryable_app.wire.http_text import BYTES, JSON, Answer, choice, negotiate

_OTHERS: Final = ("fields", "probe", "key-encoding")


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(tags=["reads"])
    others = _OTHERS if node.spec.history is None else (*_OTHERS, "as-of")

    @router.get(
        "/v1/keys/{key}",
        openapi_extra=openapi_parameters(*POINT_OPTIONS, *others, path="key"),
        responses=VALUE,
    )
    async def read_key(request: Request) -> Response:
        """Return the newest value of a key. Every byte string is a key, percent-encoded, the empty one too."""
        absent = failure_of_history(request, node.spec.history is not None)
        values = parse_parameters(request, POINT_OPTIONS, *others, absent=absent)
        fields, probe = parse_fields(values), choice(values, "probe", ("false", "true")) == "true"
        if fields is not None:
            if probe:
                raise invalid("fields", "a probe answers no value", "leave out `fields`, or `probe`")
            negotiate(accept_header(request), (JSON,))
            answer = await _answer(request, values, JSON, None)
            return to_response(with_fields(answer, fields, list_header(request, "if-none-match")))
        form = negotiate(accept_header(request), (JSON, BYTES, *node.avro_forms))
        answer = await _answer(request, values, form, list_header(request, "if-none-match"))
        return to_response(without_value(answer) if probe else answer)

    async def _answer(request: Request, values: Parameters, form: str, if_none_match: str | None) -> Answer:
        if "as-of" in values:
            return await read_as_of(reads, request, values, form, if_none_match)
        record_key = key_in_path(request, values, node.codec)
        options, deadline = read_options(request, values, reads)
        local = options.route == "local" or is_forwarded(request, node)
        try:
            needed = await reads.wait_until_fresh_for_key(record_key, options, deadline, last=local)
            return reads.point(record_key, options, needed, form, if_none_match)
        except Failure as refusal:
            if local or refusal.reason not in REASONS_TO_TRY_ELSEWHERE:
                raise
            partition, *others = reads.partitions_of(record_key, options)
            if others:
                reservation = answer_reservation(request)
                return await read_key_across_partitions(
                    reads, record_key, options, deadline, form, if_none_match, reservation
                )
            if options.route == "redirect":
                return redirect(request, reads, partition, options, refusal)
            return await forward(request, values, reads, partition, options, refusal, deadline)

    return router
