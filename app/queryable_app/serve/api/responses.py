"""Send large answers in parts, each after the client has taken the one before, without one large block of memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from queryable_app.serve.api.guard import PIECE_BYTES
from queryable_app.serve.api.request import IS_HEAD, ClientDisconnected
from queryable_app.serve.reads.multi_get import Piece
from queryable_app.wire.http_text import JSON, NDJSON, Answer


class PiecedResponse(Response):
    """Send a JSON answer of known length, status 200, from the pieces that it is made of."""

    def __init__(self, pieces: Sequence[Piece], headers: bytes) -> None:
        super().__init__()
        self._pieces = pieces
        self._header_lines = b"content-type: %b\r\ncontent-length: %d\r\n%b" % (
            JSON.encode(),
            sum(map(len, pieces)),
            headers,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Answer(200, self._header_lines, b"").header_list()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in _parts(self._pieces):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _parts(pieces: Iterable[Piece]) -> Iterator[bytes]:
    """Join small pieces and split large ones, to parts of at most `PIECE_BYTES`."""
    gathered: list[Piece] = []
    size = 0
    for piece in _split(pieces):
        if size + len(piece) > PIECE_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
        gathered.append(piece)
        size += len(piece)
    yield b"".join(gathered)


def _split(pieces: Iterable[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        if len(piece) <= PIECE_BYTES:
            yield piece
        else:
            view = memoryview(piece)
            yield from (view[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES))


class RowStream(Response):
    """Send chunks, of NDJSON or another type, as they are made. If the client disconnects, stop, and release the stores."""

    def __init__(
        self, chunks: AsyncGenerator[bytes, None], headers: bytes, content_type: str = NDJSON
    ) -> None:
        super().__init__()
        self._chunks = chunks
        self._header_lines = b"content-type: %b\r\n%b" % (content_type.encode(), headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with unless_disconnected(receive), aclosing(self._chunks) as chunks:
            headers = Answer(200, self._header_lines, b"").header_list()
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if IS_HEAD not in scope:
                async for chunk in chunks:
                    if chunk:
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def unless_disconnected(receive: Receive) -> AsyncIterator[None]:
    """End the work inside when the client disconnects, with ClientDisconnected: it may wait for long."""
    this = asyncio.current_task()
    assert this is not None

    def end(done: asyncio.Task[None]) -> None:
        if not done.cancelled():
            this.cancel()

    disconnected = asyncio.create_task(_disconnect(receive))
    disconnected.add_done_callback(end)
    try:
        yield
    except asyncio.CancelledError:
        if not disconnected.done():
            raise
        this.uncancel()
        raise ClientDisconnected from None
    finally:
        disconnected.remove_done_callback(end)
        disconnected.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
