"""Serve `/internal/v1/checkpoints`: other nodes hydrate their replicas from this node's."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.serve.api.internal import internal_body, refuse_malformed_body, require_node_token
from queryable_app.serve.api.request import to_response
from queryable_app.serve.node import Node
from queryable_app.serve.replication.hydration import CHECKPOINTS
from queryable_app.wire.checked import OFFSET_MAX, field, partition, whole
from queryable_app.wire.checkpoint_files import RANGE_BYTES_MAX, CheckpointInProgress, Manifest
from queryable_app.wire.http_text import BYTES, JSON, body_answer, json_answer, parse_query, whole_number

_OFFSET_MAX: Final = 1 << 40


def routes(node: Node) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    checkpoints = node.checkpoints

    @router.post(CHECKPOINTS)
    async def create(request: Request) -> Response:
        body = await internal_body(request, node)
        with refuse_malformed_body():
            which = field(body, "partition", partition)
            records_min = field(body, "recordsMin", whole(0, OFFSET_MAX))
        return _manifest_response(checkpoints.create(which, records_min))

    @router.get(CHECKPOINTS + "/{lease}")
    async def manifest(request: Request, lease: str) -> Response:
        require_node_token(request, node)
        return _manifest_response(await checkpoints.manifest(lease))

    @router.get(CHECKPOINTS + "/{lease}/files/{name}")
    async def read(request: Request, lease: str, name: str) -> Response:
        require_node_token(request, node)
        values = parse_query(request.scope["query_string"], ("offset", "length"))
        offset = whole_number(values, "offset", 0, _OFFSET_MAX) or 0
        length = whole_number(values, "length", 1, RANGE_BYTES_MAX) or RANGE_BYTES_MAX
        return to_response(body_answer(await checkpoints.read(lease, name, offset, length), BYTES))

    @router.delete(CHECKPOINTS + "/{lease}")
    async def release(request: Request, lease: str) -> Response:
        require_node_token(request, node)
        await checkpoints.release(lease)
        return to_response(json_answer({"released": lease}))

    return router


def _manifest_response(made: Manifest | CheckpointInProgress) -> Response:
    status = 202 if isinstance(made, CheckpointInProgress) else 200
    return to_response(body_answer(made.to_json().encode(), JSON, status=status))
