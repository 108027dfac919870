"""What one node asks another for reads over several partitions: which of its copies may answer; their rows, keys and counts.

Strategy: whoever has said that its copies may answer is believed, and may be lost all the same before it has answered.
`LostCopies` says so to the whole read, which then begins again with the copies of others. `may_leave`: it can do that, and
has not left this node before; then it need not wait for one that comes into doubt.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

from queryable_app.freshness import Asked
from queryable_app.peer_frames import PeerFrameError, RawRow, asked_to_json, decode_rows
from queryable_app.serve.peer_client import PeerAway
from queryable_app.serve.peers import DEADLINE_HEADER, Peers, left_ms, waits
from queryable_app.serve.scans import Bounds

COVER: Final = "/internal/v1/cover"
ROWS: Final = "/internal/v1/rows"
KEYS: Final = "/internal/v1/keys"
COUNT: Final = "/internal/v1/count"


class LostCopies(Exception):
    """Those that a node has said may answer: it does not answer any more."""

    def __init__(self, ordinal: int, why: object) -> None:
        super().__init__(f"node {ordinal}: {why}")
        self.ordinal = ordinal


async def cover(
    peers: Peers, ordinal: int, partitions: Sequence[int], asked: Asked, deadline: float
) -> dict[str, Any]:
    """How the copies of these partitions stand there, once they have caught up as far as was asked for. Raises PeerAway."""
    body = {"partitions": list(partitions), "asked": asked_to_json(asked, left_ms(deadline))}
    return (await _ask(peers, ordinal, COVER, body, deadline, waits(asked)))[0]


async def rows(
    peers: Peers, ordinal: int, partitions: Sequence[int], bounds: Bounds, seconds: float, may_leave: bool
) -> AsyncGenerator[list[RawRow], None]:
    """The rows of these partitions there, in key order; each batch within so many seconds."""
    while True:
        body = {
            "partitions": list(partitions),
            "start": _text(bounds.start),
            "stop": _text(bounds.stop),
            "reverse": bounds.reverse,
        }
        deadline = asyncio.get_running_loop().time() + seconds
        head, batch = await _read(peers, ordinal, ROWS, body, deadline, partitions if may_leave else None)
        if batch:
            yield batch
        if head["last"]:
            return
        bounds = bounds.behind(batch[-1][0])


async def keys(
    peers: Peers, ordinal: int, keys: Mapping[int, Iterable[bytes]], deadline: float, may_leave: bool
) -> list[RawRow]:
    body = {"keys": {str(p): [_text(key) for key in wanted] for p, wanted in keys.items()}}
    return (await _read(peers, ordinal, KEYS, body, deadline, keys if may_leave else None))[1]


async def count(
    peers: Peers, ordinal: int, partitions: Sequence[int], approximate: bool, deadline: float, may_leave: bool
) -> int:
    body = {"partitions": list(partitions), "approximate": approximate}
    head, _ = await _read(peers, ordinal, COUNT, body, deadline, partitions if may_leave else None)
    return int(head["count"])


async def _read(
    peers: Peers, ordinal: int, path: str, body: object, deadline: float, leaving: Collection[int] | None
) -> tuple[dict[str, Any], list[RawRow]]:
    """`leaving`: the partitions that others must have for the node to be left when it comes into doubt."""
    unless_doubted = nullcontext() if leaving is None else peers.unless_doubted(ordinal, leaving)
    try:
        async with unless_doubted:
            return await _ask(peers, ordinal, path, body, deadline)
    except PeerAway as away:
        raise LostCopies(ordinal, away) from None


async def _ask(
    peers: Peers, ordinal: int, path: str, body: object, deadline: float, waits: bool = True
) -> tuple[dict[str, Any], list[RawRow]]:
    text = json.dumps(body).encode()
    headers = b"%b%b: %d\r\n" % (peers.node_headers, DEADLINE_HEADER.encode(), left_ms(deadline))
    answer = await peers.ask(ordinal, b"POST", path.encode(), headers, text, deadline, waits)
    if answer.status != 200:
        raise PeerAway(f"it answered {answer.status}")
    try:
        return decode_rows(answer.body)
    except PeerFrameError as error:
        raise PeerAway(str(error)) from None


def _text(key: bytes | None) -> str | None:
    return None if key is None else b64encode(key).decode()
