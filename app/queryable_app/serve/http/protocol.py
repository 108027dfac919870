"""Bind the protocol of client connections to a node."""

from __future__ import annotations

from typing import Any

from queryable_app.serve.api.access import Gate
from queryable_app.serve.base.admission import overloaded
from queryable_app.serve.http.auth_lane import AuthLane, VerifiedHeads
from queryable_app.serve.http.bounded_protocol import BoundedProtocol
from queryable_app.serve.http.connections import ConnectionAdmission
from queryable_app.serve.http.fast_lane import NO_HISTORY, REQUEST_BYTES_MAX, REQUEST_LINE, FastLane
from queryable_app.serve.http.head_cache import HeadCache, HeadsOfNodes
from queryable_app.serve.http.multi_get_lane import MultiGetHeads
from queryable_app.serve.http.turn import Turn
from queryable_app.serve.node import Node
from queryable_app.serve.reads.local_multi_get import LocalMultiGets
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.http_text import problem_answer


def protocol_class(node: Node) -> type[FastLane]:
    """Return the protocol of one node, as uvicorn's `http=` takes it."""
    reads = Reads(node)
    admission: ConnectionAdmission[BoundedProtocol] = ConnectionAdmission()
    heads = HeadCache(node.peers.accepts_token)
    attributes: dict[str, Any] = {
        "node": node,
        "head_bytes_max": node.settings.head_bytes_max,
        "reads": reads,
        "request_bytes_max": min(REQUEST_BYTES_MAX, node.settings.head_bytes_max),
        "heads": heads,
        "request_line": REQUEST_LINE if node.spec.history is None else NO_HISTORY,
        "multi_get_heads": MultiGetHeads(heads),
        "multi_gets": LocalMultiGets(reads),
        "admission": admission,
        "turn": Turn(reads.plain, node.counters, node.forwarded_reads.send_unsent),
        "open": admission.open,
        "overloaded_answer": problem_answer(
            overloaded("more requests wait than can be answered soon"), reads.identity
        ),
    }
    attributes["heads_of_nodes"] = HeadsOfNodes(heads)
    if node.authenticator is None:
        return type("NodeProtocol", (FastLane,), attributes)
    verified = VerifiedHeads(heads, node.authenticator)
    attributes |= {
        "heads": verified,
        "heads_of_nodes": HeadsOfNodes(verified),
        "verified_heads": verified,
        "gate": Gate(node, node.authenticator),
    }
    return type("NodeProtocol", (AuthLane,), attributes)
