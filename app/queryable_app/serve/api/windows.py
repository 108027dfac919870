"""Serve reads of windows: `GET /v1/windows`, `/v1/windows/{key}`, `/v1/windows/{key}/{start}` and `/v1/top`.

Strategy: the windows of a key are neighbours on disk, in order of their starts, so each of these reads is a range of rows.
`/v1/top` reads all windows of a time, and retains the best.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.aggregates.clock import TIME_MAX_MS, TIME_MIN_MS
from queryable_app.aggregates.window_keys import START_MAX_MS, START_MIN_MS, first_key, key_after, window_key
from queryable_app.aggregates.windows import Windows
from queryable_app.errors import Failure, Reason
from queryable_app.serve.api.access import key_access
from queryable_app.serve.api.key_ranges import restricted
from queryable_app.serve.api.openapi import (
    MANY_OPTIONS,
    POINT_OPTIONS,
    TOP,
    TOP_ORDER,
    WINDOW,
    WINDOW_TIMES,
    WINDOWS,
    openapi_parameters,
)
from queryable_app.serve.api.request import (
    RAW_START,
    Parameters,
    accept_header,
    allows_partial,
    answer_reservation,
    key_in_path,
    multi_read_options,
    parse_moment,
    parse_parameters,
    time_parameters,
    to_response,
)
from queryable_app.serve.api.scans import RowRequest
from queryable_app.serve.node import Node
from queryable_app.serve.reads.coverage import Coverage, read_partitions
from queryable_app.serve.reads.covered_reads import covered_rows
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.rendering_steps import in_rendering_steps
from queryable_app.serve.reads.row_selection import SELECTION
from queryable_app.serve.reads.scans import Bounds, Page, page
from queryable_app.serve.reads.top_windows import TOP_MAX, check_column, top
from queryable_app.serve.reads.window_rows import WindowRows
from queryable_app.wire.http_text import JSON, body_answer, choice, negotiate, single, whole_number
from queryable_app.wire.times import parse_time, to_iso

_LIST: Final = ("from", "to", *SELECTION, "limit", "order", "cursor", "key-encoding")
_TOP: Final = ("by", "k", "order", "from", "to")
_TOP_ROWS: Final = 10  # unless the request says
_STARTS_SHOWN_MAX: Final = 3

OTHER_PATHS: Final = (
    "/v1/keys",
    "/v1/multi-get",
    "/v1/scan",
    "/v1/range",
    "/v1/prefix",
    "/v1/count",
    "/v1/filter",
    "/v1/index",
)
"""The reads that a view with windows does not have."""


def routes(node: Node, reads: Reads, windows: WindowRows) -> APIRouter:
    router = APIRouter(tags=["reads"])

    @router.get(
        "/v1/windows",
        openapi_extra=openapi_parameters(*MANY_OPTIONS, *_LIST, about=WINDOW_TIMES),
        responses=WINDOWS,
    )
    async def all_windows(request: Request) -> Response:
        """Return the windows of all keys that start in a time, by key and start."""
        values = parse_parameters(request, MANY_OPTIONS, *_LIST)
        times = _times(values)
        first, after = times
        whole = (first, after) == (START_MIN_MS, START_MAX_MS + 1)
        bounds = Bounds(starts=None if whole else times)
        return await RowRequest(reads, request, values, bounds, f"windows {times}", timed=windows).respond()

    @router.get(
        "/v1/windows/{key}",
        openapi_extra=openapi_parameters(*MANY_OPTIONS, *_LIST, path="key", about=WINDOW_TIMES),
        responses=WINDOWS,
    )
    async def windows_of_key(request: Request) -> Response:
        """Return the windows of a key that start in a time. A slash that is part of the key is written %2F."""
        values = parse_parameters(request, MANY_OPTIONS, *_LIST)
        record_key = key_in_path(request, values, node.codec)
        times = _times(values)
        bounds = _bounds(node.codec.to_disk(record_key), *times)
        scope = f"windows of {record_key!r} {times}"
        return await RowRequest(reads, request, values, bounds, scope, record_key, windows).respond()

    @router.get(
        "/v1/windows/{key}/{start}",
        openapi_extra=openapi_parameters(*POINT_OPTIONS, "key-encoding", path="key", start=True),
        responses=WINDOW,
    )
    async def one_window(request: Request) -> Response:
        """Return the window of a key that starts at this time."""
        values = parse_parameters(request, POINT_OPTIONS, "key-encoding")
        negotiate(accept_header(request), (JSON,))
        record_key = key_in_path(request, values, node.codec)
        raw_start: bytes = request.scope[RAW_START]
        start_ms = parse_moment("start", raw_start.decode("latin-1"), "; write a slash in a key as %2F")
        return await _one(reads, request, values, windows, record_key, start_ms)

    @router.get(
        "/v1/top",
        openapi_extra=openapi_parameters(*MANY_OPTIONS, *_TOP, about=WINDOW_TIMES | TOP_ORDER),
        responses=TOP,
    )
    async def top_windows(request: Request) -> Response:
        """Return the windows with the greatest results of a column, of those that start in a time."""
        values = parse_parameters(request, MANY_OPTIONS, *_TOP)
        negotiate(accept_header(request), (JSON,))
        column = check_column(windows.spec, single(values, "by"))
        count = whole_number(values, "k", 1, TOP_MAX) or _TOP_ROWS
        greatest = choice(values, "order", ("desc", "asc")) == "desc"
        bounds = restricted(Bounds(starts=_times(values)), key_access(request), of_windows=True)
        options, deadline = multi_read_options(request, values, reads)
        partial, reservation = allows_partial(values), answer_reservation(request)
        node.read_admission.require_slot_for_long_read()

        async def read(covered: Coverage) -> list[bytes]:
            batches = in_rendering_steps(covered_rows(reads, covered, bounds, deadline, reservation, None))
            lines = windows.lines(covered.progress, reads.partitioning.scattered)
            return await top(batches, lines, column, count, greatest, reservation)

        everything = range(reads.replicas.partitions)
        found, covered = await read_partitions(reads, everything, options, deadline, partial, read)
        return to_response(
            body_answer(b'{"items":[%b]%b' % (b",".join(found), covered.fields()), JSON, covered.headers)
        )

    return router


async def _one(
    reads: Reads, request: Request, values: Parameters, windows: WindowRows, record_key: bytes, start_ms: int
) -> Response:
    node = reads.node
    options, deadline = multi_read_options(request, values, reads)
    reservation = answer_reservation(request)
    group = node.codec.to_disk(record_key)
    disk_key = window_key(group, start_ms)
    bounds = Bounds(disk_key, disk_key + b"\0")

    async def read_window(covered: Coverage) -> Page:
        batches = covered_rows(reads, covered, bounds, deadline, reservation, 1)
        return await page(
            batches, windows.lines(covered.progress, reads.partitioning.scattered), 1, reservation
        )

    async def read_session_before(covered: Coverage) -> Page:
        before = Bounds(first_key(group), disk_key, reverse=True)
        batches = covered_rows(reads, covered, before, deadline, reservation, 1)
        return await page(
            batches, windows.lines(covered.progress, reads.partitioning.scattered), 1, reservation
        )

    while True:
        partitioning = reads.partitioning
        partitions = reads.partitions_of(record_key, options)
        found, covered = await read_partitions(reads, partitions, options, deadline, None, read_window)
        if reads.partitioning == partitioning:
            break
        reservation.end()
    if not found.items:
        if windows.windows.gap_ms:
            before, covered = await read_partitions(
                reads, partitions, options, deadline, None, read_session_before
            )
            times = map(_times_of, before.items)
            starts: Sequence[int] = [start for start, end in times if start_ms < end]
        else:
            starts = _other_starts(windows.windows, start_ms)
        advice = (_advice(starts),) if starts else ()
        return to_response(reads.answers.absent(covered.progress, covered.headers, *advice))
    return to_response(body_answer(found.items[0], JSON, covered.headers))


def _other_starts(windows: Windows, time_ms: int) -> Sequence[int]:
    """Return the starts of the windows that contain a time, if none starts there."""
    if not TIME_MIN_MS <= time_ms <= TIME_MAX_MS:
        return ()
    starts = windows.containing(time_ms)
    return () if time_ms in starts else [start for start in starts if start >= TIME_MIN_MS]


def _times_of(line: bytes) -> tuple[int, int]:
    """Return the start and the end of a window as it is answered."""
    window = json.loads(line)["window"]
    start_ms, end_ms = parse_time(window["start"]), parse_time(window["end"])
    assert start_ms is not None
    assert end_ms is not None
    return start_ms, end_ms


def _advice(starts: Sequence[int]) -> str:
    if len(starts) == 1:
        return f"the window that contains this time starts at {to_iso(starts[0])}"
    shown = starts if len(starts) <= _STARTS_SHOWN_MAX else (starts[0], starts[-1])
    joined = (" and " if shown is starts else " to ").join(map(to_iso, shown))
    return f"the {len(starts)} windows that contain this time start at {joined}"


def _bounds(group: bytes, first_ms: int, after_ms: int) -> Bounds:
    """Return the range of the windows of a group that start in a time."""
    start = first_key(group) if first_ms == START_MIN_MS else window_key(group, first_ms)
    stop = key_after(group) if after_ms > START_MAX_MS else window_key(group, after_ms)
    return Bounds(start, stop)


def _times(values: Parameters) -> tuple[int, int]:
    """Return the parameters `from` and `to`: the first start, and the first after the last."""
    first_ms, after_ms = time_parameters(values)
    return (
        START_MIN_MS if first_ms is None else first_ms,
        START_MAX_MS + 1 if after_ms is None else after_ms,
    )


def failures_elsewhere(has_windows: bool) -> Mapping[str, Failure]:
    """Return what requests of paths get that only a view with windows has, or only one without; by the path's beginning."""
    if not has_windows:
        failure = Failure(
            Reason.NO_SUCH_RESOURCE,
            "this view has no windows",
            "read a key at /v1/keys/{key}, or all rows at /v1/scan",
        )
        return {"/v1/windows": failure}
    failure = Failure(
        Reason.NO_SUCH_RESOURCE,
        "this view has windows of each key, and no single value",
        "read the windows of a key at /v1/windows/{key}, one of them at /v1/windows/{key}/{start}, "
        "or those of all keys at /v1/windows",
    )
    return dict.fromkeys(OTHER_PATHS, failure)
