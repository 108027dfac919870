"""Serve `POST /v1/multi-get`: the newest values of many keys."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.serve.api.access import key_access
from queryable_app.serve.api.openapi import ITEMS, KEYS_BODY, MANY_OPTIONS, openapi_parameters
from queryable_app.serve.api.request import (
    Parameters,
    accept_header,
    allows_partial,
    answer_reservation,
    json_body,
    key_parser,
    multi_read_options,
    parse_parameters,
)
from queryable_app.serve.api.responses import PiecedResponse
from queryable_app.serve.base.step_budget import ITEM_BYTES, StepBudget
from queryable_app.serve.node import Node
from queryable_app.serve.reads.coverage import within_deadline
from queryable_app.serve.reads.covered_reads import find_rows, unknown_partitions
from queryable_app.serve.reads.multi_get import KEYS_BETWEEN_YIELDS, items_json
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.row_selection import RowSelection, parse_fields
from queryable_app.wire.http_text import JSON, negotiate

_PARAMETERS: Final = (*MANY_OPTIONS, "fields", "key-encoding")
_KEYS_AT_ONCE: Final = 64


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(tags=["reads"])

    @router.post("/v1/multi-get", openapi_extra=openapi_parameters(*_PARAMETERS) | KEYS_BODY, responses=ITEMS)
    async def read_keys(request: Request) -> Response:
        """Return an item for each of many keys, `{"keys": [..]}`, in the same order, also for repeated keys."""
        values = parse_parameters(request, MANY_OPTIONS, "fields", "key-encoding")
        negotiate(accept_header(request), (JSON,))
        options, deadline = multi_read_options(request, values, reads)
        partial = allows_partial(values)
        render = RowSelection(fields=parse_fields(values)).render(node.render)
        async with within_deadline(deadline):  # no local variable keeps the body or its JSON values alive
            keys = await record_keys(await json_body(request, node), values, node)
        key_access(request).require(keys)
        if len(keys) > KEYS_BETWEEN_YIELDS:
            node.read_admission.require_slot_for_long_read()
        reservation = answer_reservation(request)
        lookups, rows, covered = await find_rows(reads, keys, options, deadline, partial, reservation)
        unknown = unknown_partitions(reads, options, covered)
        items = await items_json(lookups, rows, unknown, node.codec, render, reservation)
        return PiecedResponse([b'{"items":[', *items, b"]", covered.fields()], covered.headers)

    return router


def _no_list() -> Failure:
    return invalid("body", 'has no list "keys"', 'send {"keys": ["a", "b"]}')


def _no_field(name: str) -> Failure:
    return invalid(shown(name), "is no field of a multi-get", 'send {"keys": [..]} and nothing else')


def _too_many(what: str) -> Failure:
    return Failure(Reason.TOO_LARGE, f"keys: {what}", "split them over several requests")


async def record_keys(body: Any, values: Parameters, node: Node) -> list[bytes]:
    """Return the record keys in a body."""
    if not isinstance(body, dict) or not isinstance(body.get("keys"), list):
        raise _no_list()
    for name in body:
        if name != "keys":
            raise _no_field(name)
    keys, limit = body["keys"], node.settings.multi_get_keys_max
    if len(keys) > limit:
        raise _too_many(f"{len(keys)}, which is more than {limit} keys")
    parse = key_parser(values, node.codec, "keys")
    parsed: list[bytes] = []
    steps = StepBudget()
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        portion = [parse(key) for key in keys[start : start + _KEYS_AT_ONCE]]
        parsed += portion
        await steps.spend(len(portion) * ITEM_BYTES + sum(map(len, portion)))
    return parsed
