"""Answer the plain reads of one turn of the event loop together: all look-ups, then all answers, then all writes to sockets.

Strategy: a turn brings the requests of many connections. If each is answered as it arrives, the processor goes back and forth
between the sockets, the interpreter and the store, and a client on the same machine is woken for each answer. With
the writes together they cost about a quarter less CPU, with the rest too about an eighth less than that (docs/experiments.md). No
answer waits for more than the other requests of its turn. A turn of a quiet node brings one
request, and its answer waits for nothing: the first request of a turn is answered at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Protocol

from uvicorn.server import ServerState

from queryable_app.errors import Failure
from queryable_app.serve.base.background import note_failure
from queryable_app.serve.base.counters import Counters
from queryable_app.serve.base.write_now import write_now

WAITING_MAX: Final = 64  # a request or an answer waits for at most so many others


class Reader(Protocol):
    """A connection that may have sent a plain read."""

    sweeps: ClassVar[int]
    loop: asyncio.AbstractEventLoop
    server_state: ServerState
    transport: asyncio.Transport
    descriptor: int  # for `write_now`
    idle_since: int | None  # None: an earlier answer is not complete

    def take_unanswered(self, key: bytes, data: bytes, found: Failure | None) -> None:
        """Take a read that was not answered at once, and `data`, the request."""
        ...


class Reads(Protocol):
    """What answers the plain reads, as `PlainReads` does."""

    def found_at_once(self, keys: Sequence[bytes]) -> list[bytes | Failure | None]: ...

    def set_server_lines(self, lines: bytes) -> None: ...


class Turn:
    """Collect the reads and the answers of one turn, of all connections of a node.

    Whatever else a connection writes, and the end of a connection, comes after a `flush`. `send_forwarded` sends the reads that
    other nodes answer.
    """

    def __init__(self, reads: Reads, counters: Counters, send_forwarded: Callable[[], None]) -> None:
        self._found_at_once = reads.found_at_once
        self._set_server_lines = reads.set_server_lines
        self._counters = counters
        self._send_forwarded = send_forwarded
        self._server_headers: list[tuple[bytes, bytes]] | None = None
        self._server_lines = b""
        self._reads: list[tuple[Reader, bytes, bytes]] = []
        self._answers: list[tuple[asyncio.Transport, int, bytes]] = []
        self._has_begun = False

    def read(self, reader: Reader, key: bytes, data: bytes) -> None:
        """Answer `data`, a plain read of `key`, before the loop looks for input again."""
        if self._has_begun:
            self._reads.append((reader, key, data))
            if len(self._reads) >= WAITING_MAX:
                self.flush()
            return
        self.server_lines(reader.server_state)
        answer = self._found_at_once((key,))[0]
        if isinstance(answer, bytes):
            reader.idle_since = reader.sweeps
            self._counters.fast_answers += 1  # before the client has the answer
            write_now(reader.transport, reader.descriptor, answer)
            self._begin(reader.loop)
        else:
            self._begin(reader.loop)  # before a read is sent on: those behind it in the turn are sent with it
            reader.take_unanswered(key, data, answer)

    def write(self, reader: Reader, answer: bytes) -> None:
        """Write an answer before the loop looks for input again."""
        if not self._has_begun:
            write_now(reader.transport, reader.descriptor, answer)
            self._begin(reader.loop)
            return
        self._answers.append((reader.transport, reader.descriptor, answer))
        if len(self._answers) >= WAITING_MAX:
            self.flush()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._has_begun = True
        loop.call_soon(self._end)

    def _end(self) -> None:
        self._has_begun = False
        self.flush()
        self._send_forwarded()

    def flush(self) -> None:
        """Answer the reads, and write the answers in their order, now."""
        if self._reads:
            self._answer_reads()
        if self._answers:
            answers, self._answers = self._answers, []
            for transport, descriptor, answer in answers:
                write_now(transport, descriptor, answer)

    def _answer_reads(self) -> None:
        reads, self._reads = self._reads, []
        self.server_lines(reads[0][0].server_state)
        found = self._found_at_once([key for _, key, _ in reads])
        sweeps = reads[0][0].sweeps  # all connections of a node are swept together
        self._counters.fast_answers += len(reads)  # before the clients have the answers
        for (reader, key, data), answer in zip(reads, found, strict=True):
            if isinstance(answer, bytes) and reader.idle_since is not None:
                reader.idle_since = sweeps
                self._answers.append((reader.transport, reader.descriptor, answer))
                continue
            self._counters.fast_answers -= 1
            if isinstance(answer, bytes):
                self._counters.keys_found -= 1  # the request waits behind another, and counts the key again
                answer = None
            try:
                reader.take_unanswered(key, data, answer)
            except Exception as error:  # the other requests of the turn are answered
                note_failure("Turn", error)
                reader.transport.abort()

    def server_lines(self, state: ServerState) -> bytes:
        """Return the server's header lines. They are rendered again, also for the reads, if uvicorn has replaced them, as it does
        when the date changes."""
        if state.default_headers is not self._server_headers:
            self._server_headers = state.default_headers
            self._server_lines = b"".join([b"%b: %b\r\n" % header for header in state.default_headers])
            self._set_server_lines(self._server_lines)
        return self._server_lines
