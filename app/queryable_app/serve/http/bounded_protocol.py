"""Bound what a connection may cost: size and time of a head, time of a body, idle time, unread answers.

Strategy: one sweep a second over all connections checks the times, so a request sets no timer. A request that needs a task
first waits for its admission; if too many wait, it is refused here, without a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.server import ServerState

from queryable_app.errors import Failure, Reason, invalid
from queryable_app.serve.api.guard import CHANGES_PATH, PROBES, bypasses_admission, is_from_node, is_internal
from queryable_app.serve.api.request import ARRIVED_AT
from queryable_app.serve.base.background import guarded
from queryable_app.serve.http.body_budget import BodyReservation
from queryable_app.serve.http.connections import (
    ConnectionAdmission,
    bypasses_connection_limit,
    certificate_required,
    too_many_connections,
)
from queryable_app.serve.http.strict_protocol import StrictProtocol
from queryable_app.serve.http.turn import Turn
from queryable_app.serve.node import Node
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.http_text import Answer, problem_answer

CLOSE_LINE: Final = b"connection: close\r\n"
_SWEEP_SECONDS: Final = 1.0
# A refused client has this long to read the refusal: closing on unread bytes would reset the connection.
_LINGER_SWEEPS: Final = 2


class BoundedProtocol(StrictProtocol):
    """Bound one connection. Times are counted in sweeps."""

    node: ClassVar[Node]
    reads: ClassVar[Reads]
    turn: ClassVar[Turn]  # of the node's event loop
    admission: ClassVar[ConnectionAdmission[BoundedProtocol]]
    open: ClassVar[dict[BoundedProtocol, None]]  # the open connections of `admission`
    overloaded_answer: ClassVar[Answer]  # made once: refusing must be cheap
    sweeps: ClassVar[int] = 0
    sweeping: ClassVar[bool] = False

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.idle_since: int | None = None  # between two requests, with every answer sent
        self.head_since: int | None = None
        self.body_since: int | None = None
        self.write_paused_since: int | None = None  # the client does not read its answers
        self.refused_since: int | None = None  # the refusal is sent
        self.eof = False  # the client has closed its sending side
        self.body_reservation: BodyReservation | None = None  # of the current request
        self.over_connection_limit = False  # until a request bypasses the limit
        self.lacks_certificate = False  # and clients need one; until a node shows its token

    def encode_answer(self, answer: Answer, more: bytes = b"") -> bytes:
        """Return the bytes of an answer, with the server's header lines and `more`."""
        return b"%b%b%b%b\r\n%b" % (
            STATUS_LINE[answer.status],
            self.turn.server_lines(self.server_state),
            answer.headers,
            more,
            answer.body,
        )

    # The state of the connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self.sweeping:
            self._sweep_later()
        self.idle_since = self.sweeps
        self.admission.admit(self, self.node.connections_max, self.sweeps)
        self.node.counters.connections = len(self.open)
        tls = self.node.tls
        self.lacks_certificate = (
            tls is not None and tls.client_auth == "require" and not self.client_certificate
        )
        if self.over_connection_limit:  # keep the fast lane from answering: `on_request_head` decides
            self.idle_since, self.head_since = None, self.sweeps

    @property
    def client_certificate(self) -> Mapping[str, Any]:
        """Return the verified certificate of the client, with its `subject`, as Python's `ssl` does. Empty: it has shown none."""
        certificate: Mapping[str, Any] | None = self.transport.get_extra_info("peercert")
        return certificate or {}

    @property
    def waiting_since(self) -> int | None:
        """Return when the connection began to wait for its client; None while a request is being answered."""
        if self.idle_since is not None:
            return self.idle_since
        answering = self.cycle is not None and not self.cycle.response_complete
        return None if answering else self.head_since

    def close_for_another(self) -> None:
        """Close at once, to make room for another connection."""
        self.node.counters.connections_closed_for_others += 1
        self._deregister()
        self.transport.abort()

    def _deregister(self) -> None:
        self.open.pop(self, None)
        self.node.counters.connections = len(self.open)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deregister()
        if self.body_reservation is not None:
            self.body_reservation.end()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Note that the client sends no more. True keeps the connection open until the client has its answers."""
        self.eof = True
        if self.refused_since is not None:
            return False
        if self.unparsed:
            return True  # `resume_parsing` calls this again at the end of the input
        if self.refusal is None and (self.head_since is not None or self._body_incomplete()):
            field = "body" if self.in_body else "request"
            self.refuse(invalid(field, "ends before its time", "send as much as its length says"))
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.scope["path"] == CHANGES_PATH:
                return False  # its answer has no end
            if self.refusal is None:
                self.cycle.keep_alive = False  # this is the connection's last request
            return True
        return False

    def resume_parsing(self) -> None:
        super().resume_parsing()
        if self.eof and not self.unparsed and not self.eof_received():
            self.transport.close()

    def _body_incomplete(self) -> bool:
        return self.body_since is not None and not self.cycle.response_complete

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.idle_since = None
        self.head_since = self.sweeps

    def on_request_head(self) -> None:
        self.head_since = None
        if self.over_connection_limit:
            limit = self.node.connections_max
            path = self.url.partition(b"?")[0]
            if len(self.open) > limit and not bypasses_connection_limit(path, self.headers, self.node.peers):
                self.node.counters.failures[Reason.OVERLOADED.slug] += 1
                raise too_many_connections(limit)
            self.over_connection_limit = False
        if self.lacks_certificate:
            self._check_certificate()
        self.body_since = self.sweeps

    def _check_certificate(self) -> None:
        """Let a client without a certificate read probes only, since the kubelet has none. Nodes have a token."""
        path = self.url.partition(b"?")[0]
        if path in PROBES:
            return
        if not bypasses_connection_limit(path, self.headers, self.node.peers):
            self.node.counters.failures[Reason.UNAUTHENTICATED.slug] += 1
            raise certificate_required()
        self.lacks_certificate = False

    def on_request_complete(self) -> None:
        self.body_since = None
        self._mark_idle()

    def on_response_complete(self) -> None:
        last = not self.pipeline
        super().on_response_complete()
        if self.refusal is None:
            self._mark_idle()
        elif last and self.refused_since is None:
            self._send_refusal(self.refusal)

    def _mark_idle(self) -> None:
        if self.head_since is None and self.body_since is None and self.cycle.response_complete:
            self.idle_since = self.sweeps

    # Requests that need a task.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope[ARRIVED_AT] = self.loop.time()  # type: ignore[typeddict-unknown-key]
        if cycle.disconnected and self.refusal is not None:
            self._send_refusal(self.refusal)
            return
        limit = self.node.settings.body_bytes_max
        if is_internal(cycle.scope["path"]):
            limit *= 2  # a node sends a client's key as base64
        reservation = BodyReservation(self.node.body_budget, limit, cycle.scope["headers"])
        self.body_reservation = reservation
        refused = reservation.receive(len(cycle.body))
        if refused is not None:
            self._refuse_body(cycle, refused)
        elif bypasses_admission(cycle.scope["path"]):
            super()._start_asgi_task(cycle, reservation.wrap(app))
        else:
            self.node.read_admission.enqueue(_QueuedRequest(self, cycle, reservation.wrap(app)))

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.body_reservation is not None and not self.pipeline and not self.cycle.response_complete:
            refused = self.body_reservation.receive(len(body))
            if refused is not None:
                self.refuse(refused)

    def _refuse_body(self, cycle: RequestResponseCycle, failure: Failure) -> None:
        """Refuse a body at its head. If the node is overloaded, receive and drop the body, so that the connection stays
        usable; if the body is too large, close the connection."""
        if failure.reason is Reason.OVERLOADED or cycle is not self.cycle:
            cycle.keep_alive &= failure.reason is Reason.OVERLOADED
            self._reject(cycle, problem_answer(failure, self.reads.identity))
        else:
            self.refuse(failure)

    def _reject(
        self, cycle: RequestResponseCycle, answer: Answer, reason: Reason = Reason.OVERLOADED
    ) -> None:
        if self.body_reservation is not None:
            self.body_reservation.end()
        if self.node.draining and not is_from_node(cycle.scope["path"], cycle.scope["headers"]):
            cycle.keep_alive = False
        self.node.counters.failures[reason.slug] += 1
        self.node.counters.answers["", answer.status] += 1
        encoded = self.encode_answer(answer, b"" if cycle.keep_alive else CLOSE_LINE)
        if cycle.scope["method"] == "HEAD":
            encoded = encoded[: len(encoded) - len(answer.body)]
        self.transport.write(encoded)
        cycle.response_started = cycle.response_complete = True  # uvicorn then drops the rest of the body
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    # Answers that the client does not read.

    def pause_writing(self) -> None:
        super().pause_writing()
        self.write_paused_since = self.sweeps

    def resume_writing(self) -> None:
        super().resume_writing()
        self.write_paused_since = None

    # Refusals and times.

    def timeout_keep_alive_handler(self) -> None:
        """Ignore uvicorn's timer, which does not see the fast lane; the sweep closes idle connections."""

    def refuse(self, failure: Failure) -> None:
        if self.refusal is not None:
            return
        self.refusal = failure
        is_of_last_request = self._body_incomplete()  # and not of bytes behind that request
        self.idle_since = self.head_since = self.body_since = None
        self.unparsed = b""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._send_refusal(failure)
        elif is_of_last_request:
            cycle.disconnected = True  # its task stops
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
            elif not self.pipeline:  # otherwise `_start_asgi_task` sends it behind the earlier answers
                self._send_refusal(failure)

    def _send_refusal(self, failure: Failure) -> None:
        """Send the refusal and close the sending side; the sweep closes the connection later."""
        self.refused_since = self.sweeps
        self.idle_since = None
        if self.transport.is_closing():
            return
        self.transport.write(self.encode_answer(problem_answer(failure, self.reads.identity), CLOSE_LINE))
        if self.eof:
            self.transport.close()
        elif self.transport.can_write_eof():
            self.transport.write_eof()

    @classmethod
    def _sweep_later(cls) -> None:
        cls.sweeping = True
        asyncio.get_running_loop().call_later(_SWEEP_SECONDS, cls._sweep)

    @classmethod
    def _sweep(cls) -> None:
        cls.sweeps += 1
        cls.sweeping = False
        for connection in tuple(cls.open):
            with guarded("BoundedProtocol.sweep"):
                connection._check_times()
        if cls.open:
            cls._sweep_later()

    def _check_times(self) -> None:
        settings, now = self.node.settings, self.sweeps
        if self.refused_since is not None:
            if now - self.refused_since > _LINGER_SWEEPS:
                self.transport.abort()
        elif self.write_paused_since is not None:
            if now - self.write_paused_since > settings.idle_seconds_max:
                self.transport.abort()  # `close` would wait for the client to read
        elif self.idle_since is not None:
            if now - self.idle_since > settings.idle_seconds_max:
                self.transport.close()
        elif self.head_since is not None:
            if now - self.head_since > settings.head_seconds_max:
                self.refuse(_too_slow("request", "head", settings.head_seconds_max))
        elif self.body_since is not None and now - self.body_since > settings.body_seconds_max:
            self.refuse(_too_slow("body", "body", settings.body_seconds_max))


def _too_slow(field: str, what: str, seconds: int) -> Failure:
    return invalid(
        field, f"its {what} did not arrive within {seconds} s", "send it faster, or in smaller requests"
    )


class _QueuedRequest(NamedTuple):
    """Hold a request that waits for admission."""

    connection: BoundedProtocol
    cycle: RequestResponseCycle
    app: Any

    def is_abandoned(self) -> bool:
        return self.cycle.disconnected

    def begin(self) -> None:
        StrictProtocol._start_asgi_task(self.connection, self.cycle, self.app)

    def refuse(self) -> None:
        if self.connection.flow.write_paused:
            self.begin()  # its answer must wait until the client reads the earlier ones
        else:
            self.connection._reject(self.cycle, self.connection.overloaded_answer)
