"""The HTTP protocol of a node: plain point reads answered at once, everything else uvicorn's.

Strategy: what arrives while a connection is between two messages, and is exactly one `GET /v1/keys/<key>` whose header
lines say nothing that changes the answer, is answered by one synchronous read and one write, before there is a scope
or a task. When another node has the key, the request goes there, and its answer back, as plainly; what the client sends
meanwhile waits its turn. Other nodes send many such requests on one connection: whatever has arrived of them is answered
with one write. Any other bytes go to uvicorn untouched.
"""

from __future__ import annotations

from typing import ClassVar, Final
from urllib.parse import unquote_to_bytes

from queryable_app.errors import REASONS_TO_TRY_ELSEWHERE, Failure
from queryable_app.serve.api.guard import PIECE_BYTES, to_failure
from queryable_app.serve.base.admission import overloaded
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.http.bounded_protocol import CLOSE_LINE, BoundedProtocol
from queryable_app.serve.http.connections import ConnectionAdmission
from queryable_app.serve.http.plain_heads import HeadCache, HeadKind
from queryable_app.serve.node import Node
from queryable_app.serve.peers.forwarded_reads import ForwardedRead
from queryable_app.serve.peers.peers import HEARTBEAT
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.http_text import JSON, Answer, body_answer, problem_answer
from queryable_app.wire.partitioners import SCATTER

_PREFIX: Final = b"GET /v1/keys/"
_SUFFIX: Final = b" HTTP/1.1"
_HEARTBEAT: Final = b"GET %b HTTP/1.1" % HEARTBEAT.encode()
_REQUEST_BYTES_MAX: Final = 8192
# What may stand in a path and mean nothing else. Other bytes are uvicorn's to accept or refuse.
_PATH_BYTES: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:@/%"


