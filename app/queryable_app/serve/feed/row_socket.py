"""Listen on rows.sock, the Unix socket to which Spark's tasks write rows.

Strategy: one coroutine for each connection reads a frame, applies it, and only then reads on. So what serve does not keep up
with stays in the socket, and Spark waits. All connections share one slot of the event loop, so twelve take no more time than
one. While reads arrive, ingest takes at most half of the loop's time.

A connection names its generation, and only the current generation may write.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from queryable_app.platform.log import event
from queryable_app.serve.base.background import supervise, watch
from queryable_app.serve.feed.slices import Slices
from queryable_app.wire import row_frames
from queryable_app.wire.row_frames import FrameError

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
CONNECTIONS_MAX: Final = 512
READING_SECONDS: Final = 0.05  # reads arrive if the last one is not older
_DEBT_SECONDS_MIN: Final = 0.001
_ACCEPT_RETRY_SECONDS: Final = 0.2
_BUFFER_BYTES: Final = 320 * 1024  # a little more than a full slice


class LoopShare:
    """Give ingest the event loop for one slice at a time, and for at most half of the time while reads arrive.

    A slice adds its duration to a debt, and time without a slice pays it back. A backlog therefore alternates with reads,
    and a trickle of small slices never waits.
    """

    def __init__(self, last_read_at: Callable[[], float]) -> None:
        self._last_read_at = last_read_at
        self._slot = asyncio.Lock()
        self._debt_seconds = 0.0
        self._last_end = 0.0

    async def run(self, work: Callable[[bytes], None], payload: bytes) -> None:
        async with self._slot:
            started = time.monotonic()
            work(payload)
            ended = time.monotonic()
            unpaid = max(0.0, self._debt_seconds - (started - self._last_end))
            self._debt_seconds, self._last_end = unpaid + ended - started, ended
            if ended - self._last_read_at() > READING_SECONDS:
                self._debt_seconds = 0.0
            # The loop's timers are no finer than a millisecond: a smaller debt is paid later.
            await asyncio.sleep(self._debt_seconds if self._debt_seconds >= _DEBT_SECONDS_MIN else 0)


class RowSocket:
    """Serve the row socket from `start` to `stop`. It refuses all writers until a generation is set."""

    def __init__(self, path: Path, slices: Slices, last_read_at: Callable[[], float]) -> None:
        self.generation = 0
        self._path = path
        self._slices = slices
        self._share = LoopShare(last_read_at)
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
        while (payload := await read.frame()) is not None:
            kind = payload[0]
            if kind == row_frames.SLICE:
                await self._slices.write_dead_letters(payload)
                await self._share.run(self._slices.apply, payload)
            elif kind == row_frames.END:
                row_frames.decode_end(payload)
                await asyncio.get_running_loop().sock_sendall(connection, row_frames.ACK)
            else:
                raise FrameError(f"a frame of type {kind} after the first")


class FrameReader:
    """Read frames from a stream. A frame that is larger than the buffer gets a buffer of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0

    async def frame(self) -> bytes | None:
        """Return the next payload, or None when the other side has closed between frames."""
        prefix = row_frames.LENGTH.size
        if not await self._have(prefix):
            return None
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

    async def _have(self, size: int) -> bool:
        """Read until `size` bytes are in the buffer. Return False if the stream ended before the first of them."""
        while self._end - self._start < size:
            if self._start + size > len(self._view) or self._start == self._end:
                rest = self._end - self._start
                self._view[:rest] = self._view[self._start : self._end]
                self._start, self._end = 0, rest
            received = await self._loop.sock_recv_into(self._connection, self._view[self._end :])
            if received == 0:
                if self._end > self._start or size != row_frames.LENGTH.size:
                    raise FrameError("the stream ends within a frame")
                return False
            self._end += received
        return True

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
