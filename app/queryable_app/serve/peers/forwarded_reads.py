"""Forward point reads to other nodes, and retry or hedge them on the next replica.

Strategy: `Attempts` decides which node to try next and when; a `ForwardedRead` drives it for one read. A plain read goes out on
the peer's pipeline and costs no task. A read with options may wait at the peer until the replica is fresh enough, so it has a
connection of its own. One sweep over all reads looks which of them are due, so a read sets no timer.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final, Protocol

from queryable_app.errors import Failure, Reason
from queryable_app.policy.attempts import Attempts, SendTo, Wait, no_other_replica_failure
from queryable_app.policy.freshness import ReadOptions
from queryable_app.serve.base.background import guarded, note_failure
from queryable_app.serve.peers.client import PeerResponse, PeerTimeout, PeerUnavailable
from queryable_app.serve.peers.peers import TOKEN_REFUSED_STATUSES, Peers

_SWEEP_SECONDS: Final = 0.005
_NEVER: Final = -inf
_NO_HOPS: Final = b"\r\nqt-hops: 0\r\n"
_ONE_HOP: Final = b"\r\nqt-hops: 1\r\n"
_CHALLENGE: Final = b"\r\nwww-authenticate: "  # it refuses the client's token, and not this node's


class ResponseSink(Protocol):
    """Receives the outcome of a forwarded read, once."""

    def on_forwarded_response(self, head: bytes, body: bytes) -> None:
        """The client's response, as a node sends it."""

    def on_forward_failure(self, failure: Failure) -> None:
        """No node has a response."""


class ForwardedRead(ABC):
    """One client's read on its way to other nodes."""

    __slots__ = ("_attempts", "_overloaded", "_reads", "_refusal", "_sink", "deadline", "due")

    def __init__(
        self,
        reads: ForwardedReads,
        sink: ResponseSink,
        attempts: Attempts | None,
        refusal: Failure,
        deadline: float,
    ) -> None:
        self._reads = reads
        self._sink: ResponseSink | None = sink
        self._attempts = attempts
        self._refusal = refusal
        self.deadline = deadline
        self._overloaded = False
        self.due = deadline

    def start(self) -> None:
        """Send the first request. The sink may be called before this returns."""
        self._reads.add(self)
        self.advance(self._reads.time())

    def advance(self, now: float) -> None:
        """Send to the nodes that are due."""
        attempts, peers = self._attempts, self._reads.peers
        assert attempts is not None
        while isinstance(step := attempts.step(now), SendTo):
            if not self._send(step.ordinal, now):
                self._overloaded = self._overloaded or not peers.is_not_a_peer(step.ordinal)
                attempts.failed(step.ordinal)
        if isinstance(step, Wait):
            self.due = step.until
            return
        sink = self.abandon()
        if sink is None:
            return
        if step.refusal is not None:
            sink.on_forwarded_response(*step.refusal)
        elif self._overloaded:
            sink.on_forward_failure(_overloaded(self._refusal.partition))
        else:
            sink.on_forward_failure(no_other_replica_failure(self._refusal, step.timed_out))

    @abstractmethod
    def _send(self, ordinal: int, now: float) -> bool:
        """Send the request to a node. False: the node takes no more requests, or is no peer any more."""

    def on_response(self, ordinal: int, status: int, head: bytes, body: bytes) -> None:
        if self._sink is None:
            return
        if status in TOKEN_REFUSED_STATUSES and _CHALLENGE not in head:
            self.on_failure(ordinal)
            return
        head = head.replace(_NO_HOPS, _ONE_HOP, 1)
        assert self._attempts is not None
        if not self._attempts.answered(ordinal, status, (head, body)):
            self.advance(self._reads.time())
        elif (sink := self.abandon()) is not None:
            sink.on_forwarded_response(head, body)

    def on_failure(self, ordinal: int, timed_out: bool = False) -> None:
        if self._sink is not None:
            assert self._attempts is not None
            self._attempts.failed(ordinal, timed_out)
            self.advance(self._reads.time())

    def abandon(self) -> ResponseSink | None:
        """Drop all later responses. Return the sink, unless it was called already."""
        sink, self._sink = self._sink, None
        self._reads.running.pop(self, None)
        return sink


class _PlainRead(ForwardedRead):
    """A read without options, sent on the peer's pipeline. It gets its `Attempts` if its first node fails or takes long."""

    __slots__ = ("candidates", "content", "credentials", "is_late", "is_resent", "key", "sent_at")

    def __init__(
        self,
        reads: ForwardedReads,
        sink: ResponseSink,
        refusal: Failure,
        deadline: float,
        candidates: Sequence[int],
        key: bytes,
        credentials: bytes,
    ) -> None:
        self._reads = reads
        self._sink = sink
        self._attempts = None
        self._refusal = refusal
        self.deadline = self.due = deadline
        self._overloaded = False
        self.candidates = candidates
        self.key = key  # as it stands in the path
        self.credentials = credentials  # the header line with the client's token, or nothing
        self.is_late = self.is_resent = False
        self.content = b""
        self.sent_at = _NEVER

    def start(self) -> None:
        self._reads.send_soon(self)

    def advance(self, now: float) -> None:
        self._need_attempts()
        super().advance(now)

    def on_response(self, ordinal: int, status: int, head: bytes, body: bytes) -> None:
        if status != 200 or self._attempts is not None:
            self._need_attempts()
            super().on_response(ordinal, status, head, body)
        elif (sink := self.abandon()) is not None:
            sink.on_forwarded_response(head.replace(_NO_HOPS, _ONE_HOP, 1), body)

    def on_failure(self, ordinal: int, timed_out: bool = False) -> None:
        self._need_attempts()
        super().on_failure(ordinal, timed_out)

    def _need_attempts(self) -> None:
        if self._attempts is None:
            first_sent_at = self.sent_at if self.sent_at != _NEVER else None
            self._attempts = self._reads.peers.attempts_of(self.candidates, self.deadline, first_sent_at)

    def _send(self, ordinal: int, now: float) -> bool:
        return self._reads.peers.send_plain_read(
            ordinal, self.key, self, now, self.deadline, self.credentials
        )


