"""Plain reads of one turn of the event loop go to their nodes together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from queryable_app.errors import Failure
from queryable_app.policy.attempts import Attempts, HedgeBudget
from queryable_app.policy.failure_detector import PeerHealth
from queryable_app.policy.routing import not_hosted_here
from queryable_app.serve.peers.forwarded_reads import ForwardedRead, ForwardedReads
from queryable_app.serve.peers.peers import Peers

BODY = b"1"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nqt-hops: 0\r\n\r\n"


class RecordingPeers:
    """Stand in for three nodes. Node 0 hosts partition 0, and so on; `unhealthy` ones get reads only one by one."""

    def __init__(self, unhealthy: Sequence[int] = ()) -> None:
        self.together: list[tuple[int, list[bytes]]] = []
        self.alone: list[tuple[int, bytes]] = []
        self._unhealthy = unhealthy
        self._health = {ordinal: PeerHealth() for ordinal in range(3)}

    def candidates(self, partition: int) -> Sequence[int]:
        return (partition, (partition + 1) % 3)

    def send_first(self, ordinal: int, reads: Sequence[Any], now: float, seconds: float) -> bool:
        if ordinal in self._unhealthy:
            return False
        self.together.append((ordinal, [read.key for read in reads]))
        for read in reads:
            read.sent_at = now
        return True

    def send_plain_read(self, ordinal: int, key: bytes, *_: Any) -> bool:
        self.alone.append((ordinal, key))
        return True

    def attempts_of(
        self, candidates: Sequence[int], deadline: float, first_sent_at: float | None = None
    ) -> Attempts:
        sent = None if first_sent_at is None else (candidates[0], first_sent_at)
        return Attempts(candidates, deadline, self._health, HedgeBudget(), sent=sent)


class Client:
    """Record the responses to the client's read."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    def on_forwarded_response(self, head: bytes, body: bytes) -> None:
        self.got.append(head + body)

    def on_forward_failure(self, failure: Failure) -> None:
        self.got.append(failure.reason.slug.encode())


def begin(reads: ForwardedReads, client: Client, key: bytes, partition: int) -> ForwardedRead:
    deadline = asyncio.get_running_loop().time() + 5
    read = reads.plain(client, key, not_hosted_here(partition), deadline)
    assert read is not None
    read.start()
    return read


def test_reads_of_one_turn_go_to_each_node_together() -> None:
    """Every node gets its reads at once, in the order of their arrival."""
    peers = RecordingPeers()

    async def run() -> None:
        reads = ForwardedReads(cast(Peers, peers))
        for key, partition in ((b"a", 1), (b"b", 2), (b"c", 1)):
            begin(reads, Client(), key, partition)
        assert peers.together == []
        await asyncio.sleep(0)

    asyncio.run(run())
    assert (peers.together, peers.alone) == ([(1, [b"a", b"c"]), (2, [b"b"])], [])


def test_read_whose_client_disconnects_in_that_turn_is_not_sent() -> None:
    """The other reads of the turn are sent."""
    peers = RecordingPeers()

    async def run() -> None:
        reads = ForwardedReads(cast(Peers, peers))
        abandoned = begin(reads, Client(), b"a", 1)
        begin(reads, Client(), b"b", 1)
        abandoned.abandon()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert peers.together == [(1, [b"b"])]


def test_reads_of_an_unhealthy_node_take_their_attempts() -> None:
    """The other nodes of the turn get their reads together."""
    peers = RecordingPeers(unhealthy=[1])

    async def run() -> None:
        reads = ForwardedReads(cast(Peers, peers))
        for key, partition in ((b"a", 1), (b"b", 2)):
            begin(reads, Client(), key, partition)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert (peers.together, peers.alone) == ([(2, [b"b"])], [(1, b"a")])


def test_refused_first_node_is_followed_by_the_next() -> None:
    """The read gets its attempts then, which know of the first node."""
    peers, client = RecordingPeers(), Client()

    async def run() -> None:
        reads = ForwardedReads(cast(Peers, peers))
        read = begin(reads, client, b"a", 1)
        await asyncio.sleep(0)
        read.on_response(1, 421, HEAD.replace(b"200 OK", b"421 No"), BODY)
        assert (peers.alone, client.got) == ([(2, b"a")], [])
        read.on_response(2, 200, HEAD, BODY)
        read.on_response(2, 200, HEAD, BODY)
        assert not reads.running

    asyncio.run(run())
    assert client.got == [HEAD.replace(b"hops: 0", b"hops: 1") + BODY]
