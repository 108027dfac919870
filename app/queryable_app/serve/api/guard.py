"""Around every route: how many requests at once, keys out of the path, and failures into problems.

Strategy: one ASGI middleware, and the only place where an exception becomes an answer. Whatever is not a Failure is a
defect: it is logged with an id, and the caller gets the id alone.
"""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.platform.log import event
from queryable_app.serve.api.request import IS_HEAD, SHARE, ClientDisconnected, router_scope, to_response
from queryable_app.serve.base.admission import overloaded
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.node import Node
from queryable_app.serve.peers.peers import FORWARDED_HEADER
from queryable_app.wire.http_text import no_such_resource, problem_answer

_ALWAYS_ANSWERED: Final = ("/livez", "/readyz", "/metrics")
PROBES: Final = tuple(path.encode() for path in _ALWAYS_ANSWERED)
_INTERNAL: Final = "/internal/"
_FORWARDED: Final = FORWARDED_HEADER.encode()
_CLOSED: Final = (
    "the handler is closed"  # uvloop's word for a connection whose end uvicorn has not heard of yet
)
_CLOSE: Final = (b"connection", b"close")  # so that the client's next request goes elsewhere
PIECE_BYTES: Final = 256 * 1024
"""A larger body is sent in pieces."""


class Guard:
    """`identity` is in every problem: header lines that say which node it is from."""

    def __init__(self, app: ASGIApp, node: Node, identity: bytes) -> None:
        self._app = app
        self._node = node
        self._counters = node.counters
        self._identity = identity
        self._bounded = 0  # requests in flight that count against the bound

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        inner = router_scope(scope)
        if scope["method"] == "HEAD":  # every GET answers it; uvicorn, whose scope stays, leaves the body out
            inner |= {"method": "GET", IS_HEAD: True}
        share = inner[SHARE] = AnswerReservation(self._node.answer_budget)
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                route = getattr(inner.get("route"), "path", "")
                self._counters.answers[route, message["status"]] += 1
                if self._node.draining and not is_from_node(inner["path"], inner["headers"]):
                    message["headers"] = [*message["headers"], _CLOSE]
            try:
                if len(message.get("body", b"")) > PIECE_BYTES:
                    share.keep(len(message["body"]))
                    await _send_in_pieces(message, send)
                else:
                    await send(message)
            except RuntimeError as error:
                if _CLOSED not in str(error):
                    raise
                raise ClientDisconnected from None

        counted = not bypasses_admission(inner["path"])
        self._bounded += counted
        self._counters.in_flight += 1
        try:
            most = min(self._node.settings.concurrent_max, self._node.read_settings.concurrent_max)
            if counted and self._bounded > most:
                raise overloaded(f"the node is answering {most} requests already")
            if counted and self._node.answer_budget.taken > self._node.answer_budget.bytes_max:
                raise overloaded(f"answers of {self._node.answer_budget.taken} bytes are in flight")
            await self._app(inner, receive, sending)
        except ClientDisconnected:
            pass
        except Exception as error:
            failure = to_failure(error, inner["path"])
            if started:
                raise  # too late to say it; the answer is broken off, so that nobody takes it for a whole one
            self._counters.failures[failure.reason.slug] += 1
            # Its traceback has this frame, which has the failure: the body of the request would wait for the collector.
            failure.__traceback__ = None
            await to_response(problem_answer(failure, self._identity))(inner, receive, sending)
        finally:
            share.end()
            self._bounded -= counted
            self._counters.in_flight -= 1


async def _send_in_pieces(message: Message, send: Send) -> None:
    """Each piece waits until the client has taken the one before, so that the request goes on counting."""
    body: bytes = message["body"]
    for start in range(0, len(body), PIECE_BYTES):
        more = message.get("more_body", False) or start + PIECE_BYTES < len(body)
        await send({**message, "body": body[start : start + PIECE_BYTES], "more_body": more})


def bypasses_admission(path: str) -> bool:
    """However much there is to do: probes, metrics, and what other nodes ask."""
    return path in _ALWAYS_ANSWERED or path.startswith(_INTERNAL)


def is_from_node(path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Other nodes hear of a drain by heartbeat, and keep their connections: there may be nobody else to ask."""
    return path.startswith(_INTERNAL) or any(name == _FORWARDED for name, _ in headers)


def to_failure(error: Exception, path: str) -> Failure:
    if isinstance(error, Failure):
        return error
    identifier = secrets.token_hex(6)
    trace = "".join(traceback.format_exception(error))
    event("internal-error", id=identifier, path=path, error=repr(error), trace=trace)
    return Failure(
        Reason.INTERNAL,
        f"a defect of this node; its log has more under the id {identifier}",
        "report it with the id; another node may answer",
    )


def router_error_handlers(paths: Sequence[str]) -> dict[Any, Any]:
    """`exception_handlers` for what the router itself refuses; `paths` are the ones there are."""

    async def refuse(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "GET")
            raise invalid("method", f"{shown(request.method)} is not answered at this path", f"use {allowed}")
        raise no_such_resource(request.scope["path"], paths)

    return {HTTPException: refuse}
