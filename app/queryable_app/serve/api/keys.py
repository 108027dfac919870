"""`GET /v1/keys/{key}` and `POST /v1/multi-get`."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.errors import REASONS_TO_TRY_ELSEWHERE, Failure, Reason, invalid, shown
from queryable_app.serve.api.answers import ITEMS, KEYS_BODY, VALUE
from queryable_app.serve.api.forwarding import forward, is_forwarded, redirect
from queryable_app.serve.api.parameters import MANY_OPTIONS, POINT_OPTIONS, parameters
from queryable_app.serve.api.pieces import PiecedResponse
from queryable_app.serve.api.request import (
    Parameters,
    accept_header,
    answer_reservation,
    asked_of,
    asked_of_many,
    invalid_json,
    key_in_path,
    parse_parameters,
    read_body,
    require_few_values,
    to_response,
)
from queryable_app.serve.node import Node
from queryable_app.serve.reads.coverage import within_deadline
from queryable_app.serve.reads.covered_reads import find_rows, read_key_across_partitions
from queryable_app.serve.reads.multi_get import KEYS_BETWEEN_YIELDS, items_json
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.http_text import BYTES, JSON, choice, negotiate
from queryable_app.wire.json_text import (
    BadJson,
    parse_json,
    read_array,
    read_document,
    read_json,
    read_object,
)
from queryable_app.wire.serde import KeyCodec

_POINT: Final = (*POINT_OPTIONS, "key-encoding")
_MANY: Final = (*MANY_OPTIONS, "key-encoding")


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(tags=["reads"])

    @router.get("/v1/keys/{key}", openapi_extra=parameters(*_POINT, path="key"), responses=VALUE)
    async def read_key(request: Request) -> Response:
        """The newest value of a key. Every byte string is a key, percent-encoded, the empty one too."""
        values = parse_parameters(request, POINT_OPTIONS, "key-encoding")
        form = negotiate(accept_header(request), (JSON, BYTES))
        record_key = key_in_path(request, values, node.codec)
        asked, deadline = asked_of(request, values, reads)
        tags = request.headers.getlist("if-none-match")
        if_none_match = ",".join(tags) if tags else None
        local = asked.route == "local" or is_forwarded(request, node)
        try:
            needed = await reads.wait_until_fresh_for_key(record_key, asked, deadline, last=local)
            return to_response(reads.point(record_key, asked, needed, form, if_none_match))
        except Failure as refusal:
            if local or refusal.reason not in REASONS_TO_TRY_ELSEWHERE:
                raise
            partition, *others = {*reads.partitioning.partitions_of(record_key), *asked.min_positions}
            if others:
                share = answer_reservation(request)
                return to_response(
                    await read_key_across_partitions(
                        reads, record_key, asked, deadline, form, if_none_match, share
                    )
                )
            if asked.route == "redirect":
                return to_response(redirect(request, reads, partition, asked, refusal))
            return to_response(await forward(request, values, reads, partition, asked, refusal, deadline))

    @router.post("/v1/multi-get", openapi_extra=parameters(*_MANY) | KEYS_BODY, responses=ITEMS)
    async def read_keys(request: Request) -> Response:
        """Many keys at once: `{"keys": [..]}`. Items come in the same order, one for each, repeated keys too."""
        values = parse_parameters(request, MANY_OPTIONS, "key-encoding")
        negotiate(accept_header(request), (JSON,))
        asked, deadline = asked_of_many(request, values, reads)
        partial = choice(values, "partial", ("refuse", "allow")) == "allow"
        async with within_deadline(deadline):
            body = _parsed(await read_body(request), node)
        keys = _record_keys(body, values, node)
        if len(keys) > KEYS_BETWEEN_YIELDS:
            node.read_admission.require_slot_for_long_read()
        share = answer_reservation(request)
        lookups, rows, covered = await find_rows(reads, keys, asked, deadline, partial, share)
        # A key that was not found may be in a partition that no view reads; or, while a position that the read names is
        # not reached, in another partition than the one in which it was looked for.
        anywhere = reads.replicas.unplaced_partitions or asked.min_positions.keys() & {*covered.missing}
        unknown = range(reads.replicas.partitions) if anywhere else covered.missing
        items = items_json(lookups, rows, unknown, node.codec, node.spec.stored_format, share)
        return PiecedResponse([b'{"items":[', *items, b"]", covered.fields()], covered.headers)

    return router


def _parsed(body: bytes, node: Node) -> Any:
    """Parse a body. A flood of values is refused before it holds the event loop: there are no more values than commas."""
    bound = node.settings.multi_get_keys_max
    require_few_values(body)
    try:
        if body.count(b",") <= bound:
            return parse_json(body, unique_names=True).value
        return read_document(body, _KeysReader(node.codec, bound).read)
    except BadJson as bad:
        raise invalid_json("body", bad) from None


class _KeysReader:
    """Reads `{"keys": [..]}` key by key, no more of them than may be."""

    def __init__(self, codec: KeyCodec, bound: int) -> None:
        self._codec = codec
        self._bound = bound
        self._count = 0

    def read(self, text: str, at: int) -> tuple[Any, int]:
        if text[at : at + 1] != "{":
            raise _no_list()
        return read_object(text, at, self._member)

    def _member(self, name: str, text: str, at: int) -> tuple[Any, int]:
        if name != "keys":
            raise _no_field(name)
        if text[at : at + 1] != "[":
            raise _no_list()
        return read_array(text, at, self._key)

    def _key(self, text: str, at: int) -> tuple[Any, int]:
        self._count += 1
        if self._count > self._bound:
            raise _too_many(f"more than {self._bound} keys")
        if self._codec.format != "json" and text[at : at + 1] in ("[", "{"):
            raise invalid("keys", "one is an array or an object", "write each key as text or a number")
        value, end = read_json(text, at)
        return value.value, end


def _no_list() -> Failure:
    return invalid("body", 'has no list "keys"', 'send {"keys": ["a", "b"]}')


def _no_field(name: str) -> Failure:
    return invalid(shown(name), "is no field of a multi-get", 'send {"keys": [..]} and nothing else')


def _too_many(what: str) -> Failure:
    return Failure(Reason.TOO_LARGE, f"keys: {what}", "split them over several requests")


def _record_keys(body: Any, values: Parameters, node: Node) -> list[bytes]:
    """The record keys that a body asks for."""
    if not isinstance(body, dict) or not isinstance(body.get("keys"), list):
        raise _no_list()
    for name in body:
        if name != "keys":
            raise _no_field(name)
    keys, bound = body["keys"], node.settings.multi_get_keys_max
    if len(keys) > bound:
        raise _too_many(f"{len(keys)} keys, more than {bound}")
    if choice(values, "key-encoding", ("text", "base64url")) == "text":
        return [node.codec.from_json(key) for key in keys]
    for key in keys:
        if not isinstance(key, str):
            raise invalid("keys", f"{shown(key)} is not text", "write each key as base64url in a JSON string")
    return [node.codec.from_base64url(key) for key in keys]
