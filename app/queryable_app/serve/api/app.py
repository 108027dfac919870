"""Assemble the routes of a node into an ASGI application."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute

from queryable_app.serve.api import (
    changes,
    checkpoints,
    entries,
    history,
    indexes,
    internal,
    key_filter,
    keys,
    multi_get,
    node_info,
    peer_reads,
    records,
    scans,
    windows,
)
from queryable_app.serve.api.guard import Guard, router_error_handlers
from queryable_app.serve.api.openapi import PROBLEMS
from queryable_app.serve.node import Node
from queryable_app.serve.reads.entry_rows import EntryRows
from queryable_app.serve.reads.point import Reads
from queryable_app.serve.reads.window_rows import WindowRows

_DESCRIPTION = """Every answer says how fresh it is (`Qt-` headers), and every failure is `application/problem+json`
with one of a closed set of reasons."""


def window_rows(node: Node) -> WindowRows | None:
    """Return what writes rows of windows, or None if the view has none."""
    if node.spec.aggregate is None or node.windows is None:
        return None
    return WindowRows(node.codec, node.spec.aggregate, node.windows)


def create_app(node: Node) -> FastAPI:
    """Return the application that uvicorn serves behind the protocol of `fast_lane.protocol_class`."""
    reads = Reads(node)
    rows = window_rows(node)
    if rows is not None:
        keyed = [windows.routes(node, reads, rows)]
    elif node.entries is not None:
        keyed = [entries.routes(node, reads, EntryRows(node.codec, node.entries, node.render))]
    else:
        keyed = [module.routes(node, reads) for module in (keys, multi_get, scans, key_filter)]
    if node.spec.history is not None:
        keyed.append(history.routes(node, reads))
    if node.replicas.indexes is not None:
        keyed.append(indexes.routes(node, reads, node.replicas.indexes))
    public = [*keyed, *(module.routes(node, reads) for module in (records, node_info))]
    if node.spec.changes:
        public.append(changes.routes(node, reads))
    between_nodes = [internal.routes(node), peer_reads.routes(node, reads), checkpoints.routes(node)]
    paths = [route.path for router in public for route in router.routes if isinstance(route, APIRoute)]
    app = FastAPI(
        title=f"Queryable topic {node.spec.topic}",
        version="1",
        description=_DESCRIPTION,
        docs_url=None,  # FastAPI's page loads scripts from other hosts; `node_info` serves /docs
        redoc_url=None,
        responses=PROBLEMS,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
        exception_handlers=router_error_handlers(
            [*paths, "/openapi.json"],
            {
                **windows.failures_elsewhere(rows is not None),
                **changes.failures_elsewhere(node.spec.changes),
                **indexes.failures_elsewhere(node.replicas.indexes is not None, rows is not None),
                **entries.failures_elsewhere(node.entries is not None),
            },
        ),
    )
    for router in (*public, *between_nodes):
        app.include_router(router)
    app.add_middleware(Guard, node=node, identity=reads.identity)
    return app
