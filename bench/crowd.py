"""Stand in for the other nodes of a large view, all in one process: `python -m bench.crowd DIR`.

Each of them listens on a port of its own, sends heartbeats to node 0 with the product's own `Heartbeats`, and answers what node 0
sends: heartbeats, `cover`, `count` and `rows`, encoded with the product's own functions. They have no stores: every replica is
complete, at a position that moves, and has rows that follow from its partition. So the cost of node 0, which is the product's,
is that of a node among so many, and this process can be larger than any machine's share of a view.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from base64 import b64decode
from bisect import bisect_left
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from bench.server import key_of, value_of
from queryable_app.placement.assignment import Placement
from queryable_app.policy.failure_detector import HEARTBEAT_SECONDS, PeerHealth
from queryable_app.policy.routing import ReportedReplica
from queryable_app.serve.base.peer_frames import RawRow, encode_heartbeat, encode_rows
from queryable_app.serve.peers.heartbeats import Heartbeats
from queryable_app.serve.peers.peers import HEARTBEAT
from queryable_app.serve.reads.peer_reads import COUNT, COVER, ROWS
from queryable_app.wire.disk_format import Row, encode_row
from queryable_app.wire.http_text import BYTES, JSON, body_answer

COUNTS: Final = "/counts"
ROWS_PER_PARTITION: Final = 300
_ROWS_MAX: Final = 2048  # in one answer, as in a node
_STORED: Final = encode_row(Row(1, 1, 0, value_of(1)))
_RECORDS_PER_SECOND: Final = 10  # in each replica: positions change with each heartbeat


class OtherNode(asyncio.Protocol):
    """Answer node 0 for one other node; one object for each connection."""

    counts: Final[Counter[str]] = Counter()

    def __init__(self, ordinal: int, placement: Placement) -> None:
        self._ordinal = ordinal
        self._partitions = placement.assigned_to(ordinal)
        self._input = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._input += data
        while (head_end := self._input.find(b"\r\n\r\n") + 4) > 3:
            head = self._input[:head_end].decode()
            _, _, after = head.lower().partition("content-length: ")
            end = head_end + int(after.partition("\r\n")[0] or 0)
            if len(self._input) < end:
                return
            body, self._input = self._input[head_end:end], self._input[end:]
            path = head.split(" ", 2)[1]
            answer = self._answer(path, json.loads(body or b"null"))
            if path == HEARTBEAT:
                self.counts["heartbeats"] += 1
                self.counts["heartbeat bytes"] += end + len(answer)
            elif path != COUNTS:
                self.counts["requests"] += 1
                self.counts["request bytes"] += end + len(answer)
            self._transport.write(answer)

    def _answer(self, path: str, body: Any) -> bytes:
        if path == HEARTBEAT:
            return encoded(heartbeat_of(self._partitions), JSON)
        if path == COUNTS:
            return encoded(json.dumps(self.counts).encode(), JSON)
        if path == COVER:
            standings = [(partition, 1, "active", 0, 0, True) for partition in body["partitions"]]
            return encoded(encode_rows({"standings": standings, "refused": [], "contradicted": []}), BYTES)
        if path == COUNT:
            return encoded(encode_rows({"count": ROWS_PER_PARTITION * len(body["positions"])}), BYTES)
        assert path == ROWS, path
        rows = rows_of(tuple(sorted(int(partition) for partition in body["positions"])))
        start = bisect_left(rows, (b64decode(body["start"] or ""), 0, b""))
        end = start + body.get("rowsMax", _ROWS_MAX)
        return encoded(encode_rows({"last": end >= len(rows)}, rows[start:end]), BYTES)


@cache
def rows_of(partitions: tuple[int, ...]) -> list[RawRow]:
    """Return the rows of these partitions in the order of their keys."""
    numbers = ((partition, n) for partition in partitions for n in range(ROWS_PER_PARTITION))
    return sorted(
        (key_of(partition * ROWS_PER_PARTITION + n), partition, _STORED) for partition, n in numbers
    )


def heartbeat_of(partitions: tuple[int, ...]) -> bytes:
    position = 1_000_000 + int(time.monotonic() * _RECORDS_PER_SECOND)
    return encode_heartbeat(1, (0, 1, 1), {p: ReportedReplica(position, 12, True) for p in partitions})


def encoded(body: bytes, content_type: str) -> bytes:
    """Return the answer as the strict protocol of a node writes it."""
    answer = body_answer(body, content_type)
    return b"HTTP/1.1 200 OK\r\n%b\r\n%b" % (answer.headers, answer.body)


async def run(directory: Path, ticks: int) -> None:
    """Serve, and send each node's heartbeats to node 0, one every `ticks` ticks."""
    placement = Placement.from_json((directory / "placement.json").read_text())
    token = (directory / "token").read_text()
    loop = asyncio.get_running_loop()
    target = placement.addresses[0]
    beats: list[Heartbeats] = []
    for ordinal, address in enumerate(placement.addresses[1:], 1):
        rows_of(tuple(p for p, serving in enumerate(placement.serving) if serving[0] == ordinal))
        port = int(address.rpartition(":")[2])
        await loop.create_server(lambda ordinal=ordinal: OtherNode(ordinal, placement), "127.0.0.1", port)  # type: ignore[misc]
        request = f"GET {HEARTBEAT} HTTP/1.1\r\nHost: {target[7:]}\r\nqt-node: {token}\r\n\r\n".encode()
        beats.append(
            Heartbeats(0, target, request, PeerHealth(), lambda _, body: note(body), lambda *_: None)
        )
    tick = 0
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        tick += 1
        for ordinal, each in enumerate(beats):
            if (tick + ordinal) % ticks == 0:
                each.beat(loop.time(), in_turn=True)


def note(body: bytes) -> None:
    OtherNode.counts["answered"] += 1
    OtherNode.counts["answered bytes"] += len(body)


if __name__ == "__main__":
    uvloop.run(run(Path(sys.argv[1]), int(sys.argv[2])))