class _ReadWithOptions(ForwardedRead):
    """A read that may wait at the peer: each request has a task, and a connection of its own."""

    __slots__ = ("_headers", "_options", "_requests", "_target")

    def __init__(
        self,
        reads: ForwardedReads,
        sink: ResponseSink,
        attempts: Attempts,
        refusal: Failure,
        deadline: float,
        target: bytes,
        headers: bytes,
        options: ReadOptions,
    ) -> None:
        super().__init__(reads, sink, attempts, refusal, deadline)
        self._target = target
        self._headers = headers
        self._options = options
        self._requests: list[asyncio.Task[PeerResponse]] = []

    def _send(self, ordinal: int, now: float) -> bool:
        request = asyncio.create_task(
            self._reads.peers.send_read(ordinal, self._target, self._headers, self._options, self.deadline)
        )
        request.add_done_callback(partial(self._on_done, ordinal))
        self._requests.append(request)
        return True

    def _on_done(self, ordinal: int, request: asyncio.Task[PeerResponse]) -> None:
        if request.cancelled():
            return
        if (error := request.exception()) is None:
            self.on_response(ordinal, *request.result())
            return
        if not isinstance(error, PeerUnavailable):
            note_failure("ForwardedRead.request", error)
        self.on_failure(ordinal, isinstance(error, PeerTimeout))

    def abandon(self) -> ResponseSink | None:
        for request in self._requests:
            request.cancel()
        return super().abandon()


class ForwardedReads:
    """All reads that one node forwards. It calls `on_forward` for each."""

    def __init__(self, peers: Peers, on_forward: Callable[[], None] = lambda: None) -> None:
        self.peers = peers
        self._on_forward = on_forward
        self.running: dict[ForwardedRead, None] = {}
        """In the order of their arrival."""
        self._sweep_scheduled = False
        self._unsent: list[_PlainRead] = []

    @staticmethod
    def time() -> float:
        return asyncio.get_running_loop().time()

    def plain(
        self, sink: ResponseSink, key: bytes, refusal: Failure, deadline: float, credentials: bytes = b""
    ) -> ForwardedRead | None:
        """Prepare a plain read of a key, as it stands in the path. None: no other node has the partition.

        `credentials` is the header line with the client's token, or nothing."""
        assert refusal.partition is not None
        candidates = self.peers.candidates(refusal.partition)
        if not candidates:
            return None
        return _PlainRead(self, sink, refusal, deadline, candidates, key, credentials)

    async def with_options(
        self,
        target: bytes,
        headers: bytes,
        partition: int,
        options: ReadOptions,
        refusal: Failure,
        deadline: float,
    ) -> PeerResponse:
        """Return the response to a read with options. `headers` are whole lines. Raises Failure."""
        attempts = self.peers.attempts(partition, deadline, options)
        if attempts is None:
            raise no_other_replica_failure(refusal)
        sink = _FutureSink()
        read = _ReadWithOptions(self, sink, attempts, refusal, deadline, target, headers, options)
        try:
            read.start()
            return await sink.response
        finally:
            read.abandon()

    def send_soon(self, read: _PlainRead) -> None:
        """Send a read to its first node, together with the other reads of this turn of the event loop."""
        self.add(read)
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self.send_unsent)
        self._unsent.append(read)

    def send_unsent(self) -> None:
        """Send the reads of this turn now."""
        if not self._unsent:
            return
        reads, self._unsent = self._unsent, []
        by_node: dict[int, list[_PlainRead]] = {}
        for read in reads:
            if read in self.running:
                by_node.setdefault(read.candidates[0], []).append(read)
        now = self.time()
        for ordinal, to_node in by_node.items():
            if self.peers.send_first(ordinal, to_node, now, to_node[0].deadline - now):
                for read in to_node:
                    read.due = now + _SWEEP_SECONDS
                continue
            for read in to_node:
                with guarded("ForwardedReads.send"):
                    read.advance(now)

    def add(self, read: ForwardedRead) -> None:
        self.running[read] = None
        self._on_forward()
        if not self._sweep_scheduled:
            self._sweep_later()

    def _sweep_later(self) -> None:
        self._sweep_scheduled = True
        asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweep_scheduled = False
        now = self.time()
        for read in tuple(self.running):
            if now >= read.due:
                with guarded("ForwardedReads.sweep"):
                    read.advance(now)
        if self.running:
            self._sweep_later()


class _FutureSink:
    """Turns the outcome into the result of a future."""

    def __init__(self) -> None:
        self.response: asyncio.Future[PeerResponse] = asyncio.get_running_loop().create_future()

    def on_forwarded_response(self, head: bytes, body: bytes) -> None:
        if not self.response.done():
            self.response.set_result(PeerResponse(int(head[9:12]), head, body))

    def on_forward_failure(self, failure: Failure) -> None:
        if not self.response.done():
            self.response.set_exception(failure)


def _overloaded(partition: int | None) -> Failure:
    return Failure(
        Reason.OVERLOADED,
        f"too many reads wait for the nodes that host partition {partition}",
        "retry later, with fewer reads at once",
        partition=partition,
        retry_after_ms=1000,
    )
