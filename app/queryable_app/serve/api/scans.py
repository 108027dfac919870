"""Serve reads over many rows: `GET /v1/scan`, `/v1/range`, `/v1/prefix/{prefix}` and `/v1/count`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, Protocol, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.errors import invalid
from queryable_app.serve.api.access import key_access
from queryable_app.serve.api.key_ranges import restricted
from queryable_app.serve.api.moments import failure_of_history, moment_of, options_as_of, options_behind
from queryable_app.serve.api.openapi import COUNTED, MANY_OPTIONS, PAGE, openapi_parameters
from queryable_app.serve.api.request import (
    Parameters,
    accept_header,
    allows_partial,
    answer_reservation,
    key_parameter,
    multi_read_options,
    parse_parameters,
    prefix_in_path,
    to_response,
)
from queryable_app.serve.api.responses import PiecedResponse, RowStream
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.base.look_budget import LookBudget, page_looks
from queryable_app.serve.base.step_budget import PARSING_FACTOR
from queryable_app.serve.node import Node
from queryable_app.serve.reads.coverage import Coverage, coverage, read_partitions
from queryable_app.serve.reads.covered_reads import count_covered, covered_rows
from queryable_app.serve.reads.index_reads import IndexReader
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.rendering_steps import in_rendering_steps
from queryable_app.serve.reads.replica_progress import ReplicaProgress
from queryable_app.serve.reads.row_selection import SELECTION, parse_row_selection
from queryable_app.serve.reads.scans import (
    BATCH_ROWS,
    Batches,
    Bounds,
    Page,
    ToLines,
    ToText,
    count,
    ndjson,
    page,
    to_lines,
    to_text,
)
from queryable_app.serve.reads.versions import retained_rows, version_lines, version_text
from queryable_app.wire.cursors import Cursor, Order, decode_cursor
from queryable_app.wire.http_text import JSON, NDJSON, body_answer, choice, negotiate, single, whole_number
from queryable_app.wire.projection import Projection

_PAGE_ROWS: Final = 100  # unless the request has a limit
_STREAM_ROWS_MAX: Final = 10**12
_SCAN: Final = (*SELECTION, "limit", "order", "cursor", "key-encoding")
_COUNT: Final = ("where", "approximate")
_ORDERS: Final[tuple[Order, Order]] = ("asc", "desc")


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(tags=["reads"])
    rows = _SCAN if node.spec.history is None else (*_SCAN, "as-of")

    def parse(request: Request, *others: str) -> Parameters:
        absent = failure_of_history(request, node.spec.history is not None)
        return parse_parameters(request, MANY_OPTIONS, *others, *rows, absent=absent)

    @router.get("/v1/scan", openapi_extra=openapi_parameters(*MANY_OPTIONS, *rows), responses=PAGE)
    async def scan(request: Request) -> Response:
        """Return all rows in key order. `Accept: application/x-ndjson` streams them, one row a line."""
        values = parse(request)
        return await RowRequest(reads, request, values, Bounds(), "scan").respond()

    @router.get(
        "/v1/range", openapi_extra=openapi_parameters(*MANY_OPTIONS, "from", "to", *rows), responses=PAGE
    )
    async def key_range(request: Request) -> Response:
        """Return the rows from the key `from` up to, but not including, the key `to`, in key order."""
        values = parse(request, "from", "to")
        start, stop = (key_parameter(values, name, node.codec) for name in ("from", "to"))
        if start is not None and stop is not None and stop < start:
            raise invalid("to", "comes before `from`", "swap them; order=desc gives the rows in reverse")
        bounds = Bounds(start, stop)
        return await RowRequest(reads, request, values, bounds, f"range {start!r} {stop!r}").respond()

    @router.get(
        "/v1/prefix/{prefix}",
        openapi_extra=openapi_parameters(*MANY_OPTIONS, *rows, path="prefix"),
        responses=PAGE,
    )
    async def prefix(request: Request) -> Response:
        """Return the rows whose key begins with these bytes, in key order."""
        values = parse(request)
        if node.codec.width:
            raise invalid("prefix", f"{node.codec.format} keys are numbers", "use /v1/range with from and to")
        head = prefix_in_path(request, values, node.codec)
        return await RowRequest(reads, request, values, Bounds.of_prefix(head), f"prefix {head!r}").respond()

    @router.get("/v1/count", openapi_extra=openapi_parameters(*MANY_OPTIONS, *_COUNT), responses=COUNTED)
    async def count_rows(request: Request) -> Response:
        """Return the number of keys, of those whose values match."""
        return await _count_rows(reads, request)

    return router


class TimedRows(Protocol):
    """Write the rows of a view whose keys have a row for each of several times: windows, or entries."""

    def lines(
        self, progress: Sequence[ReplicaProgress], scattered: bool, fields: Projection | None = None
    ) -> ToLines:
        """Return a function from rows of these replicas to JSON objects."""

    def text(
        self, progress: Sequence[ReplicaProgress], scattered: bool, fields: Projection | None = None
    ) -> ToText:
        """Return a function from rows of these replicas to lines of JSON, and the number of lines."""


class RowRequest:
    """Parse one request for rows, and answer it with a page or a stream."""

    def __init__(
        self,
        reads: Reads,
        request: Request,
        values: Parameters,
        bounds: Bounds,
        scope: str,
        record_key: bytes | None = None,
        timed: TimedRows | None = None,
        index: IndexReader | None = None,
    ) -> None:
        self._reads = reads
        self._index = index
        self._record_key = record_key  # None: the rows of all keys
        self._timed = timed
        self._request = request
        self._selection = parse_row_selection(values)
        as_of = moment_of(values, reads) if "as-of" in values else None
        if as_of is not None:
            if as_of.time_ms is not None:
                raise invalid(
                    "as-of", "is a time, and many rows are read as of positions", "name one of each partition"
                )
            bounds, scope = replace(bounds, as_of=as_of), f"{scope} as of {as_of.text}"
        if record_key is None:
            bounds, scope = self._restricted(bounds, scope)
        self._scope = self._selection.scope(scope)  # what a cursor belongs to
        self._form = negotiate(accept_header(request), (JSON, NDJSON))
        rows_max = reads.node.settings.page_rows_max if self._form == JSON else _STREAM_ROWS_MAX
        self._limit = whole_number(values, "limit", 1, rows_max)
        is_history = bounds.versions is not None  # on disk, the newest version comes first
        self._order = cast(Order, choice(values, "order", _ORDERS[::-1] if is_history else _ORDERS))
        self._bounds, last_key = self._after_cursor(
            single(values, "cursor"), replace(bounds, reverse=(self._order == "desc") is not is_history)
        )
        self._options, self._deadline = multi_read_options(request, values, reads)
        if as_of is not None:
            self._options = options_as_of(self._options, as_of, self._partitions())
        if is_history and last_key is not None:
            self._options = options_behind(self._options, last_key)
        self._partial = allows_partial(values)

    def _restricted(self, bounds: Bounds, scope: str) -> tuple[Bounds, str]:
        """Return the range that the caller may read, and a scope in which only the same caller's cursors count."""
        access = key_access(self._request)
        # A page of an index is restricted by its reader.
        if self._index is None and access.limited:
            return restricted(bounds, access, self._timed is not None), f"{scope} of {access.prefixes!r}"
        return bounds, scope

    def _after_cursor(self, token: str | None, bounds: Bounds) -> tuple[Bounds, bytes | None]:
        """Return the rest of the range, and the last key of the page before; None: this is the first page."""
        if token is None:
            return bounds, None
        cursor = decode_cursor(token, self._scope)
        if cursor.order != self._order:
            raise invalid("cursor", f"goes {cursor.order}", f"send order={cursor.order}")
        if not bounds.contain(cursor.last_key):
            raise invalid("cursor", "is at a key outside of this query", "send it unchanged")
        return bounds.after(cursor.last_key), cursor.last_key

    async def respond(self) -> Response:
        is_stream = self._form == NDJSON
        if is_stream or self._selection.where or (self._limit or _PAGE_ROWS) > BATCH_ROWS:
            self._reads.node.read_admission.require_slot_for_long_read()
        return await self._stream() if is_stream else await self._page()

    async def _stream(self) -> Response:
        reads = self._reads
        covered = await coverage(reads, self._partitions(), self._options, self._deadline, self._partial)
        batches = self._batches(covered, None, self._limit, LookBudget())
        return RowStream(ndjson(batches, self._to_text(covered), self._limit), covered.headers)

    async def _page(self) -> Response:
        reads = self._reads
        reservation = answer_reservation(self._request)

        async def read_page(covered: Coverage) -> Page:
            limit = self._limit or _PAGE_ROWS
            looks = None if self._selection.where is None else page_looks(self._deadline)
            batches = self._batches(covered, reservation, limit + 1, looks)
            return await page(batches, self._to_lines(covered), limit, reservation, looks)

        while True:
            partitioning = reads.partitioning
            found, covered = await read_partitions(
                reads, self._partitions(), self._options, self._deadline, self._partial, read_page
            )
            if self._record_key is None or reads.partitioning == partitioning:
                break
            reservation.end()  # the search has learnt that the key may be in another partition
        cursor = b"null"
        if found.last_key is not None:
            cursor = b'"%b"' % Cursor(found.last_key, self._order, self._scope).encode().encode()
        items = [item for line in found.items for item in (b",", line)][1:]
        end = b'],"cursor":%b%b' % (cursor, covered.fields())
        return PiecedResponse([b'{"items":[', *items, end], covered.headers)

    def _batches(
        self,
        covered: Coverage,
        reservation: AnswerReservation | None,
        wanted: int | None,
        looks: LookBudget | None,
    ) -> Batches:
        arguments = (self._bounds, self._deadline, reservation, wanted, self._selection.where, looks)
        if self._index is not None:
            lookups = answer_reservation(self._request)
            batches = self._index.batches(self._reads, covered, lookups, *arguments)
        else:
            batches = covered_rows(self._reads, covered, *arguments)
        if self._bounds.as_of is not None:
            batches = retained_rows(batches, self._bounds.as_of, self._reads.node.codec)
        if self._bounds.index == "values":
            return batches
        if self._reads.node.spec.aggregate is not None:
            return in_rendering_steps(batches)
        return batches if self._selection.fields is None else in_rendering_steps(batches, PARSING_FACTOR)

    def _partitions(self) -> Collection[int]:
        if self._record_key is None:
            return range(self._reads.replicas.partitions)
        return self._reads.partitions_of(self._record_key, self._options)

    def _to_lines(self, covered: Coverage) -> ToLines:
        if self._timed is not None:
            return self._timed.lines(
                covered.progress, self._reads.partitioning.scattered, self._selection.fields
            )
        node = self._reads.node
        render = self._selection.render(node.render)
        if self._index is not None:
            return self._index.lines(node.codec, render, self._bounds)
        if self._bounds.versions is not None:
            return version_lines(node.codec, render)
        return to_lines(node.codec, render)

    def _to_text(self, covered: Coverage) -> ToText:
        if self._timed is not None:
            return self._timed.text(
                covered.progress, self._reads.partitioning.scattered, self._selection.fields
            )
        node = self._reads.node
        render = self._selection.render(node.render)
        if self._index is not None:
            return self._index.text(node.codec, render, self._bounds)
        if self._bounds.versions is not None:
            return version_text(node.codec, render)
        return to_text(node.codec, render)


