"""The node as an ASGI application."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute

from queryable_app.serve.api import about, checkpoints, internal, keys, records, scans
from queryable_app.serve.api.answers import PROBLEMS
from queryable_app.serve.api.guard import Guard, router_error_handlers
from queryable_app.serve.node import Node
from queryable_app.serve.reads.point import Reads

_DESCRIPTION = """Every answer says how fresh it is (`Qt-` headers), and every failure is `application/problem+json`
with one of a closed set of reasons."""


def create_app(node: Node) -> FastAPI:
    """What uvicorn serves; `fast_lane.protocol_class` goes with it."""
    reads = Reads(node)
    rooms = [room.routes(node, reads) for room in (keys, scans, records, about)]
    paths = [route.path for room in rooms for route in room.routes if isinstance(route, APIRoute)]
    app = FastAPI(
        title=f"Queryable topic {node.spec.topic}",
        version="1",
        description=_DESCRIPTION,
        docs_url=None,  # its pages load scripts from elsewhere; ours is /docs of about.py
        redoc_url=None,
        responses=PROBLEMS,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
        exception_handlers=router_error_handlers([*paths, "/openapi.json"]),
    )
    for room in (*rooms, internal.routes(node, reads), checkpoints.routes(node)):
        app.include_router(room)
    app.add_middleware(Guard, node=node, identity=reads.identity)
    return app
