"""Forward a client's read with options to another node, or redirect the client there."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.requests import Request

from queryable_app.errors import Failure, Reason
from queryable_app.policy.freshness import ReadOptions
from queryable_app.serve.api.access import certificate_line
from queryable_app.serve.api.request import Parameters
from queryable_app.serve.node import Node
from queryable_app.serve.peers.client import PeerResponse
from queryable_app.serve.peers.peers import FORWARDED_HEADER
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.http_text import Answer

_REQUEST_HEADERS: Final = ("accept", "authorization", "if-none-match")
# These are about the connection, or the server adds them itself.
_DROPPED_RESPONSE_HEADERS: Final = (
    b"connection",
    b"content-length",
    b"date",
    b"keep-alive",
    b"server",
    b"transfer-encoding",
)


def is_forwarded(request: Request, node: Node) -> bool:
    """Whether another node forwarded this request. Such a request is not forwarded again."""
    token = request.headers.get(FORWARDED_HEADER)
    if token is not None and not node.peers.accepts_token(token):
        raise Failure(
            Reason.FORBIDDEN, f"{FORWARDED_HEADER}: only nodes of the view forward requests", "leave it out"
        )
    return token is not None


async def forward(
    request: Request,
    parameters: Parameters,
    reads: Reads,
    partition: int,
    options: ReadOptions,
    refusal: Failure,
    deadline: float,
) -> Answer:
    """Return the answer of a replica on another node. `refusal` is why this node cannot answer."""
    return client_answer(
        await reads.node.forwarded_reads.with_options(
            _target(request, parameters), _headers(request, parameters), partition, options, refusal, deadline
        )
    )


def redirect(
    request: Request, reads: Reads, partition: int, options: ReadOptions, refusal: Failure
) -> Answer:
    """Redirect the client to the advertised address of the first node with the partition."""
    peers = reads.node.peers
    candidates = peers.candidates(partition, options)
    if not candidates:
        raise refusal
    query: bytes = request.scope["query_string"]
    location = (
        peers.address(candidates[0]).encode() + request.scope["raw_path"] + (b"?" + query if query else b"")
    )
    return Answer(307, b"location: %b\r\ncontent-length: 0\r\n%b" % (location, reads.identity), b"")


def _target(request: Request, parameters: Parameters) -> bytes:
    """Return the request's target without its deadline and route, which this node sets, and without the fields, which it takes
    from the answer: a node of an earlier version would refuse them."""
    pairs = (
        f"{name}={quote(value, safe='', encoding='latin-1')}"
        for name, given in parameters.items()
        for value in given
        if name not in ("deadline-ms", "route", "fields")
    )
    path: bytes = request.scope["raw_path"]
    return path + b"?" + "&".join(pairs).encode()


def _headers(request: Request, parameters: Parameters) -> bytes:
    """Return the headers to pass on. If the request names fields, those that choose a form of the value are for this node."""
    names = ("authorization",) if "fields" in parameters else _REQUEST_HEADERS
    lines = b"".join(
        b"%b: %b\r\n" % (name.encode(), value.encode("latin-1"))
        for name in names
        for value in request.headers.getlist(name)
    )
    return lines + certificate_line(request)


def client_answer(response: PeerResponse) -> Answer:
    """Return another node's answer as this node's."""
    lines = [
        b"%b: %b\r\n" % (name, value)
        for name, value in response.headers
        if name not in _DROPPED_RESPONSE_HEADERS
    ]
    if response.status != 304:
        lines.append(b"content-length: %d\r\n" % len(response.body))
    return Answer(response.status, b"".join(lines), response.body)
