"""An answer whose body is sent as the pieces that it was made of, and is never one block of memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from queryable_app.serve.api.guard import PIECE_BYTES
from queryable_app.serve.reads.multi_get import Piece
from queryable_app.wire.http_text import JSON, Answer


class PiecedResponse(Response):
    """200, in JSON. Each part waits until the client has taken the one before."""

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
    held: list[Piece] = []
    size = 0
    for piece in _short(pieces):
        if size + len(piece) > PIECE_BYTES:
            yield b"".join(held)
            held, size = [], 0
        held.append(piece)
        size += len(piece)
    yield b"".join(held)


def _short(pieces: Iterable[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        if len(piece) <= PIECE_BYTES:
            yield piece
        else:
            view = memoryview(piece)
            yield from (view[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES))