class FastLane(BoundedProtocol):
    """Made by `protocol_class`."""

    request_bytes_max: ClassVar[int]
    heads: ClassVar[HeadCache]

    forward: ForwardedRead | None = None  # the client's request is on its way to another node
    share: AnswerReservation | None = None  # of a large answer that the client has not taken yet
    incomplete_request = b""  # the beginning of a request that another node forwards
    closes_after_answer = False  # once the request is answered

    def data_received(self, data: bytes) -> None:
        if self.forward is not None or self.unparsed:
            self.buffer_input(data)
            return
        if self.incomplete_request:
            data, self.incomplete_request = self.incomplete_request + data, b""
            self.head_since, self.idle_since = None, self.sweeps
        if self.idle_since is not None:
            if data.startswith(_PREFIX):
                end = data.find(b"\r\n")
                head_end = data.find(b"\r\n\r\n", end) + 4
                if head_end <= self.request_bytes_max:
                    head = self.heads[data[end:head_end]]
                    if head is HeadKind.PLAIN:
                        if head_end == len(data) and self._try_answer(data, end):
                            return
                    elif head is HeadKind.FORWARDED:
                        self._answer_forwarded(data)
                        return
            elif (
                data.startswith(_HEARTBEAT)
                and len(data) <= self.request_bytes_max
                and self.heads[data[len(_HEARTBEAT) :]] is HeadKind.FROM_NODE
            ):
                self.transport.write(self.encode_answer(body_answer(self.node.peers.heartbeat_body(), JSON)))
                self.idle_since = self.sweeps
                return
        super().data_received(data)

    # One request of a client.

    def _try_answer(self, data: bytes, end: int) -> bool:
        """False: the answer takes waiting, several nodes, pieces, or words. A defect is uvicorn's way to report."""
        key = data[len(_PREFIX) : end - len(_SUFFIX)]
        if (
            self.reads.waits
            or self.flow.write_paused
            or not data.startswith(_SUFFIX, end - len(_SUFFIX))
            or key.translate(None, _PATH_BYTES)
        ):
            return False
        try:
            answer = self._point(key)
        except Failure as refusal:
            return refusal.reason in REASONS_TO_TRY_ELSEWHERE and self._forward(key, refusal)
        except Exception:
            return False
        if len(answer.body) > PIECE_BYTES:  # so large that the guard bounds what of it is untaken
            self.node.counters.keys_found -= 1  # it is read, and counted, once more
            return False
        self.node.counters.fast_answers += 1  # before the client can look
        if self.node.draining:
            self.transport.write(self.encode_answer(answer, CLOSE_LINE))
            self.transport.close()
        else:
            self.transport.write(self.encode_answer(answer))
        self.idle_since = self.sweeps
        return True

    def _forward(self, key: bytes, refusal: Failure) -> bool:
        if refusal.partition is None or self.reads.replicas.algorithm == SCATTER:
            return False
        forward = self.node.forwarded_reads.plain(self, key, refusal, self.reads.defaults.deadline_ms)
        if forward is None:
            return False
        self.forward, self.idle_since = forward, None
        forward.start()
        return True

    def on_forwarded_response(self, head: bytes, body: bytes) -> None:
        last = self._is_last()
        if last:
            head = head[:-2] + CLOSE_LINE + b"\r\n"
        if len(body) <= PIECE_BYTES:
            self._end(head + body, last)
            return
        share = AnswerReservation(self.node.answers)
        try:
            share.take(len(body))
        except Failure as failure:
            self.on_forward_failure(failure)
            return
        self.transport.write(head)
        self.share = share
        self._end(body, last)
        if not self.flow.write_paused:
            self._end_share()

    def on_forward_failure(self, failure: Failure) -> None:
        self.node.counters.failures[failure.reason.slug] += 1
        last = self._is_last()
        answer = problem_answer(failure, self.reads.identity)
        self._end(self.encode_answer(answer, CLOSE_LINE if last else b""), last)

    def _is_last(self) -> bool:
        return self.closes_after_answer or self.node.draining or (self.eof and not self.unparsed)

    def _end_share(self) -> None:
        if self.share is not None:
            self.share.end()
            self.share = None

    def _end(self, answer: bytes, last: bool) -> None:
        self.forward = None
        self.node.counters.fast_answers += 1
        self.transport.write(answer)
        self.idle_since = self.sweeps
        if last:
            self.transport.close()
        else:
            self.resume_parsing()

    # Many requests of another node.

    def _answer_forwarded(self, data: bytes) -> None:
        """They are answered here or refused, and never passed on. Only what is cut off waits."""
        answers: list[bytes] = []
        size = at = 0
        while at < len(data):
            if size > PIECE_BYTES:
                self._write_many(answers)
                answers, size = [], 0
            if self.flow.write_paused:
                self.unparsed = data[at:]
                self.flow.pause_reading()
                break
            end = data.find(b"\r\n", at)
            head_end = data.find(b"\r\n\r\n", end) + 4 if end >= 0 else 3
            if head_end < 4 and len(data) - at <= self.request_bytes_max:
                self.incomplete_request = data[at:]
                break
            key = data[at + len(_PREFIX) : end - len(_SUFFIX)]
            if (
                not data.startswith(_PREFIX, at)
                or not data.startswith(_SUFFIX, end - len(_SUFFIX))
                or key.translate(None, _PATH_BYTES)
                or self.heads[data[end:head_end]] is not HeadKind.FORWARDED
                or self.reads.waits
            ):
                break
            answer = self.encode_answer(self._answer_locally(key))
            answers.append(answer)
            size += len(answer)
            at = head_end
        self._write_many(answers)
        self.idle_since = self.sweeps
        if self.incomplete_request:
            self.idle_since, self.head_since = None, self.sweeps
        elif not self.unparsed and at < len(data):
            super().data_received(data[at:])

    def _write_many(self, answers: list[bytes]) -> None:
        self.node.counters.fast_answers += len(answers)
        self.transport.write(b"".join(answers))

    def _answer_locally(self, key: bytes) -> Answer:
        try:
            return self._point(key)
        except Exception as error:
            failure = to_failure(error, "/v1/keys/{key}")
            self.node.counters.failures[failure.reason.slug] += 1
            return problem_answer(failure, self.reads.identity)

    def _point(self, key: bytes) -> Answer:
        """For a key as it stands in a path. Raises Failure."""
        raw = unquote_to_bytes(key) if b"%" in key else key
        return self.reads.point(self.node.codec.from_url_bytes(raw), self.reads.defaults)

    # The connection.

    def connection_lost(self, exc: Exception | None) -> None:
        if self.forward is not None:
            self.forward.abandon()
            self.forward = None
        self.incomplete_request = b""
        self._end_share()
        super().connection_lost(exc)

    def refuse(self, failure: Failure) -> None:
        self.incomplete_request = b""
        super().refuse(failure)

    def eof_received(self) -> bool:  # type: ignore[override]
        if self.forward is not None:
            self.eof = True
            return True  # `resume_parsing` comes to the end of it
        return super().eof_received()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_share()
        if self.forward is None:
            self.resume_parsing()

    def shutdown(self) -> None:
        """The server ends. A request that is elsewhere gets its answer first."""
        if self.forward is not None:
            self.closes_after_answer = True
        else:
            super().shutdown()


def protocol_class(node: Node) -> type[FastLane]:
    """What uvicorn is given as `http=`: the protocol, bound to this node."""
    reads = Reads(node)
    admission: ConnectionAdmission[BoundedProtocol] = ConnectionAdmission()
    own = {
        "node": node,
        "head_bytes_max": node.settings.head_bytes_max,
        "reads": reads,
        "request_bytes_max": min(_REQUEST_BYTES_MAX, node.settings.head_bytes_max),
        "heads": HeadCache(node.peers.accepts_token),
        "admission": admission,
        "open": admission.open,
        "too_much": problem_answer(
            overloaded("more requests wait than can be answered soon"), reads.identity
        ),
    }
    return type("NodeProtocol", (FastLane,), own)
