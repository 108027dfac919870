"""The other nodes of the view: which there are, how they are, whom to ask, and reads that they answer for this one.

Strategy: a node asks another at most once for a request; what it is asked itself it answers from its own copies. Ten
heartbeats a second, one tick for all nodes, tell who is there, how far the copies of each are, which placement it follows,
and which partitioners its records contradict, so that every node looks for a key in the same place. Whom to ask and when
is not decided here but in `policy/routing.py`, `policy/attempts.py` and `policy/failure_detector.py`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Final

from queryable_app.contract import NODE_HEADER, PLACEMENT_PATH, NodeSettings
from queryable_app.placement.assignment import Placement
from queryable_app.platform.clock import monotonic_ms
from queryable_app.platform.log import event
from queryable_app.policy.attempts import Attempts, HedgeBudget
from queryable_app.policy.failure_detector import HEARTBEAT_SECONDS, PeerHealth
from queryable_app.policy.freshness import Consistency, ReadOptions, lag_ms, next_offset
from queryable_app.policy.routing import LastHeartbeat, PeerStates, ReportedReplica, route
from queryable_app.serve.base.background import Background, guarded
from queryable_app.serve.base.peer_frames import decode_heartbeat, encode_heartbeat
from queryable_app.serve.peers.client import (
    CONNECTIONS_MAX,
    PeerClient,
    PeerResponse,
    PeerTimeout,
    PeerUnavailable,
)
from queryable_app.serve.peers.heartbeats import Heartbeats
from queryable_app.serve.peers.link import PeerLink
from queryable_app.serve.peers.pipe import Asker
from queryable_app.serve.store.replicas import Replicas

FORWARDED_HEADER: Final = "qt-forwarded"
DEADLINE_HEADER: Final = "qt-deadline-ms"
HEARTBEAT: Final = "/internal/v1/heartbeat"
FRESHNESS_WAIT_SHARE: Final = 0.95
"""The share of the time that is left in which another node may wait. It uses the rest to say how far its replica is."""
TOKEN_REFUSED_STATUSES: Final = (401, 403)
"""It has another token: what it refuses is this node, and not the client."""

_FIRST_HEARTBEAT_SECONDS: Final = 0.5
_SAID_SECONDS: Final = 0.02  # nodes that ask within it get the same words
_WAITING_READ_SECONDS: Final = 0.25  # before that a read that waits for freshness is not late
_PLAIN_DEADLINE_STEP_MS: Final = 50  # few different header lines, so that the other node knows them by heart


@dataclass(frozen=True, slots=True)
class _Peer:
    """Another node, and the ways to talk to it."""

    address: str
    health: PeerHealth
    heartbeats: Heartbeats
    client: PeerClient
    link: PeerLink
    plain_lines: bytes  # of a forwarded plain read, behind the key and before the milliseconds that are left
    reading: dict[asyncio.Timeout, Collection[int]] = field(default_factory=dict)
    """Reads that may be taken to other nodes, and the partitions that these have to have."""


class Peers(Background):
    def __init__(
        self, settings: NodeSettings, replicas: Replicas, connections_max: int = CONNECTIONS_MAX
    ) -> None:
        self._connections_max = connections_max
        self._own = settings.ordinal
        self._replicas = replicas
        path = settings.internal_token_path
        self._token = Path(path).read_text().strip() if path else ""
        self._followed: Placement | None = None
        self._peers: dict[int, _Peer] = {}
        self._health: dict[int, PeerHealth] = {}
        """Also of nodes that have left, for requests that began before."""
        self.hedges = HedgeBudget()
        self._routes: dict[int, list[int]] = {}
        """For plain reads, as of the last heartbeat."""
        self._said = (-1.0, b"")
        self.last_heartbeats: dict[int, LastHeartbeat] = {}
        """What each node last said."""
        self.suspected: frozenset[int] = frozenset()
        self.draining = False
        """What this node says of itself: it will end soon."""
        self.on_newer_epoch: Callable[[int], None] = lambda ordinal: None
        """Called with the ordinal of a node that follows a newer placement, with each heartbeat that says so."""
        self.node_headers = f"{NODE_HEADER}: {self._token}\r\n".encode()
        """Header lines that show another node that this one belongs to the view."""

    async def start(self) -> None:
        """Hears of the others first, if they are there: which partitioner is in use decides where a key is."""
        if not self._token:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + _FIRST_HEARTBEAT_SECONDS
        self._tick(loop.time())
        while loop.time() < until and not self.last_heartbeats.keys() | self.suspected >= self._peers.keys():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await super().start()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._tick(asyncio.get_running_loop().time())

    async def _close(self) -> None:
        for ordinal in list(self._peers):
            self._remove_replica(ordinal)

    def accepts_token(self, token: str) -> bool:
        return bool(self._token) and hmac.compare_digest(token.encode(), self._token.encode())

    def others(self) -> list[int]:
        """The other nodes of the placement; none without a token to show them."""
        everyone = range(len(self._replicas.placement.addresses))
        return [ordinal for ordinal in everyone if ordinal != self._own] if self._token else []

    def address(self, ordinal: int) -> str:
        return self._replicas.placement.addresses[ordinal]

    # Whom to ask.

    def candidates(self, partition: int, asked: ReadOptions | None = None) -> list[int]:
        """Other nodes that have the partition, in the order in which to ask them."""
        if not self._token:
            return []
        if self._replicas.placement is not self._followed:
            self._follow()
        ordered = self._routes.get(partition) if asked is None else None
        if ordered is None:
            view = PeerStates(self.suspected, self.last_heartbeats)
            now = asyncio.get_running_loop().time()
            whole = route(partition, self._replicas.placement, self._own, view, now, asked or ReadOptions())
            ordered = [ordinal for ordinal in whole if ordinal != self._own]
            if asked is None:
                self._routes[partition] = ordered
        return list(ordered)

    def has_complete_replica(self, ordinal: int, partition: int) -> bool:
        """Whether the node can be heard, and has said that its copy is complete and not damaged."""
        node = self.last_heartbeats.get(ordinal) if ordinal not in self.suspected else None
        replica = None if node is None else node.replicas.get(partition)
        return replica is not None and replica.complete

    def another_is_complete(self, partition: int) -> bool:
        """Whether there is such a copy among those that serve, on another node."""
        serving = self._replicas.placement.serving[partition]
        return any(
            self.has_complete_replica(ordinal, partition) for ordinal in serving if ordinal != self._own
        )

    def another_is_fresh(self, partition: int, lag_ms_max: int) -> bool:
        """Whether another node can be heard that serves the partition, and has said that its copy is up to date."""
        for ordinal in self._replicas.placement.serving[partition]:
            node = self.last_heartbeats.get(ordinal) if ordinal not in self.suspected else None
            replica = None if node is None else node.replicas.get(partition)
            if replica is not None and replica.complete and 0 <= replica.lag_ms <= lag_ms_max:
                return True
        return False

    def attempts(
        self, partition: int, deadline: float, asked: ReadOptions | None = None, last: Collection[int] = ()
    ) -> Attempts | None:
        """For one request; None: there is nobody to ask. `last` are nodes to ask behind all others, and not as a hedge."""
        candidates = sorted(self.candidates(partition, asked), key=lambda ordinal: ordinal in last)
        if not candidates:
            return None
        patience = _WAITING_READ_SECONDS if asked is not None and may_wait_for_freshness(asked) else 0.0
        if last:
            patience = inf
        return Attempts(candidates, deadline, self._health, self.hedges, patience)

    @asynccontextmanager
    async def unless_suspected(self, ordinal: int, partitions: Collection[int]) -> AsyncIterator[None]:
        """A question about these partitions ends (PeerAway) when the node is in doubt, and others that are not have them."""
        peer = self._peers.get(ordinal)
        if peer is None:
            yield
            return
        limit = asyncio.timeout(None)
        try:
            async with limit:
                peer.reading[limit] = partitions
                yield
        except TimeoutError:
            raise PeerUnavailable("it has come into doubt before it answered") from None
        finally:
            peer.reading.pop(limit, None)

    def _read_elsewhere(self, ordinal: int, now: float) -> None:
        """What is asked of this node, which is in doubt, as far as others can answer it."""
        reading = self._peers[ordinal].reading
        others = [other for other in self._peers if other != ordinal and self._health[other].allows(now)]
        for limit, partitions in list(reading.items()):
            if all(
                any(self.has_complete_replica(other, partition) for other in others)
                for partition in partitions
            ):
                del reading[limit]
                limit.reschedule(now)

    # The nodes that there are.

    def _follow(self) -> None:
        """The placement has changed: other nodes, or other addresses."""
        self._followed = self._replicas.placement
        wanted = {ordinal: self.address(ordinal) for ordinal in self.others()}
        for ordinal, peer in list(self._peers.items()):
            if wanted.get(ordinal) != peer.address:
                self._remove_replica(ordinal)
        for ordinal, address in wanted.items():
            if ordinal not in self._peers:
                self._peers[ordinal] = self._peer(ordinal, address)
        self._routes.clear()

    def _peer(self, ordinal: int, address: str) -> _Peer:
        health = self._health[ordinal] = PeerHealth()
        client = PeerClient(address, self._connections_max)
        beat = b"GET %b HTTP/1.1\r\n%b%b\r\n" % (HEARTBEAT.encode(), client.host_line, self.node_headers)
        lines = b" HTTP/1.1\r\n%b%b: %b\r\n%b: " % (
            client.host_line,
            FORWARDED_HEADER.encode(),
            self._token.encode(),
            DEADLINE_HEADER.encode(),
        )
        return _Peer(
            address,
            health,
            Heartbeats(ordinal, address, beat, health, self._hear, self._note),
            client,
            PeerLink(ordinal, address, health),
            lines,
        )

    def _remove_replica(self, ordinal: int) -> None:
        peer = self._peers.pop(ordinal)
        peer.heartbeats.close()
        peer.client.close()
        peer.link.close()
        self.last_heartbeats.pop(ordinal, None)
        self.suspected -= {ordinal}

    # Heartbeats.

    def peer_with_newest_placement(self) -> int | None:
        """The node with the newest placement among those that follow a newer one than this node."""
        newest = max(
            self.last_heartbeats, key=lambda ordinal: self.last_heartbeats[ordinal].epoch, default=None
        )
        if newest is None or self.last_heartbeats[newest].epoch <= self._replicas.placement.epoch:
            return None
        return newest

    def heartbeat_body(self) -> bytes:
        """What this node answers to a heartbeat."""
        moment, words = self._said
        now = asyncio.get_running_loop().time()
        if now - moment > _SAID_SECONDS:
            now_ms = monotonic_ms()
            standings = {
                partition: ReportedReplica(
                    next_offset(replica),
                    lag_ms(replica, now_ms),
                    replica.complete and replica.damaged is None,
                )
                for partition, replica in self._replicas.by_partition.items()
            }
            words = encode_heartbeat(
                self._replicas.placement.epoch, self._replicas.mismatches, standings, self.draining
            )
            self._said = (now, words)
        return words

    def _tick(self, now: float) -> None:
        if self._replicas.placement is not self._followed:
            self._follow()
        self._routes.clear()
        for peer in self._peers.values():
            with guarded("Peers.tick"):
                peer.heartbeats.beat(now)
                peer.link.check(now)
        for ordinal, peer in self._peers.items():
            if peer.reading and peer.health.unhealthy:
                self._read_elsewhere(ordinal, now)

    def _hear(self, ordinal: int, words: bytes) -> None:
        before = self.last_heartbeats.get(ordinal)
        last_heartbeats = self.last_heartbeats[ordinal] = decode_heartbeat(
            words, asyncio.get_running_loop().time()
        )
        if before is None or before.mismatches != last_heartbeats.mismatches:
            everyone = [node.mismatches for node in self.last_heartbeats.values()]
            murmur2, crc32, fnv1a = (sum(counts) for counts in zip(*everyone, strict=True))
            self._replicas.mismatches_elsewhere = murmur2, crc32, fnv1a
            self._replicas.note_mismatches()
        if last_heartbeats.epoch > self._replicas.placement.epoch:
            self.on_newer_epoch(ordinal)

    def _note(self, ordinal: int, why: str) -> None:
        suspect = self._health[ordinal].suspect
        if suspect != (ordinal in self.suspected):
            self.suspected ^= {ordinal}
            self._routes.clear()
            event("peer-away" if suspect else "peer-back", peer=self._peers[ordinal].address, reason=why)

    def is_not_a_peer(self, ordinal: int) -> bool:
        """It was in an earlier placement, from which a request may still know it."""
        return ordinal not in self._peers

    # Questions.

    def send_plain_read(self, ordinal: int, key: bytes, asker: Asker, now: float, deadline: float) -> bool:
        """A plain point read for a key as it stands in a path. False when too much waits for the node already."""
        peer = self._peers.get(ordinal)
        if peer is None:
            return False
        remaining_ms = int((deadline - now) * 1000 + 0.5) // _PLAIN_DEADLINE_STEP_MS * _PLAIN_DEADLINE_STEP_MS
        request = b"GET /v1/keys/%b%b%d\r\n\r\n" % (key, peer.plain_lines, remaining_ms or 1)
        return peer.link.ask(request, asker, now)

    async def fetch_placement(self, ordinal: int, deadline: float) -> Placement:
        """The one that the node follows. Raises PeerAway."""
        answer = await self.ask(ordinal, b"GET", PLACEMENT_PATH.encode(), self.node_headers, b"", deadline)
        try:
            if answer.status != 200:
                raise ValueError(f"it answered {answer.status}")
            return Placement.from_json(answer.body.decode())
        except (ValueError, KeyError, TypeError) as error:
            raise PeerUnavailable(f"no placement from node {ordinal}: {error}") from None

    async def forward(
        self, ordinal: int, target: bytes, headers: bytes, asked: ReadOptions, deadline: float
    ) -> PeerResponse:
        """A client's point read, answered by another node. Raises PeerAway."""
        mark = b"%b: %b\r\n%b: %d\r\n" % (
            FORWARDED_HEADER.encode(),
            self._token.encode(),
            DEADLINE_HEADER.encode(),
            remaining_ms(deadline, FRESHNESS_WAIT_SHARE if may_wait_for_freshness(asked) else 1.0),
        )
        answer = await self.ask(
            ordinal, b"GET", target, headers + mark, b"", deadline, may_wait_for_freshness(asked)
        )
        if answer.status in TOKEN_REFUSED_STATUSES:
            raise PeerUnavailable(f"node {ordinal} has another token")
        return answer

    async def ask(
        self,
        ordinal: int,
        method: bytes,
        target: bytes,
        headers: bytes,
        body: bytes,
        deadline: float,
        may_wait_for_freshness: bool = True,
    ) -> PeerResponse:
        """`may_wait_for_freshness`: the answer may take long without meaning anything. Raises PeerAway."""
        peer = self._peers.get(ordinal)
        if peer is None:
            raise PeerUnavailable(f"node {ordinal} has left the placement")
        health, time = peer.health, asyncio.get_running_loop().time
        began = time()
        health.asked(began)
        try:
            answer = await peer.client.ask(method, target, headers, body, deadline)
        except (PeerTimeout, asyncio.CancelledError):
            if not may_wait_for_freshness and time() - began >= health.timeout_after:
                health.failed(time())
            raise
        except PeerUnavailable:
            health.failed(time())
            raise
        health.answered(None if may_wait_for_freshness else time() - began)
        return answer


def may_wait_for_freshness(asked: ReadOptions) -> bool:
    """Whether a copy may wait until it is fresh enough before it answers."""
    return asked.consistency in (Consistency.AT_LEAST, Consistency.STRONG)


def remaining_ms(deadline: float, share: float = 1.0) -> int:
    return max(1, int((deadline - asyncio.get_running_loop().time()) * share * 1000))
