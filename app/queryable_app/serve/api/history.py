"""Serve reads of the past: `GET /v1/keys/{key}/history`, and what `as-of=` adds to the reads of keys and rows."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.errors import invalid
from queryable_app.serve.api.moments import moment_of, options_as_of
from queryable_app.serve.api.openapi import MANY_OPTIONS, MOMENTS, VERSIONS, openapi_parameters
from queryable_app.serve.api.request import (
    Parameters,
    answer_reservation,
    key_in_path,
    multi_read_options,
    parse_parameters,
)
from queryable_app.serve.api.scans import RowRequest
from queryable_app.serve.node import Node
from queryable_app.serve.reads.coverage import Coverage, read_partitions
from queryable_app.serve.reads.covered_reads import covered_rows
from queryable_app.serve.reads.past_rows import VersionRange, not_retained
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.scans import Bounds
from queryable_app.serve.reads.stored_row import StoredRow, stored_row
from queryable_app.wire.as_of import parse_as_of
from queryable_app.wire.http_text import Answer
from queryable_app.wire.version_keys import after_group, group_of, is_not_retained

_LIST: Final = ("from", "to", "fields", "limit", "order", "cursor", "key-encoding")
_ANY_TIME: Final = 1 << 63


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(tags=["reads"])

    @router.get(
        "/v1/keys/{key}/history",
        openapi_extra=openapi_parameters(*MANY_OPTIONS, *_LIST, path="key", about=MOMENTS),
        responses=VERSIONS,
    )
    async def history_of_key(request: Request) -> Response:
        """Return the versions of a key that are kept, the newest first. A slash before a last `history` that is part of the key
        is written %2F."""
        values = parse_parameters(request, MANY_OPTIONS, *_LIST)
        record_key = key_in_path(request, values, node.codec)
        first, after = (
            parse_as_of(name, values.get(name, ()), reads.replicas.partitions, _ANY_TIME)
            for name in ("from", "to")
        )
        if first is not None and after is not None and after.is_before(first):
            raise invalid(
                "to", "comes before `from`", "swap them; the newest version comes first, unless order=asc"
            )
        group = group_of(node.codec.to_disk(record_key))
        bounds = Bounds(group, after_group(group), versions=VersionRange(group, first, after))
        scope = f"history of {record_key!r} {first} {after}"
        return await RowRequest(reads, request, values, bounds, scope, record_key).respond()

    return router


async def read_as_of(
    reads: Reads,
    request: Request,
    values: Parameters,
    form: str,
    if_none_match: str | None,
) -> Answer:
    """Answer a read of one key as of a moment, wherever the key is."""
    record_key = key_in_path(request, values, reads.node.codec)
    as_of = moment_of(values, reads)
    options, deadline = multi_read_options(request, values, reads)
    disk_key = reads.node.codec.to_disk(record_key)
    bounds = Bounds(disk_key, disk_key + b"\0", as_of=as_of)
    reservation = answer_reservation(request)

    async def read(covered: Coverage) -> StoredRow | None:
        batches = covered_rows(reads, covered, bounds, deadline, reservation, 1)
        newest: StoredRow | None = None
        async with aclosing(batches):
            async for batch in batches:
                for _, partition, stored in batch:
                    if is_not_retained(stored):
                        raise not_retained("this key", as_of)
                    newest = stored_row(partition, stored)
        return newest

    while True:
        partitioning = reads.partitioning
        partitions = partitioning.partitions_of(record_key)
        wanted = options_as_of(options, as_of, partitions)
        newest, covered = await read_partitions(reads, partitions, wanted, deadline, None, read)
        if reads.partitioning == partitioning:
            break
        reservation.end()
    return reads.answers.of_newest(
        newest, covered.progress, 1 if covered.remote else 0, form, if_none_match, as_of.text
    )
