"""Answer plain point reads at once, and leave every other request to uvicorn.

Strategy: the fast lane takes bytes that arrive between two messages and are exactly one `GET /v1/keys/<key>` whose header
lines change nothing. It answers with one synchronous read and one write, before there is a scope or a task. The most
frequent answer, a live row, takes a way of its own, on which the request is parsed once and nothing is built twice, and on which
the reads of one turn of the event loop are looked up, rendered and written together (`turn.py`). If another node hosts the
key, the request is forwarded, and the client's next input waits until the answer is back. Other nodes send many such requests
on one connection: all that have arrived are answered with one write. Any other bytes go to uvicorn unchanged.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, ClassVar, Final
from urllib.parse import unquote_to_bytes

from queryable_app.errors import REASONS_TO_TRY_ELSEWHERE, Failure
from queryable_app.policy.attempts import no_other_replica_failure
from queryable_app.serve.api.guard import PIECE_BYTES, to_failure
from queryable_app.serve.api.request import HISTORY_END
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.base.write_now import NO_SOCKET, write_now
from queryable_app.serve.http.bounded_protocol import CLOSE_LINE
from queryable_app.serve.http.head_cache import HeadKind, Heads
from queryable_app.serve.http.multi_get_lane import MULTI_GET, MultiGetHeads, MultiGetLane
from queryable_app.serve.http.turn import WAITING_MAX
from queryable_app.serve.peers.forwarded_reads import ForwardedRead
from queryable_app.serve.peers.peers import HEARTBEAT
from queryable_app.wire.http_text import JSON, Answer, body_answer, problem_answer

_PLAIN: Final = HeadKind.PLAIN
PREFIX: Final = b"GET /v1/keys/"
SUFFIX: Final = b" HTTP/1.1"
_HEARTBEAT: Final = b"GET %b HTTP/1.1" % HEARTBEAT.encode()
REQUEST_BYTES_MAX: Final = 8192
# Of a path in which each byte stands for itself.
REQUEST_LINE: Final = re.compile(rb"GET /v1/keys/([A-Za-z0-9\-._~!$&'()*+,;=:@/]+) HTTP/1\.1(?=\r)").match
# In a view with history, this end of a path is none of its key.
NO_HISTORY: Final = re.compile(
    rb"GET /v1/keys/([A-Za-z0-9\-._~!$&'()*+,;=:@/]+)(?<!/history) HTTP/1\.1(?=\r)"
).match
# A path of these bytes has one meaning. uvicorn accepts or refuses any other.
_PATH_BYTES: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:@/%"


class FastLane(MultiGetLane):
    """Answer plain point reads of one connection. `protocol_class` binds it to a node."""

    heads: Heads  # of the class, like the next one, unless the client lacks a certificate
    heads_of_nodes: ClassVar[Heads]
    request_line: ClassVar[Any]  # matches the first line of a request for a key

    credentials = b""  # the line with the client's token, for another node
    forward: ForwardedRead | None = None  # the client's request, while another node answers it
    reservation: AnswerReservation | None = None  # of a large answer that is not sent completely
    incomplete_request = b""  # the beginning of a request that another node forwards
    descriptor = NO_SOCKET  # the connection's socket, as `write_now` takes it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.lacks_certificate:
            self.heads, self.multi_get_heads = self.heads_of_nodes, MultiGetHeads(self.heads_of_nodes)
        connection = transport.get_extra_info("socket")
        if connection is not None and transport.get_extra_info("sslcontext") is None:
            self.descriptor = connection.fileno()

    def write_answer(self, answer: bytes) -> None:
        write_now(self.transport, self.descriptor, answer)

    def data_received(self, data: bytes) -> None:
        """Answer a request whose row is found at once; `_receive` takes any other input."""
        request = self.request_line(data)
        if (
            request is not None
            and self.idle_since is not None
            and len(data) <= self.request_bytes_max
            and self.heads.get(data[request.end() :]) is _PLAIN
            and not self.unparsed
            and not self.flow.write_paused
        ):
            self.turn.read(self, request[1], data)
        else:
            self._receive(data)

    def take_unanswered(self, key: bytes, data: bytes, found: Failure | None) -> None:
        """Forward a read that only other nodes can answer, or take any other way to its answer."""
        if found is None or self.idle_since is None:
            self._receive(data)
        else:
            self._forward(key, found)

    def _receive(self, data: bytes) -> None:
        self.turn.flush()
        if self.forward is not None or self.queued is not None or self.unparsed:
            self.buffer_input(data)
            return
        if self.head:
            data = self.take_head() + data
        if self.incomplete_request:
            data, self.incomplete_request = self.incomplete_request + data, b""
            self.head_since, self.idle_since = None, self.sweeps
        if self.idle_since is not None:
            if data.startswith(PREFIX):
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
                    elif head_end == len(data) and self.refuse_at_once():
                        return
            elif data.startswith(MULTI_GET):
                if self.queue_multi_get(data):
                    return
            elif (
                data.startswith(_HEARTBEAT)
                and len(data) <= self.request_bytes_max
                and self.heads[data[len(_HEARTBEAT) :]] is HeadKind.FROM_NODE
            ):
                self.write_answer(self.encode_answer(body_answer(self.node.peers.heartbeat_body(), JSON)))
                self.idle_since = self.sweeps
                return
        super().data_received(data)

    def refuse_at_once(self) -> bool:
        """Refuse a request by what its head was found to be. Return False if that needs a task."""
        return False

    # One request of a client.

    def _try_answer(self, data: bytes, end: int) -> bool:
        """Answer or forward a request. Return False if it needs a task: to wait, to read several nodes, to send a large answer,
        or for most failures."""
        key = data[len(PREFIX) : end - len(SUFFIX)]
        if (
            self.reads.plain_reads_wait
            or self.flow.write_paused
            or not data.startswith(SUFFIX, end - len(SUFFIX))
            or key.translate(None, _PATH_BYTES)
            or (self.node.spec.history is not None and key.endswith(HISTORY_END))
        ):
            return False
        elsewhere = None if b"%" in key else self.reads.plain.hosted_elsewhere(key)
        if elsewhere is not None:
            self._forward(key, elsewhere)
            return True
        try:
            answer = self._read(key)
        except Failure as refusal:
            if (
                refusal.reason not in REASONS_TO_TRY_ELSEWHERE
                or refusal.partition is None
                or self.reads.partitioning.scattered
            ):
                return False
            self._forward(key, refusal)
            return True
        except Exception:
            return False  # the task meets the defect again, and reports it
        if len(answer.body) > PIECE_BYTES:  # the guard bounds unsent bytes of large answers
            self.node.counters.keys_found -= 1  # the task reads, and counts, the key again
            return False
        self.node.counters.fast_answers += 1  # before the client has the answer
        if self.node.draining:
            self.transport.write(self.encode_answer(answer, CLOSE_LINE))
            self.transport.close()
        else:
            self.write_answer(self.encode_answer(answer))
        self.idle_since = self.sweeps
        return True

    def _forward(self, key: bytes, refusal: Failure) -> None:
        """Forward a read, or refuse it at once if no other node has the partition: clients repeat such a read many times while
        this node hydrates."""
        forward = self.node.forwarded_reads.plain(
            self,
            key,
            refusal,
            self.loop.time() + self.reads.defaults.deadline_ms / 1000,
            self.credentials,
        )
        if forward is None:
            self.on_forward_failure(no_other_replica_failure(refusal))
            return
        self.forward, self.idle_since = forward, None
        forward.start()

    def on_forwarded_response(self, head: bytes, body: bytes) -> None:
        """Send the answer of another node."""
        if len(body) <= PIECE_BYTES and not (
            self.unparsed or self.eof or self.closes_after_answer or self.node.draining
        ):
            self.forward = None
            self.node.counters.fast_answers += 1
            self.turn.write(self, head + body)
            self.idle_since = self.sweeps
            return
        self.turn.flush()
        last = self.is_last()
        if last:
            head = head[:-2] + CLOSE_LINE + b"\r\n"
        if len(body) <= PIECE_BYTES:
            self._finish_forward(head + body, last)
            return
        reservation = AnswerReservation(self.node.answer_budget)
        try:
            reservation.take(len(body))
        except Failure as failure:
            self.on_forward_failure(failure)
            return
        self.transport.write(head)
        self.reservation = reservation
        self._finish_forward(body, last)
        if not self.flow.write_paused:
            self._end_reservation()

    def on_forward_failure(self, failure: Failure) -> None:
        """Send the failure of a read that no other node answers."""
        self.turn.flush()
        self.node.counters.failures[failure.reason.slug] += 1
        last = self.is_last()
        answer = problem_answer(failure, self.reads.identity)
        self._finish_forward(self.encode_answer(answer, CLOSE_LINE if last else b""), last)

    def _end_reservation(self) -> None:
        if self.reservation is not None:
            self.reservation.end()
            self.reservation = None

    def _finish_forward(self, answer: bytes, last: bool) -> None:
        self.forward = None
        self.node.counters.fast_answers += 1
        self.write_answer(answer)
        self.idle_since = self.sweeps
        if last:
            self.transport.close()
        else:
            self.resume_parsing()

    # Many requests of another node.

    def _answer_forwarded(self, data: bytes) -> None:
        """Answer every complete request in `data`, or refuse it; forward none. Keep an incomplete one for later."""
        at = 0
        while at < len(data):
            end = data.find(b"\r\n", at)
            head_end = data.find(b"\r\n\r\n", end) + 4 if end >= 0 else 3
            if head_end < 4 and len(data) - at <= self.request_bytes_max:
                self.incomplete_request = data[at:]
                break
            if (
                not data.startswith(PREFIX, at)
                or not data.startswith(SUFFIX, end - len(SUFFIX))
                or self.heads[data[end:head_end]] is not HeadKind.FORWARDED
                or self.reads.plain_reads_wait
            ):
                break
            # Another node repeats its header lines, so nearly always they separate all the keys in `data`.
            tail = data[end - len(SUFFIX) : head_end]
            last = data.rfind(tail)
            keys = data[at + len(PREFIX) : last].split(tail + PREFIX)
            if b"".join(keys).translate(None, _PATH_BYTES):
                last = end - len(SUFFIX)
                keys = [data[at + len(PREFIX) : last]]
                if keys[0].translate(None, _PATH_BYTES):
                    break
            answered = self._answer_keys(keys)
            if answered < len(keys):
                left = (tail + PREFIX).join(keys[answered:])
                self.unparsed = PREFIX + left + data[last:]
                self.flow.pause_reading()
                break
            at = last + len(tail)
        self.idle_since = self.sweeps
        if self.incomplete_request:
            self.idle_since, self.head_since = None, self.sweeps
        elif not self.unparsed and at < len(data):
            super().data_received(data[at:])

    def _answer_keys(self, keys: list[bytes]) -> int:
        """Answer the reads of these keys. Return how many are answered: fewer if the other node does not take the answers."""
        self.turn.server_lines(self.server_state)  # the answers begin with them
        for start in range(0, len(keys), WAITING_MAX):
            some = keys[start : start + WAITING_MAX]
            percent = any([b"%" in key for key in some])
            found = [None] * len(some) if percent else self.reads.plain.found_at_once(some)
            answers: list[bytes] = []
            size = 0
            for at, answer in enumerate(found):
                if self.flow.write_paused:
                    self.node.counters.keys_found -= sum([isinstance(left, bytes) for left in found[at:]])
                    return start + at
                if not isinstance(answer, bytes):
                    answer = self.encode_answer(self._answer_locally(some[at]))
                answers.append(answer)
                size += len(answer)
                if size > PIECE_BYTES:
                    self._write_many(answers)
                    answers, size = [], 0
            if answers:
                self._write_many(answers)
        return len(keys)

    def _write_many(self, answers: list[bytes]) -> None:
        self.node.counters.fast_answers += len(answers)
        self.write_answer(b"".join(answers))

    def _answer_locally(self, key: bytes) -> Answer:
        try:
            return self._read(key)
        except Exception as error:
            failure = to_failure(error, "/v1/keys/{key}")
            self.node.counters.failures[failure.reason.slug] += 1
            return problem_answer(failure, self.reads.identity)

    def _read(self, key: bytes) -> Answer:
        """Read a key as it stands in a path. Raises Failure."""
        raw = unquote_to_bytes(key) if b"%" in key else key
        return self.reads.point(self.node.codec.from_url_bytes(raw), self.reads.defaults)

    # The connection.

    def connection_lost(self, exc: Exception | None) -> None:
        self.turn.flush()  # afterwards the socket's number may be of another connection
        if self.forward is not None:
            self.forward.abandon()
            self.forward = None
        self.incomplete_request = b""
        self._end_reservation()
        self.descriptor = NO_SOCKET
        super().connection_lost(exc)

    def refuse(self, failure: Failure) -> None:
        self.incomplete_request = b""
        super().refuse(failure)

    def eof_received(self) -> bool:  # type: ignore[override]
        self.turn.flush()
        self.release_head()
        if self.forward is not None or self.queued is not None:
            self.eof = True
            return True  # `resume_parsing` ends the connection after the answer
        return super().eof_received()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_reservation()
        if self.forward is None and self.queued is None:
            self.resume_parsing()

    def shutdown(self) -> None:
        """Close the connection, after the answer of a request that is forwarded or queued."""
        self.turn.flush()
        self.release_head()
        if self.forward is not None or self.queued is not None:
            self.closes_after_answer = True
        else:
            super().shutdown()
