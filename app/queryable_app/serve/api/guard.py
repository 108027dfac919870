"""Wrap every route: bound the requests in flight, cut keys out of paths, and turn failures into problem documents.

Strategy: one ASGI middleware is the only place where an exception becomes an answer. An exception that is not a Failure is a
defect: the node logs it with an id, and the client gets only the id.
"""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.platform.log import event
from queryable_app.serve.api.access import (
    KEY_ACCESS,
    ROUTE_PATH,
    AccessRefused,
    Gate,
    KeyAccess,
    unrestricted_answer,
)
from queryable_app.serve.api.request import (
    IS_HEAD,
    RESERVATION,
    ClientDisconnected,
    router_scope,
    to_response,
)
from queryable_app.serve.base.admission import overloaded
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.node import Node
from queryable_app.serve.peers.peers import FORWARDED_HEADER
from queryable_app.wire.http_text import no_such_resource, problem_answer

_PROBE_PATHS: Final = ("/livez", "/readyz", "/metrics")
PROBES: Final = tuple(path.encode() for path in _PROBE_PATHS)
_INTERNAL: Final = "/internal/"
CHANGES_PATH: Final = "/v1/changes"
"""Requests that do not end. They have a limit of their own."""
_FORWARDED: Final = FORWARDED_HEADER.encode()
# uvloop's message for a connection that is closed before uvicorn notices it.
_CLOSED: Final = "the handler is closed"
_CLOSE: Final = (b"connection", b"close")  # the client's next request then goes to another node
PIECE_BYTES: Final = 256 * 1024
"""The largest part of a body that is sent at once."""


class Guard:
    """Guard the routes of one node. Every problem document has the `identity` header lines, which name the node."""

    def __init__(self, app: ASGIApp, node: Node, identity: bytes) -> None:
        self._app = app
        self._node = node
        self._counters = node.counters
        self._identity = identity
        self._limited = 0  # requests in flight that count against the limit
        self._gate = None if node.authenticator is None else Gate(node, node.authenticator)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        inner = router_scope(scope, self._node.spec.history is not None)
        if scope["method"] == "HEAD":  # GET routes answer it; uvicorn keeps its own scope and drops the body
            inner |= {"method": "GET", IS_HEAD: True}
        reservation = inner[RESERVATION] = AnswerReservation(self._node.answer_budget)
        sender = _Sender(self._node, inner, send, reservation)
        limited = not (bypasses_admission(inner["path"]) or inner["path"] == CHANGES_PATH)
        self._limited += limited
        self._counters.in_flight += 1
        try:
            if limited:
                self._require_room()
            if self._gate is not None:
                await self._gate.admit(inner)
            await self._app(inner, receive, sender)
        except ClientDisconnected:
            pass
        except Exception as error:
            failure = to_failure(error, inner["path"])
            if sender.started:
                raise  # the answer breaks off, so that the client cannot take it for a complete one
            self._counters.failures[failure.reason.slug] += 1
            if self._gate is not None:
                self._audit(failure, inner["path"])
            # The traceback refers to this frame, and the frame to the failure: the cycle would keep the body alive.
            failure.__traceback__ = None
            await to_response(problem_answer(failure, self._identity))(inner, receive, sender)
        finally:
            reservation.end()
            self._limited -= limited
            self._counters.in_flight -= 1

    def _audit(self, failure: Failure, path: str) -> None:
        if isinstance(failure, AccessRefused):
            self._node.audit.refused(
                failure.why, failure.operation or path, failure.detail, failure.subject, failure.key
            )
        elif failure.reason in (Reason.UNAUTHENTICATED, Reason.FORBIDDEN):
            self._node.audit.refused(failure.reason.slug, path, failure.detail)

    def _require_room(self) -> None:
        """Refuse a request beyond the limits on requests and on unsent answers."""
        limit = min(self._node.settings.concurrent_max, self._node.read_settings.concurrent_max)
        if self._limited > limit:
            raise overloaded(f"the node is already answering {limit} requests")
        budget = self._node.answer_budget
        if budget.taken > budget.bytes_max:
            raise overloaded(f"answers of {budget.taken} bytes are in flight")


class _Sender:
    """Send one answer: count it, close connections while the node drains, and split large bodies."""

    __slots__ = ("_node", "_reservation", "_scope", "_send", "started")

    def __init__(self, node: Node, scope: dict[str, Any], send: Send, reservation: AnswerReservation) -> None:
        self._node = node
        self._scope = scope
        self._send = send
        self._reservation = reservation
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._check_access(message["status"])
            self.started = True
            route = getattr(self._scope.get("route"), "path", "")
            self._node.counters.answers[route, message["status"]] += 1
            if self._node.draining and not is_from_node(self._scope["path"], self._scope["headers"]):
                message["headers"] = [*message["headers"], _CLOSE]
        try:
            if len(message.get("body", b"")) > PIECE_BYTES:
                self._reservation.keep(len(message["body"]))
                await self._send_in_pieces(message)
            else:
                await self._send(message)
        except RuntimeError as error:
            if _CLOSED not in str(error):
                raise
            raise ClientDisconnected from None

    def _check_access(self, status: int) -> None:
        """Refuse an answer of another route than the gate has admitted, or one with keys that the caller may not read."""
        admitted = self._scope.get(ROUTE_PATH)
        if admitted is None or status >= 400:
            return
        access: KeyAccess | None = self._scope.get(KEY_ACCESS)
        if getattr(self._scope.get("route"), "path", admitted) != admitted or not (
            access is None or access.applied
        ):
            raise unrestricted_answer()

    async def _send_in_pieces(self, message: Message) -> None:
        """Send each piece after the client has taken the one before, so that the request stays in flight until then."""
        body: bytes = message["body"]
        for start in range(0, len(body), PIECE_BYTES):
            more = message.get("more_body", False) or start + PIECE_BYTES < len(body)
            await self._send({**message, "body": body[start : start + PIECE_BYTES], "more_body": more})


def bypasses_admission(path: str) -> bool:
    """Return whether a path is answered under any load: probes, metrics, and requests of other nodes."""
    return path in _PROBE_PATHS or is_internal(path)


def is_internal(path: str) -> bool:
    """Return whether a path is only for the nodes of the view and its placement controller."""
    return path.startswith(_INTERNAL)


def is_from_node(path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether another node sends a request. It learns of a drain by heartbeat, and keeps its connections."""
    return is_internal(path) or any(name == _FORWARDED for name, _ in headers)


def to_failure(error: Exception, path: str) -> Failure:
    if isinstance(error, Failure):
        return error
    identifier = secrets.token_hex(6)
    trace = "".join(traceback.format_exception(error))
    event("internal-error", id=identifier, path=path, error=repr(error), trace=trace)
    return Failure(
        Reason.INTERNAL,
        f"a defect of this node; its log has details under the id {identifier}",
        "report it with the id; another node may answer",
    )


def router_error_handlers(paths: Sequence[str], elsewhere: Mapping[str, Failure]) -> dict[Any, Any]:
    """Return the `exception_handlers` for requests that match no route.

    `paths` are the public ones, and `elsewhere` has the failures of paths that other views have, by the path's beginning.
    """

    async def refuse(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "GET")
            raise invalid("method", f"{shown(request.method)} is not allowed at this path", f"use {allowed}")
        path: str = request.scope["path"]
        for begin, failure in elsewhere.items():
            if path == begin or path.startswith(begin + "/"):
                raise replace(failure)
        raise no_such_resource(path, paths)

    return {HTTPException: refuse}
