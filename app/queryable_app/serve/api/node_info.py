"""Serve information on the node itself: status, placement, probes, metrics, pages."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from queryable_app.serve.api import metrics
from queryable_app.serve.api.internal import require_node_token
from queryable_app.serve.api.openapi import METRICS, PLACEMENT, READINESS, SOME_OBJECT
from queryable_app.serve.api.page import HTML, PAGE_HEADERS, page_html
from queryable_app.serve.api.pod_metrics import WORKER_METRICS, pod_exposition
from queryable_app.serve.api.request import list_header, to_response
from queryable_app.serve.api.status import placement_json, readiness, status_json
from queryable_app.serve.node import Node
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.http_text import Answer, body_answer, json_answer, matches_etag


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(tags=["node"])
    registry = metrics.registry(node)

    @router.get("/v1/status", responses=SOME_OBJECT)
    async def status() -> Response:
        """Return the node's replicas (position, end offset, lag, progress), and the state of ingest, Kafka and peers."""
        return to_response(json_answer(status_json(node), reads.identity))

    @router.get("/v1/placement", responses=PLACEMENT)
    async def placement(request: Request) -> Response:
        """Return which nodes host each partition. The entity tag is the epoch, which rises with each change."""
        etag = f'"{node.placement.epoch}"'
        headers = b"etag: %b\r\n%b" % (etag.encode(), reads.identity)
        if_none_match = list_header(request, "if-none-match")
        if if_none_match is not None and matches_etag(if_none_match, etag):
            return to_response(Answer(304, headers, b""))
        return to_response(json_answer(placement_json(node), headers))

    @router.get("/livez", responses=SOME_OBJECT)
    async def live() -> Response:
        """Return 200 while the process answers."""
        return to_response(json_answer({"live": True}))

    @router.get("/readyz", responses=READINESS)
    async def ready() -> Response:
        """Return 200 when every replica that this node's pod serves is complete. Otherwise, and while the node drains, return
        503 with the progress."""
        body = readiness(node)
        return to_response(json_answer(body, status=200 if body["ready"] else 503))

    @router.get("/metrics", responses=METRICS, response_class=PlainTextResponse)
    async def prometheus() -> Response:
        """Return the metrics of the node's pod in Prometheus' text format."""
        own = metrics.exposition(registry)
        return to_response(body_answer(await pod_exposition(node, own), metrics.CONTENT_TYPE))

    @router.get(WORKER_METRICS, include_in_schema=False)
    async def worker_metrics(request: Request) -> Response:
        """Return the metrics of this node alone, to another worker of its pod."""
        require_node_token(request, node)
        return to_response(body_answer(metrics.exposition(registry), metrics.CONTENT_TYPE))

    @router.get("/", include_in_schema=False)
    async def node_page() -> Response:
        return to_response(body_answer(page_html("page.html"), HTML, PAGE_HEADERS))

    @router.get("/docs", include_in_schema=False)
    async def docs_page() -> Response:
        return to_response(body_answer(page_html("docs.html"), HTML, PAGE_HEADERS))

    return router
