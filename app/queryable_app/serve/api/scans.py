"""`GET /v1/scan`, `/v1/range`, `/v1/prefix/{prefix}` and `/v1/count`: reads over many rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from queryable_app.errors import invalid
from queryable_app.serve.api.answers import COUNTED, PAGE
from queryable_app.serve.api.parameters import MANY_OPTIONS, parameters
from queryable_app.serve.api.pieces import PiecedResponse
from queryable_app.serve.api.request import (
    IS_HEAD,
    RAW_KEY,
    ClientDisconnected,
    Parameters,
    accept_header,
    answer_reservation,
    asked_of_many,
    key_parameter,
    parse_parameters,
    to_response,
)
from queryable_app.serve.node import Node
from queryable_app.serve.reads.coverage import Coverage, coverage, read_partitions
from queryable_app.serve.reads.covered_reads import count_covered, covered_rows
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.scans import BATCH_ROWS, Bounds, Page, count, ndjson, page, to_lines
from queryable_app.wire.cursors import Cursor, Order, decode_cursor
from queryable_app.wire.http_text import (
    JSON,
    NDJSON,
    Answer,
    body_answer,
    choice,
    negotiate,
    single,
    whole_number,
)

_LIMIT: Final = 100
_SCAN: Final = ("limit", "order", "cursor", "key-encoding")
_ORDERS: Final[tuple[Order, Order]] = ("asc", "desc")
_STREAM: Final = b"content-type: %b\r\n" % NDJSON.encode()


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(tags=["reads"])

    @router.get("/v1/scan", openapi_extra=parameters(*MANY_OPTIONS, *_SCAN), responses=PAGE)
    async def scan(request: Request) -> Response:
        """All rows in key order. `Accept: application/x-ndjson` streams them, a row a line."""
        values = parse_parameters(request, MANY_OPTIONS, *_SCAN)
        return await rows(request, values, Bounds(), "scan")

    @router.get("/v1/range", openapi_extra=parameters(*MANY_OPTIONS, "from", "to", *_SCAN), responses=PAGE)
    async def key_range(request: Request) -> Response:
        """The rows from the key `from` up to before the key `to`, in key order."""
        values = parse_parameters(request, MANY_OPTIONS, "from", "to", *_SCAN)
        start, stop = (key_parameter(values, name, node.codec) for name in ("from", "to"))
        if start is not None and stop is not None and stop < start:
            raise invalid("to", "comes before `from`", "swap them; order=desc gives the rows in reverse")
        return await rows(request, values, Bounds(start, stop), f"range {start!r} {stop!r}")

    @router.get(
        "/v1/prefix/{prefix}",
        openapi_extra=parameters(*MANY_OPTIONS, *_SCAN, path="prefix"),
        responses=PAGE,
    )
    async def prefix(request: Request) -> Response:
        """The rows whose key begins with these bytes, in key order."""
        values = parse_parameters(request, MANY_OPTIONS, *_SCAN)
        if node.codec.width:
            raise invalid("prefix", f"{node.codec.format} keys are numbers", "ask /v1/range with from and to")
        encoded = choice(values, "key-encoding", ("text", "base64url")) == "base64url"
        raw: bytes = request.scope[RAW_KEY]  # not decoded as a key: the beginning of one need not be one
        head = node.codec.from_base64url(raw.decode("latin-1")) if encoded else raw
        return await rows(request, values, Bounds.of_prefix(head), f"prefix {head!r}")

    async def rows(request: Request, values: Parameters, bounds: Bounds, scope: str) -> Response:
        form = negotiate(accept_header(request), (JSON, NDJSON))
        limit = (
            whole_number(values, "limit", 1, node.settings.page_rows_max)
            if form == JSON
            else _any_limit(values)
        )
        order = choice(values, "order", _ORDERS)
        bounds = Bounds(bounds.start, bounds.stop, order == "desc")
        token = single(values, "cursor")
        if token is not None:
            cursor = decode_cursor(token, scope)
            if cursor.order != order:
                raise invalid("cursor", f"goes {cursor.order}", f"ask with order={cursor.order}")
            if not bounds.contain(cursor.last_key):
                raise invalid("cursor", "is at a key that this query has not", "send it unchanged")
            bounds = bounds.after(cursor.last_key)
        asked, deadline = asked_of_many(request, values, reads)
        partial = choice(values, "partial", ("refuse", "allow")) == "allow"
        lines = to_lines(node.codec, node.spec.stored_format, form == NDJSON)
        if form == NDJSON or (limit or _LIMIT) > BATCH_ROWS:
            node.read_admission.require_slot_for_long_read()

        everything = range(reads.replicas.partitions)
        if form == NDJSON:
            covered = await coverage(reads, everything, asked, deadline, partial)
            batches = covered_rows(reads, covered, bounds, deadline, None)
            return RowStream(ndjson(batches, lines, limit), covered.headers)

        share = answer_reservation(request)

        async def one_page(covered: Coverage) -> Page:
            return await page(
                covered_rows(reads, covered, bounds, deadline, share), lines, limit or _LIMIT, share
            )

        found, covered = await read_partitions(reads, everything, asked, deadline, partial, one_page)
        following = b"null"
        if found.last_key is not None:
            following = b'"%b"' % Cursor(found.last_key, cast(Order, order), scope).encode().encode()
        items = [item for line in found.items for item in (b",", line)][1:]
        fields = (following, covered.fields())
        return PiecedResponse([b'{"items":[', *items, b'],"cursor":%b%b' % fields], covered.headers)

    @router.get("/v1/count", openapi_extra=parameters(*MANY_OPTIONS, "approximate"), responses=COUNTED)
    async def count_rows(request: Request) -> Response:
        """How many keys there are."""
        values = parse_parameters(request, MANY_OPTIONS, "approximate")
        negotiate(accept_header(request), (JSON,))
        approximate = choice(values, "approximate", ("false", "true"))
        asked, deadline = asked_of_many(request, values, reads)
        partial = choice(values, "partial", ("refuse", "allow")) == "allow"
        # Where a key may be in several partitions, only its newest record says whether it counts.
        exact = approximate == "false" or reads.partitioning.scattered
        if exact:
            node.read_admission.require_slot_for_long_read()

        async def counting(covered: Coverage) -> int:
            if reads.partitioning.scattered:
                async with aclosing(
                    covered_rows(reads, covered, Bounds(), deadline, answer_reservation(request))
                ) as batches:
                    return await count(batches)
            return await count_covered(reads, covered, not exact, deadline)

        everything = range(reads.replicas.partitions)
        counted, covered = await read_partitions(reads, everything, asked, deadline, partial, counting)
        fields = (counted, approximate.encode(), covered.fields())
        return to_response(body_answer(b'{"count":%d,"approximate":%b%b' % fields, JSON, covered.headers))

    return router


def _any_limit(values: Parameters) -> int | None:
    """A stream has no page, and so its limit is not a page's."""
    return whole_number(values, "limit", 1, 10**12)


class RowStream(Response):
    """Sends chunks as they are made and taken. A client that goes away ends it, and the stores are released."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], headers: bytes) -> None:
        super().__init__()
        self._chunks = chunks
        self._header_lines = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_gone(receive))
        try:
            async with aclosing(self._chunks) as chunks:
                headers = Answer(200, _STREAM + self._header_lines, b"").header_list()
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                if IS_HEAD not in scope:
                    async for chunk in chunks:
                        if gone.done():
                            raise ClientDisconnected
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
