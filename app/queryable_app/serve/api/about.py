"""What the node says of itself: status, placement, probes, metrics, the page."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from queryable_app.serve.api import metrics
from queryable_app.serve.api.answers import METRICS, PLACEMENT, READINESS, SOME_OBJECT
from queryable_app.serve.api.page import HTML, PAGE_HEADERS, page_html
from queryable_app.serve.api.request import to_response
from queryable_app.serve.api.status import placement_json, readiness, status_json
from queryable_app.serve.node import Node
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.http_text import Answer, body_answer, json_answer, matches_etag


def routes(node: Node, reads: Reads) -> APIRouter:
    router = APIRouter(tags=["node"])
    registry = metrics.registry(node)

    @router.get("/v1/status", responses=SOME_OBJECT)
    async def status() -> Response:
        """The copies of this node: position, the log's end, lag, progress; and what feeds them."""
        return to_response(json_answer(status_json(node), reads.identity))

    @router.get("/v1/placement", responses=PLACEMENT)
    async def placement(request: Request) -> Response:
        """Which node holds which partition. Its entity tag is the epoch, which a changed placement raises."""
        etag = f'"{node.placement.epoch}"'
        headers = b"etag: %b\r\n%b" % (etag.encode(), reads.identity)
        given = request.headers.getlist("if-none-match")
        if given and matches_etag(",".join(given), etag):
            return to_response(Answer(304, headers, b""))
        return to_response(json_answer(placement_json(node), headers))

    @router.get("/livez", responses=SOME_OBJECT)
    async def live() -> Response:
        """The process answers."""
        return to_response(json_answer({"live": True}))

    @router.get("/readyz", responses=READINESS)
    async def ready() -> Response:
        """200 when every copy that this node serves is complete, else 503 with how far they are; 503 with `draining` when
        the node is about to end."""
        body = readiness(node)
        return to_response(json_answer(body, status=200 if body["ready"] else 503))

    @router.get("/metrics", responses=METRICS, response_class=PlainTextResponse)
    async def prometheus() -> Response:
        """In Prometheus' text format."""
        return to_response(body_answer(metrics.exposition(registry), metrics.CONTENT_TYPE))

    @router.get("/", include_in_schema=False)
    async def node_page() -> Response:
        return to_response(body_answer(page_html("page.html"), HTML, PAGE_HEADERS))

    @router.get("/docs", include_in_schema=False)
    async def docs_page() -> Response:
        return to_response(body_answer(page_html("docs.html"), HTML, PAGE_HEADERS))

    return router
