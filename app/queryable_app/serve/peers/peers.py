"""Track the other nodes of the view, and send requests to them.

Strategy: one timer sends heartbeats: ten a second to every node of a small view, and in turns to those of a large one
(`policy/failure_detector.py`). The responses say that the node is reachable, how far its replicas are, which placement it
follows, and which partitioners its records mismatch, so that every node looks for a key in the same place. Which node gets a
read is decided in `policy/routing.py`, `policy/attempts.py` and `policy/failure_detector.py`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Final

from queryable_app.contract import NODE_HEADER, PLACEMENT_PATH, NodeSettings
from queryable_app.placement.assignment import Placement
from queryable_app.platform.log import event
from queryable_app.policy.attempts import Attempts, HedgeBudget
from queryable_app.policy.failure_detector import (
    HEARTBEAT_SECONDS,
    PeerHealth,
    heartbeat_current_seconds,
    heartbeat_ticks,
)
from queryable_app.policy.freshness import Consistency, ReadOptions
from queryable_app.policy.routing import LastHeartbeat, PeerStates, ReportedReplica, route
from queryable_app.serve.base.background import Background, guarded
from queryable_app.serve.base.peer_frames import decode_heartbeat
from queryable_app.serve.peers.client import (
    CONNECTIONS_MAX,
    PeerClient,
    PeerResponse,
    PeerTimeout,
    PeerUnavailable,
)
from queryable_app.serve.peers.connection import TlsOf, host_line
from queryable_app.serve.peers.heartbeats import Heartbeats
from queryable_app.serve.peers.own_heartbeat import OwnHeartbeat
from queryable_app.serve.peers.peer import FirstSend, Peer, plain_request
from queryable_app.serve.peers.pipeline import ReadPipeline, ResponseHandler
from queryable_app.serve.store.replicas import Replicas

FORWARDED_HEADER: Final = "qt-forwarded"
DEADLINE_HEADER: Final = "qt-deadline-ms"
HEARTBEAT: Final = "/internal/v1/heartbeat"
FRESHNESS_WAIT_SHARE: Final = 0.95
"""The share of the remaining time in which another node may wait. In the rest it reports how far its replica is."""
TOKEN_REFUSED_STATUSES: Final = (401, 403)
"""The other node has another token: it refuses this node, and not the client."""

_FIRST_HEARTBEAT_SECONDS: Final = 0.5
_HEDGE_DELAY_SECONDS: Final = 0.25  # of a read that may wait for freshness


class Peers(Background):
    """The other nodes, by ordinal."""

    def __init__(
        self,
        settings: NodeSettings,
        replicas: Replicas,
        connections_max: int = CONNECTIONS_MAX,
        tls: TlsOf | None = None,
    ) -> None:
        self._connections_max = connections_max
        self.tls = tls
        self._own = settings.ordinal
        self._pod = settings.pod_ordinals
        self._replicas = replicas
        path = settings.internal_token_path
        self._token = Path(path).read_text().strip() if path else ""
        self._followed: Placement | None = None
        self._peers: dict[int, Peer] = {}
        self._health: dict[int, PeerHealth] = {}
        """Includes nodes that have left the placement, for requests that began before."""
        self.hedges = HedgeBudget()
        self._routes: dict[int, tuple[int, ...]] = {}
        """Candidates for plain reads, since the last heartbeat."""
        self._own_heartbeat = OwnHeartbeat(replicas)
        self._ticks = 0
        self.last_heartbeats: dict[int, LastHeartbeat] = {}
        self.suspected: frozenset[int] = frozenset()
        self.draining = False
        """Whether this node will end soon. Its heartbeats say so."""
        self.on_newer_epoch: Callable[[int], None] = lambda ordinal: None
        """Called with the ordinal of a node that follows a newer placement, for each heartbeat that says so."""
        self.node_headers = f"{NODE_HEADER}: {self._token}\r\n".encode()
        """Header lines that authenticate this node to the others."""
        self.forwarded_line = f"{FORWARDED_HEADER}: {self._token}\r\n".encode()

    async def start(self) -> None:
        """Wait shortly for the first heartbeats: the partitioner in use decides where a key is."""
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
            self._remove(ordinal)

    def accepts_token(self, token: str) -> bool:
        return bool(self._token) and hmac.compare_digest(token.encode(), self._token.encode())

    def others(self) -> list[int]:
        """Return the other nodes of the placement, or none without a token."""
        ordinals = range(len(self._replicas.placement.addresses))
        return [ordinal for ordinal in ordinals if ordinal != self._own] if self._token else []

    def address(self, ordinal: int) -> str:
        return self._replicas.placement.addresses[ordinal]

    # Routing.

    def candidates(self, partition: int, options: ReadOptions | None = None) -> Sequence[int]:
        """Return the other nodes with the partition, in the order to try them."""
        if not self._token:
            return ()
        if self._replicas.placement is not self._followed:
            self._follow_placement()
        ordered = self._routes.get(partition) if options is None else None
        if ordered is None:
            current_seconds = heartbeat_current_seconds(len(self._peers))
            states = PeerStates(self.suspected, self.last_heartbeats, current_seconds)
            now = asyncio.get_running_loop().time()
            all_nodes = route(
                partition, self._replicas.placement, self._own, states, now, options or ReadOptions()
            )
            ordered = tuple(ordinal for ordinal in all_nodes if ordinal != self._own)
            if options is None:
                self._routes[partition] = ordered
        return ordered

    def has_complete_replica(self, ordinal: int, partition: int) -> bool:
        """Whether the node is not suspected, and reported a replica that is complete and not damaged."""
        replica = self._reported(ordinal, partition)
        return replica is not None and replica.complete

    def siblings(self) -> list[int]:
        """Return the other workers of this node's pod, or none without a token."""
        return [ordinal for ordinal in self.others() if ordinal in self._pod]

    def is_ready(self, ordinal: int) -> bool:
        """Whether the node answers, does not drain, and reported that all replicas that it serves are complete."""
        last = self.last_heartbeats.get(ordinal)
        if last is None or last.draining or ordinal in self.suspected:
            return False
        serving = self._replicas.placement.serving
        return all(
            self.has_complete_replica(ordinal, partition)
            for partition, ordinals in enumerate(serving)
            if ordinal in ordinals
        )

    def another_is_complete(self, partition: int) -> bool:
        """Whether another node serves such a replica."""
        serving = self._replicas.placement.serving[partition]
        return any(
            self.has_complete_replica(ordinal, partition) for ordinal in serving if ordinal != self._own
        )

    def another_is_fresh(self, partition: int, lag_ms_max: int) -> bool:
        """Whether another node serves a replica that it reported to be complete and no further behind than that."""
        serving = self._replicas.placement.serving[partition]
        reported = (self._reported(ordinal, partition) for ordinal in serving)
        return any(
            replica is not None and replica.complete and 0 <= replica.lag_ms <= lag_ms_max
            for replica in reported
        )

    def _reported(self, ordinal: int, partition: int) -> ReportedReplica | None:
        """Return the replica as the last heartbeat reported it; None if the node is suspected."""
        node = self.last_heartbeats.get(ordinal) if ordinal not in self.suspected else None
        return None if node is None else node.replicas.get(partition)

    def attempts(
        self,
        partition: int,
        deadline: float,
        options: ReadOptions | None = None,
        last: Collection[int] = (),
    ) -> Attempts | None:
        """Return the attempts of one read; None if no other node has the partition. Nodes in `last` are tried after all others,
        and not as a hedge."""
        candidates = list(self.candidates(partition, options))
        if not candidates:
            return None
        hedge_delay = _HEDGE_DELAY_SECONDS if options and may_wait_for_freshness(options) else 0.0
        if last:
            candidates.sort(key=lambda ordinal: ordinal in last)
            hedge_delay = inf
        return Attempts(candidates, deadline, self._health, self.hedges, hedge_delay)

    def attempts_of(
        self, candidates: Sequence[int], deadline: float, first_sent_at: float | None = None
    ) -> Attempts:
        """Return the attempts of a plain read. The first candidate may have got it already, by `send_first`."""
        sent = None if first_sent_at is None else (candidates[0], first_sent_at)
        return Attempts(candidates, deadline, self._health, self.hedges, sent=sent)

    @asynccontextmanager
    async def unless_suspected(self, ordinal: int, partitions: Collection[int]) -> AsyncIterator[None]:
        """End a request for these partitions (PeerUnavailable) when its node is unhealthy and other nodes can serve them."""
        peer = self._peers.get(ordinal)
        if peer is None:
            yield
            return
        limit = asyncio.timeout(None)
        try:
            async with limit:
                peer.movable[limit] = partitions
                yield
        except TimeoutError:
            raise PeerUnavailable("the node is suspected, and has not answered") from None
        finally:
            peer.movable.pop(limit, None)

    def _end_movable_requests(self, ordinal: int, now: float) -> None:
        """End the requests to an unhealthy node that other nodes can serve."""
        movable = self._peers[ordinal].movable
        others = [other for other in self._peers if other != ordinal and self._health[other].allows(now)]
        for limit, partitions in list(movable.items()):
            if all(
                any(self.has_complete_replica(other, partition) for other in others)
                for partition in partitions
            ):
                del movable[limit]
                limit.reschedule(now)

    # Membership.

    def _follow_placement(self) -> None:
        """Add and remove nodes as a new placement says."""
        self._followed = self._replicas.placement
        wanted = {ordinal: self.address(ordinal) for ordinal in self.others()}
        for ordinal, peer in list(self._peers.items()):
            if wanted.get(ordinal) != peer.address:
                self._remove(ordinal)
        for ordinal, address in wanted.items():
            if ordinal not in self._peers:
                self._peers[ordinal] = self._new_peer(ordinal, address)
        self._routes.clear()

    def _new_peer(self, ordinal: int, address: str) -> Peer:
        health = self._health[ordinal] = PeerHealth()
        host = host_line(address)
        heartbeat = b"GET %b HTTP/1.1\r\n%b%b\r\n" % (HEARTBEAT.encode(), host, self.node_headers)
        return Peer(
            address,
            health,
            Heartbeats(
                ordinal, address, heartbeat, health, self._on_heartbeat, self._on_health_change, self.tls
            ),
            PeerClient(address, self._connections_max, self.tls),
            ReadPipeline(ordinal, address, health, self.tls),
            b" HTTP/1.1\r\n%b%b%b: " % (host, self.forwarded_line, DEADLINE_HEADER.encode()),
        )

    def _remove(self, ordinal: int) -> None:
        peer = self._peers.pop(ordinal)
        peer.heartbeats.close()
        peer.client.close()
        peer.pipeline.close()
        self.last_heartbeats.pop(ordinal, None)
        self.suspected -= {ordinal}

    def is_not_a_peer(self, ordinal: int) -> bool:
        """Whether the node has left the placement. A request that began before may still name it."""
        return ordinal not in self._peers

    # Heartbeats.

    def peer_with_newest_placement(self) -> int | None:
        """Return the node with the newest placement, or None if this node's is as new."""
        heartbeats = self.last_heartbeats
        newest = max(heartbeats, key=lambda ordinal: heartbeats[ordinal].epoch, default=None)
        if newest is None or heartbeats[newest].epoch <= self._replicas.placement.epoch:
            return None
        return newest

    def heartbeat_body(self) -> bytes:
        """Return this node's response to a heartbeat."""
        return self._own_heartbeat.body(self.draining)

    def _tick(self, now: float) -> None:
        if self._replicas.placement is not self._followed:
            self._follow_placement()
        self._routes.clear()
        self._ticks += 1
        ticks = heartbeat_ticks(len(self._peers))
        for ordinal, peer in self._peers.items():
            with guarded("Peers.tick"):
                peer.pipeline.check(now)  # a late read makes a heartbeat due
                peer.heartbeats.beat(now, in_turn=(self._ticks + ordinal) % ticks == 0)
        for ordinal, peer in self._peers.items():
            if peer.movable and peer.health.unhealthy:
                self._end_movable_requests(ordinal, now)

    def _on_heartbeat(self, ordinal: int, body: bytes) -> None:
        before = self.last_heartbeats.get(ordinal)
        heartbeat = decode_heartbeat(body, asyncio.get_running_loop().time())
        self.last_heartbeats[ordinal] = heartbeat
        if before is None or before.mismatches != heartbeat.mismatches:
            self._replicas.partitioner.note_counts(f"node {ordinal}", heartbeat.mismatches)
        if heartbeat.epoch > self._replicas.placement.epoch:
            self.on_newer_epoch(ordinal)

    def _on_health_change(self, ordinal: int, reason: str) -> None:
        suspected = self._health[ordinal].suspected
        if suspected != (ordinal in self.suspected):
            self.suspected ^= {ordinal}
            self._routes.clear()
            event("peer-away" if suspected else "peer-back", peer=self._peers[ordinal].address, reason=reason)

    # Requests.

    def send_first(self, ordinal: int, reads: Sequence[FirstSend], now: float, seconds: float) -> bool:
        """Send plain reads, which have so much time left, to a healthy node. False: let `attempts_of` decide."""
        peer = self._peers.get(ordinal)
        if peer is None or peer.health.unhealthy or not peer.pipeline.has_room(len(reads)):
            return False
        tail = peer.plain_tail(seconds)
        for read in reads:
            read.content = plain_request(read.key, tail, read.credentials)
            read.sent_at = now
        peer.pipeline.send_now(reads)
        self.hedges.note_requests(len(reads))
        return True

    def send_plain_read(
        self,
        ordinal: int,
        key: bytes,
        handler: ResponseHandler,
        now: float,
        deadline: float,
        credentials: bytes = b"",
    ) -> bool:
        """Send a read of a key, as it stands in a path. False: the node has left, or too many reads wait for it."""
        peer = self._peers.get(ordinal)
        if peer is None:
            return False
        peer.health.asked(now)
        request = plain_request(key, peer.plain_tail(deadline - now), credentials)
        return peer.pipeline.send(request, handler, now)

    async def send_read(
        self, ordinal: int, target: bytes, headers: bytes, options: ReadOptions, deadline: float
    ) -> PeerResponse:
        """Send a read with options. `headers` are whole lines. Raises PeerUnavailable."""
        may_wait = may_wait_for_freshness(options)
        left_ms = remaining_ms(deadline, FRESHNESS_WAIT_SHARE if may_wait else 1.0)
        headers += b"%b%b: %d\r\n" % (self.forwarded_line, DEADLINE_HEADER.encode(), left_ms)
        return await self.request(ordinal, b"GET", target, headers, b"", deadline, may_wait)

    async def fetch_placement(self, ordinal: int, deadline: float) -> Placement:
        """Return the placement that the node follows. Raises PeerUnavailable."""
        response = await self.request(
            ordinal, b"GET", PLACEMENT_PATH.encode(), self.node_headers, b"", deadline
        )
        try:
            if response.status != 200:
                raise ValueError(f"it answered {response.status}")
            return Placement.from_json(response.body.decode())
        except (ValueError, KeyError, TypeError) as error:
            raise PeerUnavailable(f"no placement from node {ordinal}: {error}") from None

    async def request(
        self,
        ordinal: int,
        method: bytes,
        target: bytes,
        headers: bytes,
        body: bytes,
        deadline: float,
        may_wait: bool = True,
    ) -> PeerResponse:
        """Send any request. `may_wait`: a late response says nothing about the node's health. Raises PeerUnavailable."""
        peer = self._peers.get(ordinal)
        if peer is None:
            raise PeerUnavailable(f"node {ordinal} has left the placement")
        health, time = peer.health, asyncio.get_running_loop().time
        began = time()
        health.asked(began)
        try:
            response = await peer.client.request(method, target, headers, body, deadline)
        except (PeerTimeout, asyncio.CancelledError):
            if not may_wait and time() - began >= health.timeout_after:
                health.failed(time())
            raise
        except PeerUnavailable:
            health.failed(time())
            raise
        health.answered(None if may_wait else time() - began)
        return response


def may_wait_for_freshness(options: ReadOptions) -> bool:
    """Whether a replica may wait until it is fresh enough before it answers."""
    return options.consistency in (Consistency.AT_LEAST, Consistency.STRONG)


def remaining_ms(deadline: float, share: float = 1.0) -> int:
    return max(1, int((deadline - asyncio.get_running_loop().time()) * share * 1000))
