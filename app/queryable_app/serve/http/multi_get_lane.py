"""Answer small multi-gets without a task, in their scheduling slot.

Strategy: the lane takes bytes that arrive between two messages and are exactly one `POST /v1/multi-get` whose parameters are
all defaults. The body may arrive a moment after the head, as many clients send it. Like every multi-get the request waits for
its admission, and is refused if too many wait. A request that `LocalMultiGets` does not answer goes to uvicorn, as if it had
just arrived.
"""

from __future__ import annotations

import asyncio
import re
from typing import ClassVar, Final

from queryable_app.errors import Reason
from queryable_app.serve.http.bounded_protocol import CLOSE_LINE, BoundedProtocol
from queryable_app.serve.http.head_cache import BlockCache, HeadKind, Heads
from queryable_app.serve.reads.local_multi_get import BODY_BYTES_MAX, LocalMultiGets
from queryable_app.wire.http_text import Answer

_ROUTE: Final = "/v1/multi-get"
MULTI_GET: Final = b"POST /v1/multi-get HTTP/1.1\r\n"
_LINE_BYTES: Final = len(MULTI_GET) - 2  # a block of header lines begins with the end of the line before
_CONTENT_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,5})[ \t]*(?=\r\n)", re.IGNORECASE)
_PASSING_BY: Final = 64
_BODY_WAIT_SECONDS: Final = 0.005


class MultiGetLane(BoundedProtocol):
    """Answer small multi-gets of one connection. `FastLane` completes this class."""

    request_bytes_max: ClassVar[int]
    multi_gets: ClassVar[LocalMultiGets]
    multi_get_heads: MultiGetHeads  # of the class

    queued: QueuedMultiGet | None = None  # the client's request, while it waits for its admission
    head = b""  # of a request whose body has not arrived yet
    head_timer: asyncio.TimerHandle | None = None
    passing_by = 0  # so many requests do not take the lane: it had no answer for the one before
    closes_after_answer = False  # the server shuts down

    def queue_multi_get(self, data: bytes) -> bool:
        """Queue a request. Return False if it needs a task."""
        head_end = data.find(b"\r\n\r\n", _LINE_BYTES) + 4
        if (
            not 4 <= head_end <= self.request_bytes_max
            or self.reads.plain_reads_wait
            or self.flow.write_paused
        ):
            return False
        length = self.multi_get_heads[data[_LINE_BYTES:head_end]]
        received = len(data) - head_end
        if not received <= length <= BODY_BYTES_MAX or (received and received < length):
            return False
        if self.passing_by:
            self.passing_by -= 1
            return False
        if received < length:
            self.head, self.idle_since = data, None
            self.head_timer = self.loop.call_later(_BODY_WAIT_SECONDS, self.release_head)
            return True
        self.queued, self.idle_since = QueuedMultiGet(self, data, head_end), None
        self.node.read_admission.enqueue(self.queued)
        return True

    def take_head(self) -> bytes:
        """Return the head that waits for its body, to be taken together with the input behind it."""
        head, self.head = self.head, b""
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None
            self.idle_since = self.sweeps
        return head

    def release_head(self) -> None:
        """Give the head that waits for its body to uvicorn, which bounds the time of the body."""
        head = self.take_head()
        if head:
            super().data_received(head)

    def begin_multi_get(self, request: QueuedMultiGet) -> None:
        self.queued = None
        if self._has_room():  # otherwise the guard refuses it
            answer = self._multi_get(request)
            if answer is not None:
                self._finish_multi_get(answer)
                return
            self.passing_by = _PASSING_BY
        self.idle_since = self.sweeps
        later, self.unparsed = self.unparsed, b""
        super().data_received(request.data)
        self.unparsed += later

    def refuse_multi_get(self) -> None:
        self.queued = None
        self.node.counters.failures[Reason.OVERLOADED.slug] += 1
        self._finish_multi_get(self.overloaded_answer)

    def _has_room(self) -> bool:
        """Return whether the guard would admit the request: the limits on requests and on unsent answers are not reached."""
        node = self.node
        limit = min(node.settings.concurrent_max, node.read_settings.concurrent_max)
        return node.counters.in_flight < limit and node.answer_budget.taken <= node.answer_budget.bytes_max

    def _multi_get(self, request: QueuedMultiGet) -> Answer | None:
        try:
            return self.multi_gets.answer(request.data[request.head_end :])
        except Exception:
            return None  # the task meets the defect again, and reports it

    def _finish_multi_get(self, answer: Answer) -> None:
        self.node.counters.answers[_ROUTE, answer.status] += 1
        last = self.is_last()
        self.transport.write(self.encode_answer(answer, CLOSE_LINE if last else b""))
        self.idle_since = self.sweeps
        if last:
            self.transport.close()
        else:
            self.resume_parsing()

    def is_last(self) -> bool:
        """Return whether the connection ends after the present answer."""
        return self.closes_after_answer or self.node.draining or (self.eof and not self.unparsed)

    def connection_lost(self, exc: Exception | None) -> None:
        self.queued = None
        self.take_head()
        super().connection_lost(exc)


class QueuedMultiGet:
    """Hold a request that waits for admission."""

    __slots__ = ("_connection", "data", "head_end")

    def __init__(self, connection: MultiGetLane, data: bytes, head_end: int) -> None:
        self._connection = connection
        self.data = data
        self.head_end = head_end

    def is_abandoned(self) -> bool:
        return self._connection.queued is not self

    def begin(self) -> None:
        self._connection.begin_multi_get(self)

    def refuse(self) -> None:
        self._connection.refuse_multi_get()


class MultiGetHeads(BlockCache[int]):
    """Map the bytes of a block of header lines to the length of the body, or -1 if a line may change the answer."""

    def __init__(self, heads: Heads) -> None:
        super().__init__(self._length)
        self._heads = heads

    def _length(self, block: bytes) -> int:
        lengths = _CONTENT_LENGTH.findall(block)
        others = _CONTENT_LENGTH.sub(b"", block)
        return int(lengths[0]) if len(lengths) == 1 and self._heads[others] is HeadKind.PLAIN else -1
