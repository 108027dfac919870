"""Listen on rows.sock, the Unix socket to which Spark's tasks write rows.

Strategy: one coroutine for each connection reads a frame, applies it, and only then reads on. So what serve does not keep up
with stays in the socket, and Spark waits. All connections share one slot of the event loop, so twelve take no more time than
one. While reads arrive that are answered, ingest takes at most half of the loop's time. Slices that arrive complete are applied
as soon as the loop reports their connection, without the coroutine: that is the usual case, and it costs half of the CPU time.
Slices that wait behind others are applied together while no such reads arrive.

A connection names its generation, and only the current generation may write.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from queryable_app.platform.log import event
from queryable_app.serve.base.background import supervise, watch
from queryable_app.serve.feed.loop_share import LoopShare
from queryable_app.serve.feed.slices import Slices
from queryable_app.wire import row_frames
from queryable_app.wire.row_frames import FrameError

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
CONNECTIONS_MAX: Final = 512
_ACCEPT_RETRY_SECONDS: Final = 0.2
_BUFFER_BYTES: Final = 320 * 1024  # a little more than a full slice


class RowSocket:
    """Serve the row socket from `start` to `stop`. It refuses all writers until a generation is set."""

    def __init__(self, path: Path, slices: Slices, last_read_ms: Callable[[], int]) -> None:
        self.generation = 0
        self._path = path
        self._slices = slices
        self._share = LoopShare(last_read_ms)
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)  # of a process that was killed
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._path))
        self._path.chmod(0o600)
        listener.listen(CONNECTIONS_MAX)
        listener.setblocking(False)
        self._listener = listener
        self._accepting = asyncio.create_task(supervise("RowSocket", lambda: self._accept(listener)))

    async def stop(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        if self._listener is not None:
            self._listener.close()
        await self.close_connections()
        self._path.unlink(missing_ok=True)

    async def close_connections(self) -> None:
        """Close all connections. After that no position changes."""
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        if connections:
            await asyncio.wait(connections)

    async def _accept(self, listener: socket.socket) -> None:
        loop, logged = asyncio.get_running_loop(), False
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # for example EMFILE; new connections wait in the backlog
                if not logged:
                    event("accept-failed", socket=self._path.name, reason=str(error))
                logged = True
                await asyncio.sleep(_ACCEPT_RETRY_SECONDS)
                continue
            logged = False
            if len(self._connections) >= CONNECTIONS_MAX:
                event("refused", socket=self._path.name, reason=f"{CONNECTIONS_MAX} connections are open")
                connection.close()
                continue
            connection.setblocking(False)
            task = asyncio.create_task(self._serve(connection))
            self._connections.add(task)
            task.add_done_callback(partial(self._ended, connection))
            watch("RowSocket.connection", task)

    def _ended(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        """Close the connection here: a task that is cancelled before its first step runs no `finally`."""
        self._connections.discard(task)
        connection.close()

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await self._converse(connection)
        except FrameError as error:
            event("refused", socket=self._path.name, reason=str(error))
        except OSError:
            pass  # the task has ended; ingest reports why, and sends again what was not acknowledged

    def _apply_now(self, payloads: Sequence[bytes]) -> bool:
        """Apply slices at once, or return False if they have to wait."""
        return self._share.run_now(partial(self._slices.apply, *payloads))

    def _apply_with_waiting(self, read: FrameReader, payload: bytes) -> None:
        """Apply a slice, with those that wait behind it if no reads arrive. Only the first read after a pause may wait for all of
        them, which are a buffer at most."""
        waiting = [] if self._share.reads_arrive else read.waiting()
        self._slices.apply(payload, *waiting)

    async def _converse(self, connection: socket.socket) -> None:
        read = FrameReader(connection)
        first = await read.frame()
        if first is None:
            return
        hello = row_frames.decode_hello(first)
        if hello.generation != self.generation:
            reason = f"generation {hello.generation} is not the current one, {self.generation}"
            event("refused", socket=self._path.name, task=hello.task, reason=reason)
            return
        read.takes, read.apply_now = self._slices.can_be_applied_now, self._apply_now
        while (payload := await read.frame()) is not None:
            kind = payload[0]
            if kind == row_frames.SLICE:
                await self._slices.write_dead_letters(payload)
                await self._share.run(partial(self._apply_with_waiting, read, payload))
            elif kind == row_frames.END:
                row_frames.decode_end(payload)
                await asyncio.get_running_loop().sock_sendall(connection, row_frames.ACK)
            else:
                raise FrameError(f"a frame of type {kind} after the first")


class FrameReader:
    """Read frames from a stream. A frame that is larger than the buffer gets a buffer of its own.

    `apply_now` may apply complete frames that arrive while `frame` waits, and returns whether it did: all up to the first that
    `takes` refuses. `frame` returns the others.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.takes: Callable[[bytes], bool] = lambda _: False
        self.apply_now: Callable[[Sequence[bytes]], bool] = lambda _: False
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0
        self._between_frames = True

    async def frame(self) -> bytes | None:
        """Return the next payload, or None when the other side has closed between frames."""
        prefix = row_frames.LENGTH.size
        self._between_frames = True
        if not await self._have(prefix):
            return None
        self._between_frames = False
        length = row_frames.payload_length(bytes(self._view[self._start : self._start + prefix]))
        if length > FRAME_BYTES_MAX:
            raise FrameError(f"a frame of {length} bytes; at most {FRAME_BYTES_MAX} are taken")
        self._start += prefix
        if length > len(self._view):
            return await self._large(length)
        await self._have(length)
        payload = bytes(self._view[self._start : self._start + length])
        self._start += length
        return payload

    def waiting(self) -> list[bytes]:
        """Return the next payloads that have arrived completely, up to the first that is not taken; at most a buffer of them.
        `frame` continues behind them."""
        self._move_to_front()
        with suppress(BlockingIOError, InterruptedError):
            self._end += (
                self._connection.recv_into(self._view[self._end :]) if self._end < len(self._view) else 0
            )
        return self._complete_payloads()

    def _complete_payloads(self) -> list[bytes]:
        payloads: list[bytes] = []
        while (begin := self._start + row_frames.LENGTH.size) < self._end:
            (length,) = row_frames.LENGTH.unpack_from(self._view, self._start)
            if not 0 < length <= self._end - begin:
                break
            payload = bytes(self._view[begin : begin + length])
            if not self.takes(payload):
                break
            payloads.append(payload)
            self._start = begin + length
        return payloads

    def _move_to_front(self) -> None:
        rest = self._end - self._start
        self._view[:rest] = self._view[self._start : self._end]
        self._start, self._end = 0, rest

    async def _have(self, size: int) -> bool:
        """Read until `size` bytes are in the buffer. Return False if the stream ended before the first of them."""
        while self._end - self._start < size:
            if self._start + size > len(self._view) or self._start == self._end:
                self._move_to_front()
            if not await self._receive():
                if self._end > self._start or not self._between_frames:
                    raise FrameError("the stream ends within a frame")
                return False
        return True

    async def _receive(self) -> bool:
        """Wait for bytes behind those in the buffer. Return False if the stream has ended."""
        received: asyncio.Future[int] = self._loop.create_future()
        # The loop stays registered with the system while complete slices arrive, which saves two system calls for each.
        self._loop.add_reader(self._connection, self._on_readable, received)
        try:
            return await received > 0
        finally:
            self._loop.remove_reader(self._connection)

    def _on_readable(self, received: asyncio.Future[int]) -> None:
        if received.done():
            return
        try:
            count = self._connection.recv_into(self._view[self._end :])
            self._end += count
            if count and self._all_is_applied():
                self._start = self._end = 0
            else:
                received.set_result(count)
        except (BlockingIOError, InterruptedError):
            pass  # the loop calls again
        except Exception as error:
            received.set_exception(error)

    def _all_is_applied(self) -> bool:
        """Apply the complete frames at once, if they need not wait. Return whether the buffer is empty then."""
        start = self._start
        if not self._between_frames or not (payloads := self._complete_payloads()):
            return False
        if not self.apply_now(payloads):
            self._start = start
            return False
        return self._start == self._end

    async def _large(self, length: int) -> bytes:
        whole = memoryview(bytearray(length))
        filled = self._end - self._start
        whole[:filled] = self._view[self._start : self._end]
        self._start = self._end = 0
        while filled < length:
            received = await self._loop.sock_recv_into(self._connection, whole[filled:])
            if received == 0:
                raise FrameError("the stream ends within a frame")
            filled += received
        return bytes(whole)