async def _count_rows(reads: Reads, request: Request) -> Response:
    values = parse_parameters(request, MANY_OPTIONS, *_COUNT)
    negotiate(accept_header(request), (JSON,))
    approximate = choice(values, "approximate", ("false", "true"))
    options, deadline = multi_read_options(request, values, reads)
    partial = allows_partial(values)
    where = parse_row_selection(values).where
    if where is not None and approximate == "true":
        raise invalid("approximate", "an estimate counts all keys", "leave out `where`, or count exactly")
    access = key_access(request)
    bounds = restricted(Bounds(), access)
    if access.limited and approximate == "true":
        raise invalid(
            "approximate", "an estimate counts all keys", "count the keys that the token allows exactly"
        )
    # If a key may be in several partitions, only its newest record says whether it counts.
    exact = approximate == "false" or reads.partitioning.scattered
    if exact:
        reads.node.read_admission.require_slot_for_long_read()

    async def count_keys(covered: Coverage) -> int:
        if access.limited or reads.partitioning.scattered:
            reservation = answer_reservation(request)
            rows = covered_rows(reads, covered, bounds, deadline, reservation, None, where)
            async with aclosing(rows) as batches:
                return await count(batches)
        return await count_covered(reads, covered, not exact, deadline, where)

    everything = range(reads.replicas.partitions)
    counted, covered = await read_partitions(reads, everything, options, deadline, partial, count_keys)
    fields = (counted, approximate.encode(), covered.fields())
    return to_response(body_answer(b'{"count":%d,"approximate":%b%b' % fields, JSON, covered.headers))
