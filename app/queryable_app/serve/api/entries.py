"""Serve reads of entries: `GET /v1/entries/{key}` and `/v1/entries`.

Strategy: the entries of a key are neighbours on disk, in the order of their times, so the read is a range of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.aggregates.clock import TIME_MAX_MS, TIME_MIN_MS
from queryable_app.aggregates.entry_keys import entries_between
from queryable_app.errors import Failure, Reason
from queryable_app.serve.api.openapi import ENTRIES, ENTRY_TIMES, MANY_OPTIONS, openapi_parameters
from queryable_app.serve.api.request import Parameters, key_in_path, parse_parameters, time_parameters
from queryable_app.serve.api.scans import RowRequest
from queryable_app.serve.node import Node
from queryable_app.serve.reads.entry_rows import EntryRows
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.row_selection import SELECTION
from queryable_app.serve.reads.scans import Bounds

_ALL: Final = (*SELECTION, "limit", "order", "cursor")
_OF_KEY: Final = ("from", "to", *_ALL, "key-encoding")

OTHER_PATHS: Final = (
    "/v1/keys",
    "/v1/multi-get",
    "/v1/scan",
    "/v1/range",
    "/v1/prefix",
    "/v1/count",
    "/v1/filter",
    "/v1/index",
    "/v1/top",
    "/v1/windows",
)
"""The reads that a view of entries does not have."""


def routes(node: Node, reads: Reads, entries: EntryRows) -> APIRouter:
    router = APIRouter(tags=["reads"])

    @router.get(
        "/v1/entries",
        openapi_extra=openapi_parameters(*MANY_OPTIONS, *_ALL, about=ENTRY_TIMES),
        responses=ENTRIES,
    )
    async def all_entries(request: Request) -> Response:
        """Return the entries of all keys, in the order of their keys and then of their times."""
        values = parse_parameters(request, MANY_OPTIONS, *_ALL)
        return await RowRequest(reads, request, values, Bounds(), "entries", timed=entries).respond()

    @router.get(
        "/v1/entries/{key}",
        openapi_extra=openapi_parameters(*MANY_OPTIONS, *_OF_KEY, path="key", about=ENTRY_TIMES),
        responses=ENTRIES,
    )
    async def entries_of_key(request: Request) -> Response:
        """Return the entries of a key from a time up to, but not including, another, in the order of their times."""
        values = parse_parameters(request, MANY_OPTIONS, *_OF_KEY)
        record_key = key_in_path(request, values, node.codec)
        first_ms, after_ms = _times(values)
        bounds = Bounds(*entries_between(node.codec.to_disk(record_key), first_ms, after_ms))
        scope = f"entries of {record_key!r} {first_ms} {after_ms}"
        return await RowRequest(reads, request, values, bounds, scope, record_key, entries).respond()

    return router


def _times(values: Parameters) -> tuple[int | None, int | None]:
    """Return the parameters `from` and `to`; None where a bound excludes no entry."""
    first_ms, after_ms = time_parameters(values)
    return (
        None if first_ms is None or first_ms <= TIME_MIN_MS else min(first_ms, TIME_MAX_MS + 1),
        None if after_ms is None or after_ms > TIME_MAX_MS else max(after_ms, TIME_MIN_MS),
    )


def failures_elsewhere(has_entries: bool) -> Mapping[str, Failure]:
    """Return what requests of paths get that only a view of entries has, or only other views; by the path's beginning."""
    if not has_entries:
        failure = Failure(
            Reason.NO_SUCH_RESOURCE,
            "this view keeps no entries of its keys",
            "add spec.view.entries, which makes a new revision, or see /openapi.json for the reads of this view",
        )
        return {"/v1/entries": failure}
    failure = Failure(
        Reason.NO_SUCH_RESOURCE,
        "this view keeps all entries of a key by their time, and no single value",
        "read the newest entry of a key at /v1/entries/{key}?order=desc&limit=1, or all entries at /v1/entries",
    )
    return dict.fromkeys(OTHER_PATHS, failure)
