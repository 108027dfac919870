"""Serve `/internal/v1` to nodes and to the placement controller: placement, read settings, heartbeat.

Every route below `/internal` requires the node token; a client's token is not accepted. `peer_reads` and `checkpoints` serve
the other internal routes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from queryable_app.config.topic_spec import READ_FIELDS, SpecError, parse_read
from queryable_app.contract import NODE_HEADER, PLACEMENT_PATH, READ_PATH, REKEY_PATH
from queryable_app.errors import Failure, Reason, invalid
from queryable_app.placement.assignment import Placement
from queryable_app.platform.clock import monotonic_ms
from queryable_app.serve.api.request import internal_json_body, to_response
from queryable_app.serve.api.status import read_settings_json
from queryable_app.serve.feed.data_loss import check_source
from queryable_app.serve.node import Node
from queryable_app.serve.peers.peers import HEARTBEAT
from queryable_app.serve.replication.assigned_replicas import PlacementRefused
from queryable_app.serve.store.rekeyed_replica import RekeyedReplica
from queryable_app.wire.checked import OFFSET_MAX, PARTITION_MAX, Malformed, field, text, whole
from queryable_app.wire.http_text import JSON, body_answer, json_answer

_STATE_CHARS_MAX: Final = 40
_DETAIL_CHARS_MAX: Final = 2000


def routes(node: Node) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get(PLACEMENT_PATH)
    async def placement(request: Request) -> Response:
        require_node_token(request, node)
        return to_response(body_answer(node.placement.to_json().encode(), JSON))

    @router.put(PLACEMENT_PATH)
    async def follow_placement(request: Request) -> Response:
        """Follow a placement of a higher epoch. Answer the epoch that the node follows now."""
        body = await internal_body(request, node)
        with refuse_malformed_body():
            newer = Placement.from_raw(body)
        try:
            return to_response(json_answer({"epoch": node.assigned_replicas.follow(newer)}))
        except PlacementRefused as error:
            raise invalid("body", f"is no placement for this node: {error}", "check the sender") from None

    @router.put(READ_PATH)
    async def apply_read_settings(request: Request) -> Response:
        """Apply read settings from the next request on. Answer the settings that are in effect."""
        body = await internal_body(request, node)
        with refuse_malformed_body():
            for name in READ_FIELDS:  # a field that is left out would be turned off
                field(body, name, lambda value: value)
        try:
            node.apply_read_settings(parse_read(body))
        except SpecError as error:
            raise invalid("body", str(error), "send spec.read of the resource") from None
        return to_response(json_answer(read_settings_json(node)))

    @router.put(REKEY_PATH)
    async def note_rekey_job(request: Request) -> Response:
        """Take the state of the rekey job, and answer how far each replica here is in the source topic."""
        body = await internal_body(request, node)
        with refuse_malformed_body():
            node.rekey_job.state = field(body, "state", text)[:_STATE_CHARS_MAX]
            node.rekey_job.detail = field(body, "detail", text)[:_DETAIL_CHARS_MAX]
            node.rekey_job.run = field(body, "run", whole(0, OFFSET_MAX))
            node.rekey_job.reported_at_ms = monotonic_ms()
            if body.get("sourcePartitions"):  # a job of an earlier version does not report them
                node.replicas.note_topic_partitions(field(body, "sourcePartitions", whole(1, PARTITION_MAX)))
            source_id = field(body, "sourceId", text) if "sourceId" in body else ""
        for replica in rekeyed_replicas(node):
            check_source(replica, source_id, node.spec.on_data_loss)
        known = {replica.sources.topic_id.decode(errors="replace") for replica in rekeyed_replicas(node)}
        return to_response(
            json_answer({"replicas": rekey_positions(node), "sourceIds": sorted(known - {""})})
        )

    @router.get(HEARTBEAT)
    async def heartbeat(request: Request) -> Response:
        """Answer a heartbeat whose header lines the fast lane does not take."""
        require_node_token(request, node)
        return to_response(body_answer(node.peers.heartbeat_body(), JSON))

    return router


def rekey_positions(node: Node) -> list[dict[str, Any]]:
    """Return the source positions of the replicas that take rows."""
    return [
        {
            "partition": replica.partition,
            "sources": replica.sources.offsets,
            "starts": [(row, *clock) for _, row, clock in replica.sources.starts],
            "refused": sorted(replica.sources.refused_runs),
            "sourceId": replica.sources.topic_id.decode(errors="replace"),
        }
        for replica in rekeyed_replicas(node)
        if replica.writable
    ]


def rekeyed_replicas(node: Node) -> list[RekeyedReplica]:
    return [each for each in node.replicas.by_partition.values() if isinstance(each, RekeyedReplica)]


async def internal_body(request: Request, node: Node) -> Any:
    """Return the JSON body of an internal request, after its token is checked."""
    require_node_token(request, node)
    return await internal_json_body(request, node)


def require_node_token(request: Request, node: Node) -> None:
    given = request.headers.get(NODE_HEADER)
    if given is None:
        raise Failure(
            Reason.UNAUTHENTICATED,
            "this path is for the nodes of the view",
            "use the paths under /v1, which answer for all nodes",
        )
    if not node.peers.accepts_token(given):
        raise Failure(
            Reason.FORBIDDEN,
            "the token is not the one of this view's nodes",
            "give every node of the view the same token",
        )


@contextmanager
def refuse_malformed_body() -> Iterator[None]:
    """Turn `Malformed` into a failure of the request."""
    try:
        yield
    except Malformed as error:
        raise invalid("body", str(error), "send what a node of this release sends") from None
