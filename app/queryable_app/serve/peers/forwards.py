"""Plain point reads that other nodes answer for this one, without a task.

Strategy: a `ForwardedRead` is one client's request on its way: `Attempts` says whom to ask, `PeerLink` asks, and the connection
that the request came on (the `ResponseSink`) gets the finished answer. One sweep over all of them looks whose time has come,
so that a request sets no timer.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from queryable_app.errors import Failure, Reason
from queryable_app.policy.attempts import Attempts, SendTo, Wait, no_other_replica_failure
from queryable_app.serve.base.background import guarded
from queryable_app.serve.peers.peers import TOKEN_REFUSED_STATUSES, Peers

_SWEEP_SECONDS: Final = 0.005
_HERE: Final = b"\r\nqt-hops: 0\r\n"
_ONE_HOP: Final = b"\r\nqt-hops: 1\r\n"


class ResponseSink(Protocol):
    def forwarded(self, head: bytes, body: bytes) -> None:
        """The answer, as it goes to the client."""

    def refused(self, failure: Failure) -> None:
        """There is none."""


class ForwardedRead:
    """One request."""

    __slots__ = ("_attempts", "_deadline", "_forwards", "_key", "_overloaded", "_refusal", "_waiter", "due")

    def __init__(
        self,
        forwards: ForwardedReads,
        waiter: ResponseSink,
        key: bytes,
        attempts: Attempts,
        refusal: Failure,
        deadline: float,
    ) -> None:
        self._forwards = forwards
        self._waiter: ResponseSink | None = waiter
        self._key = key
        self._attempts = attempts
        self._refusal = refusal
        self._deadline = deadline
        self._overloaded = False
        self.due = 0.0

    def start(self) -> None:
        """The waiter may be told before this returns."""
        self._forwards.run(self)
        self.advance(self._forwards.time())

    def advance(self, now: float) -> None:
        attempts, peers = self._attempts, self._forwards.peers
        while isinstance(step := attempts.step(now), SendTo):
            if not peers.send_plain_read(step.ordinal, self._key, self, now, self._deadline):
                self._overloaded = self._overloaded or not peers.is_not_a_peer(step.ordinal)
                attempts.failed(step.ordinal)
        if isinstance(step, Wait):
            self.due = step.until
            return
        waiter = self.abandon()
        if waiter is None:
            return
        if step.refusal is not None:
            waiter.forwarded(*step.refusal)
        elif self._overloaded:
            waiter.refused(_overloaded(self._refusal.partition))
        else:
            waiter.refused(no_other_replica_failure(self._refusal))

    def answered(self, ordinal: int, status: int, head: bytes, body: bytes) -> None:
        if self._waiter is None:
            return
        if status in TOKEN_REFUSED_STATUSES:
            self.failed(ordinal)
            return
        head = head.replace(_HERE, _ONE_HOP, 1)
        if not self._attempts.answered(ordinal, status, (head, body)):
            self.advance(self._forwards.time())
        elif (waiter := self.abandon()) is not None:
            waiter.forwarded(head, body)

    def failed(self, ordinal: int) -> None:
        if self._waiter is not None:
            self._attempts.failed(ordinal)
            self.advance(self._forwards.time())

    def abandon(self) -> ResponseSink | None:
        """Nobody waits for it any more; who did until now. Answers that still come are dropped."""
        waiter, self._waiter = self._waiter, None
        self._forwards.running.pop(self, None)
        return waiter


class ForwardedReads:
    """All of one node."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.running: dict[ForwardedRead, None] = {}
        """In the order in which they came."""
        self._sweeping = False

    @staticmethod
    def time() -> float:
        return asyncio.get_running_loop().time()

    def prepare(
        self, waiter: ResponseSink, key: bytes, refusal: Failure, deadline_ms: int
    ) -> ForwardedRead | None:
        """`key` as it stands in the path. None: there is nobody to ask."""
        assert refusal.partition is not None
        deadline = self.time() + deadline_ms / 1000
        attempts = self.peers.attempts(refusal.partition, deadline)
        if attempts is None:
            return None
        return ForwardedRead(self, waiter, key, attempts, refusal, deadline)

    def run(self, forward: ForwardedRead) -> None:
        self.running[forward] = None
        if not self._sweeping:
            self._sweep_later()

    def _sweep_later(self) -> None:
        self._sweeping = True
        asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        now = self.time()
        for forward in tuple(self.running):
            if now >= forward.due:
                with guarded("Forwards.sweep"):
                    forward.advance(now)
        if self.running:
            self._sweep_later()


def _overloaded(partition: int | None) -> Failure:
    return Failure(
        Reason.OVERLOADED,
        f"too many reads wait for the nodes that hold partition {partition}",
        "retry in a while, with fewer at once",
        partition=partition,
        retry_after_ms=1000,
    )
