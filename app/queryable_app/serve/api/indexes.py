"""Serve reads by a secondary index: `GET /v1/index/{name}`, its `/count` and its `/groups`, and `/v1/top`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.config.indexes import IndexSpec
from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.serve.api.access import key_access
from queryable_app.serve.api.openapi import (
    GROUPS,
    INDEX_COUNTED,
    MANY_OPTIONS,
    PAGE,
    TOP_ORDER,
    TOP_ROWS,
    of_indexes,
    openapi_parameters,
)
from queryable_app.serve.api.request import (
    Parameters,
    accept_header,
    allows_partial,
    answer_reservation,
    multi_read_options,
    parse_parameters,
    to_response,
)
from queryable_app.serve.api.scans import RowRequest
from queryable_app.serve.node import Node
from queryable_app.serve.reads.coverage import Coverage, read_partitions
from queryable_app.serve.reads.index_reads import IndexReader, count_rows
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.prefixed_index import PrefixedIndexReader
from queryable_app.serve.reads.rendering_steps import in_rendering_steps
from queryable_app.serve.reads.row_selection import SELECTION, parse_row_selection
from queryable_app.serve.reads.scans import BATCH_ROWS, Bounds, IndexPart, Page, page
from queryable_app.serve.reads.scans import count as count_live
from queryable_app.serve.reads.top_windows import TOP_MAX
from queryable_app.wire.http_text import JSON, as_bytes, body_answer, choice, negotiate, single, whole_number
from queryable_app.wire.index_entries import RowIndexes
from queryable_app.wire.index_keys import EXAMPLES, NotOfType, TextTooLong, after_value, encode_parameter

_VALUES: Final = ("eq", "from", "to")
_PAGE: Final = (*SELECTION, "limit", "order", "cursor", "key-encoding")
_GROUP_PAGE: Final = ("from", "to", "limit", "order", "cursor")
_COUNT: Final = (*_VALUES, "where")
_TOP: Final = (*SELECTION, "by", "k", "order")
_TOP_ROWS: Final = 10  # unless the request says


def routes(node: Node, reads: Reads, indexes: RowIndexes) -> APIRouter:
    router = APIRouter(tags=["reads"])
    about = of_indexes(spec.name for spec in node.spec.indexes)

    @router.get(
        "/v1/index/{name}",
        openapi_extra=openapi_parameters(*MANY_OPTIONS, *_VALUES, *_PAGE, path="name", about=about),
        responses=PAGE,
    )
    async def read_index(request: Request) -> Response:
        """Return the rows whose indexed value is `eq`, or from `from` up to, but not including, `to`, in the order of the
        values."""
        index = _of_caller(_index_in_path(request, indexes), request, indexes)
        values = parse_parameters(request, MANY_OPTIONS, *_VALUES, *_PAGE)
        bounds = _bounds(index, values, "rows")
        return await _row_request(reads, request, values, index, bounds).respond()

    @router.get(
        "/v1/index/{name}/groups",
        openapi_extra=openapi_parameters(*MANY_OPTIONS, *_GROUP_PAGE, path="name", about=about),
        responses=GROUPS,
    )
    async def index_groups(request: Request) -> Response:
        """Return the distinct values of an index, each with its number of rows, in the order of the values."""
        index = _of_caller(_index_in_path(request, indexes), request, indexes)
        values = parse_parameters(request, MANY_OPTIONS, *_GROUP_PAGE)
        bounds = _bounds(index, values, "values")
        node.read_admission.require_slot_for_long_read()
        return await _row_request(reads, request, values, index, bounds).respond()

    @router.get(
        "/v1/index/{name}/count",
        openapi_extra=openapi_parameters(*MANY_OPTIONS, *_COUNT, path="name", about=about),
        responses=INDEX_COUNTED,
    )
    async def count_index(request: Request) -> Response:
        """Return the number of rows whose indexed value is `eq`, or from `from` up to, but not including, `to`."""
        index = _of_caller(_index_in_path(request, indexes), request, indexes)
        values = parse_parameters(request, MANY_OPTIONS, *_COUNT)
        negotiate(accept_header(request), (JSON,))
        where = parse_row_selection(values).where
        bounds = _bounds(index, values, "values" if where is None else "rows")
        options, deadline = multi_read_options(request, values, reads)
        partial, reservation = allows_partial(values), answer_reservation(request)
        node.read_admission.require_slot_for_long_read()

        async def count(covered: Coverage) -> int:
            found = index.batches(reads, covered, reservation, bounds, deadline, reservation, None, where)
            if where is None:
                return await count_rows(found)
            async with aclosing(found) as batches:
                return await count_live(batches)

        everything = range(reads.replicas.partitions)
        counted, covered = await read_partitions(reads, everything, options, deadline, partial, count)
        return to_response(body_answer(b'{"count":%d%b' % (counted, covered.fields()), JSON, covered.headers))

    @router.get(
        "/v1/top",
        openapi_extra=openapi_parameters(*MANY_OPTIONS, *_TOP, about=about | TOP_ORDER),
        responses=TOP_ROWS,
    )
    async def top_rows(request: Request) -> Response:
        """Return the rows with the greatest values of an index, the greatest one first."""
        values = parse_parameters(request, MANY_OPTIONS, *_TOP)
        negotiate(accept_header(request), (JSON,))
        index = _of_caller(_index_of_parameter(indexes, single(values, "by")), request, indexes)
        count = whole_number(values, "k", 1, TOP_MAX) or _TOP_ROWS
        greatest = choice(values, "order", ("desc", "asc")) == "desc"
        bounds = Bounds(*_range_of(index), greatest, index="rows")
        options, deadline = multi_read_options(request, values, reads)
        partial, reservation = allows_partial(values), answer_reservation(request)
        selection = parse_row_selection(values)
        where, render = selection.where, selection.render(node.render)
        if where is not None or count > BATCH_ROWS or isinstance(index, PrefixedIndexReader):
            node.read_admission.require_slot_for_long_read()

        async def read(covered: Coverage) -> Page:
            wanted = count + 1
            batches = index.batches(reads, covered, reservation, bounds, deadline, reservation, wanted, where)
            if render is not None:
                batches = in_rendering_steps(batches)
            return await page(batches, index.lines(node.codec, render, bounds), count, reservation)

        everything = range(reads.replicas.partitions)
        found, covered = await read_partitions(reads, everything, options, deadline, partial, read)
        if len(found.items) < count and found.last_key is not None:
            raise Failure(
                Reason.TOO_LARGE,
                f"the first {count} rows are too large for one answer",
                f"ask for at most k={len(found.items)}, or page through /v1/index/{index.spec.name}?order=desc",
            )
        body = b'{"items":[%b]%b' % (b",".join(found.items), covered.fields())
        return to_response(body_answer(body, JSON, covered.headers))

    return router


def _row_request(
    reads: Reads, request: Request, values: Parameters, index: IndexReader, bounds: Bounds
) -> RowRequest:
    scope = f"index {index.spec.name} {bounds.index} {bounds.start!r} {bounds.stop!r}"
    if isinstance(index, PrefixedIndexReader):
        scope += f" of {index.prefixes!r}"
        reads.node.read_admission.require_slot_for_long_read()
    return RowRequest(reads, request, values, bounds, scope, index=index)


def _index_in_path(request: Request, indexes: RowIndexes) -> IndexReader:
    name: str = request.path_params["name"]
    return _named(indexes, name)


def _index_of_parameter(indexes: RowIndexes, name: str | None) -> IndexReader:
    if name is None:
        raise invalid("by", "is missing", f"There are {', '.join(indexes.names)}")
    return _named(indexes, name)


def _named(indexes: RowIndexes, name: str) -> IndexReader:
    if name not in indexes.names:
        raise Failure(
            Reason.NO_SUCH_RESOURCE,
            f"{shown(name)} is no index of this view",
            f"There are {', '.join(indexes.names)}",
        )
    return _reader(indexes, name)


def _of_caller(index: IndexReader, request: Request, indexes: RowIndexes) -> IndexReader:
    """Return the index with the rows that the caller may read."""
    access = key_access(request)
    access.applied = True
    if not access.limited:
        return index
    return PrefixedIndexReader(index.spec, index.number, indexes, access.prefixes)


def _reader(indexes: RowIndexes, name: str) -> IndexReader:
    number = indexes.names.index(name)
    return IndexReader(indexes.specs[number], number)


def _range_of(index: IndexReader) -> tuple[bytes, bytes]:
    """Return the range of all entries of an index."""
    return bytes((index.number,)), bytes((index.number + 1,))


def _bounds(index: IndexReader, values: Parameters, part: IndexPart) -> Bounds:
    """Return the range of entries that the parameters `eq`, or `from` and `to`, name."""
    first, after = _range_of(index)
    equal = _encoded(index.spec, values, "eq", is_bound=False)
    start, stop = (_encoded(index.spec, values, name, is_bound=True) for name in ("from", "to"))
    if equal is not None:
        if start is not None or stop is not None:
            raise invalid("eq", "is given with `from` or `to`", "give either one value or a range")
        return Bounds(first + equal, after_value(first + equal), index=part)
    if start is not None and stop is not None and stop < start:
        raise invalid("to", "comes before `from`", "swap them; order=desc gives the rows in reverse")
    return Bounds(
        first if start is None else first + start, after if stop is None else first + stop, index=part
    )


def _encoded(spec: IndexSpec, values: Parameters, name: str, is_bound: bool) -> bytes | None:
    raw = single(values, name)
    if raw is None:
        return None
    try:
        return encode_parameter(as_bytes(raw).decode(), spec.type, is_bound)
    except TextTooLong as error:
        raise invalid(name, str(error), "write a shorter beginning of the text") from None
    except (NotOfType, UnicodeDecodeError):
        raise invalid(
            name, f"{shown(raw)} is no {spec.type}, the type of {spec.name}", f"write {EXAMPLES[spec.type]}"
        ) from None


def failures_elsewhere(has_indexes: bool, has_windows: bool) -> Mapping[str, Failure]:
    """Return what requests of a view without indexes get, by the path's beginning."""
    if has_indexes or has_windows:
        return {}
    failure = Failure(
        Reason.NO_SUCH_RESOURCE,
        "this view has no indexes",
        "add spec.view.indexes, which makes a new revision, or read all rows at /v1/scan",
    )
    return {"/v1/index": failure, "/v1/top": failure}
