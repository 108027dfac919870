"""A client's read that another node answers: passed on, at most once, or the client is sent there."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.requests import Request

from queryable_app.errors import Failure, Reason
from queryable_app.policy.attempts import no_other_replica_failure
from queryable_app.policy.freshness import ReadOptions
from queryable_app.serve.api.request import Parameters
from queryable_app.serve.node import Node
from queryable_app.serve.peers.client import PeerResponse
from queryable_app.serve.peers.first_answer import first_answer
from queryable_app.serve.peers.peers import FORWARDED_HEADER
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.http_text import Answer

_PASSED_ON: Final = ("accept", "authorization", "if-none-match")
# What speaks of the connection, or what the server adds by itself.
_NOT_PASSED_BACK: Final = (
    b"connection",
    b"content-length",
    b"date",
    b"keep-alive",
    b"server",
    b"transfer-encoding",
)


def is_forwarded(request: Request, node: Node) -> bool:
    """Whether another node passed this request on. It is not passed on again."""
    token = request.headers.get(FORWARDED_HEADER)
    if token is not None and not node.peers.accepts_token(token):
        raise Failure(
            Reason.FORBIDDEN, f"{FORWARDED_HEADER}: only nodes of the view forward requests", "leave it out"
        )
    return token is not None


async def forward(
    request: Request,
    values: Parameters,
    reads: Reads,
    partition: int,
    asked: ReadOptions,
    refusal: Failure,
    deadline: float,
) -> Answer:
    """The answer of the first copy elsewhere that has one. `refusal` is why there is none here."""
    peers = reads.node.peers
    attempts = peers.attempts(partition, deadline, asked)
    if attempts is None:
        raise no_other_replica_failure(refusal)
    target, headers = _target(request, values), _headers(request)
    answer = await first_answer(
        attempts, lambda ordinal: peers.forward(ordinal, target, headers, asked, deadline)
    )
    if answer is None:
        raise no_other_replica_failure(refusal)
    return _passed_back(answer)


def redirect(request: Request, reads: Reads, partition: int, asked: ReadOptions, refusal: Failure) -> Answer:
    """To the advertised address of the node to ask."""
    peers = reads.node.peers
    candidates = peers.candidates(partition, asked)
    if not candidates:
        raise refusal
    query: bytes = request.scope["query_string"]
    location = (
        peers.address(candidates[0]).encode() + request.scope["raw_path"] + (b"?" + query if query else b"")
    )
    return Answer(307, b"location: %b\r\ncontent-length: 0\r\n%b" % (location, reads.identity), b"")


def _target(request: Request, values: Parameters) -> bytes:
    """The same request without what this node decides: how long the other one has, and that it answers itself."""
    pairs = (
        f"{name}={quote(value, safe='', encoding='latin-1')}"
        for name, given in values.items()
        for value in given
        if name not in ("deadline-ms", "route")
    )
    path: bytes = request.scope["raw_path"]
    return path + b"?" + "&".join(pairs).encode()


def _headers(request: Request) -> bytes:
    return b"".join(
        b"%b: %b\r\n" % (name.encode(), value.encode("latin-1"))
        for name in _PASSED_ON
        for value in request.headers.getlist(name)
    )


def _passed_back(answer: PeerResponse) -> Answer:
    lines = [
        b"%b: %b\r\n" % (name, b"1" if name == b"qt-hops" else value)
        for name, value in answer.headers
        if name not in _NOT_PASSED_BACK
    ]
    if answer.status != 304:
        lines.append(b"content-length: %d\r\n" % len(answer.body))
    return Answer(answer.status, b"".join(lines), answer.body)
