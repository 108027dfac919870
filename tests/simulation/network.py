"""Simulate connections between hosts: in order, delayed, and cut at times.

Strategy: as in TCP, no byte is lost or overtaken within a connection. Bytes sent over a cut link wait until it is repaired, as if
they were sent again and again; only an end of the connection can abandon it. A killed host resets its connections and
refuses new ones; a stopped host accepts them and sends nothing.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.clock import Process, Scheduler

_USUAL_SECONDS = (0.0002, 0.002)
_AGAIN_SECONDS = (0.2, 0.45)  # a packet that was lost is sent again after that
_REFUSED = "connection refused"
_RESET = "connection reset"

Protocol = Any
Link = tuple[str, str]


class Listener:
    """Simulate a host's port. Connections wait in its backlog until the host serves, and while it has no descriptor."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.factory: Callable[[], Protocol] | None = None
        self.waiting: list[Transport] = []


class Network:
    def __init__(self, scheduler: Scheduler, seed: random.Random) -> None:
        self.scheduler = scheduler
        self.random = seed
        self.loss = 0.0
        self.extra_seconds: dict[Link, float] = {}
        self.watch: Callable[[str, str, bytes], None] = lambda source, target, data: None
        """Sees everything that is sent."""
        self._starved: set[str] = set()
        self._cut: set[Link] = set()
        self._stuck: dict[Link, list[_Way]] = {}
        self._listeners: dict[str, Listener] = {}
        self._transports: dict[str, dict[Transport, None]] = {}

    # The world.

    def listen(self, host: str, process: Process) -> None:
        self._listeners[host] = Listener(process)

    def serve(self, host: str, factory: Callable[[], Protocol]) -> None:
        """Let a host accept connections."""
        self._listeners[host].factory = factory
        self._accept_waiting(host)

    def kill(self, host: str) -> None:
        """Reset the connections of a host."""
        self._listeners.pop(host, None)
        for transport in list(self._transports.pop(host, {})):
            transport.reset_by_death()

    def exhaust_descriptors(self, host: str) -> None:
        """Leave a host without a descriptor: new connections wait in its backlog."""
        self._starved.add(host)

    def feed(self, host: str) -> None:
        self._starved.discard(host)
        self._accept_waiting(host)

    def _accept_waiting(self, host: str) -> None:
        listener = self._listeners.get(host)
        if listener is None or listener.factory is None or host in self._starved:
            return
        for transport in listener.waiting:
            transport.accept(listener.factory)
        listener.waiting.clear()

    def cut(self, link: Link) -> None:
        self._cut.add(link)

    def mend(self, link: Link) -> None:
        self._cut.discard(link)
        for way in self._stuck.pop(link, []):
            way.send_on()

    def is_cut(self, link: Link) -> bool:
        return link in self._cut

    def delay(self, link: Link) -> float:
        seconds = self.random.uniform(*_USUAL_SECONDS) + self.extra_seconds.get(link, 0.0)
        if self.loss and self.random.random() < self.loss:
            seconds += self.random.uniform(*_AGAIN_SECONDS)
        return seconds

    # Processes.

    async def connect(
        self, process: Process, factory: Callable[[], Protocol], host: str
    ) -> tuple[Transport, Protocol]:
        own = process.name
        if own in self._starved:
            raise OSError(errno.EMFILE, "Too many open files")
        there, back = _Way(self, (own, host)), _Way(self, (host, own))
        mine = Transport(self, process, own, there)
        made: asyncio.Future[bool] = process.create_future()

        def arrive() -> None:
            listener = self._listeners.get(host)
            if listener is None:
                back.send(lambda: None if made.done() else made.set_result(False))
                return
            theirs = Transport(self, listener.process, host, back)
            mine.peer, theirs.peer = theirs, mine
            self._transports.setdefault(host, {})[theirs] = None
            if listener.factory is None or host in self._starved:
                listener.waiting.append(theirs)
            else:
                theirs.accept(listener.factory)
            back.send(lambda: process.call_soon(_set, made))

        there.send(arrive)
        if not await made:
            raise ConnectionRefusedError(_REFUSED)
        if mine.is_closing():
            raise ConnectionResetError(_RESET)
        self._transports.setdefault(own, {})[mine] = None
        mine.protocol = protocol = factory()
        protocol.connection_made(mine)
        mine.start()
        return mine, protocol

    def forget(self, transport: Transport) -> None:
        self._transports.get(transport.host, {}).pop(transport, None)

    def stick(self, link: Link, way: _Way) -> None:
        ways = self._stuck.setdefault(link, [])
        if way not in ways:
            ways.append(way)


def _set(made: asyncio.Future[bool]) -> None:
    if not made.done():
        made.set_result(True)


class _Way:
    """Simulate one direction of a connection."""

    def __init__(self, network: Network, link: Link) -> None:
        self._network = network
        self.link = link
        self._items: deque[tuple[float, Callable[[], object]]] = deque()
        self._last = 0.0

    def send(self, arrive: Callable[[], object]) -> None:
        scheduler = self._network.scheduler
        self._last = max(self._last, scheduler.now + self._network.delay(self.link))
        self._items.append((self._last, arrive))
        scheduler.at(self._last, None, self.send_on)

    def send_on(self) -> None:
        now = self._network.scheduler.now
        while self._items and self._items[0][0] <= now:
            if self._network.is_cut(self.link):
                self._network.stick(self.link, self)
                return
            self._items.popleft()[1]()


class Transport(asyncio.Transport):
    """Simulate one end of a connection."""

    def __init__(self, network: Network, process: Process, host: str, way: _Way) -> None:
        super().__init__()
        self._network = network
        self._process = process
        self.host = host
        self._way = way
        self.peer: Transport | None = None
        self.protocol: Protocol = None
        self._arrived: deque[bytes | None] = deque()  # None: the other side sends no more
        self._reading = True
        self._started = False
        self._gone = False
        self._ended = False

    def accept(self, factory: Callable[[], Protocol]) -> None:
        def make() -> None:
            if self._gone:
                return
            self.protocol = factory()
            self.protocol.connection_made(self)
            self.start()

        self._process.call_soon(make)

    def start(self) -> None:
        self._started = True
        self._process.call_soon(self._hand_over)

    # What comes from the other end.

    def arrive(self, data: bytes | None) -> None:
        self._arrived.append(data)
        if self._started:
            self._process.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        while self._arrived and self._reading and not self._gone:
            data = self._arrived.popleft()
            if data is not None:
                self.protocol.data_received(data)
            elif not self.protocol.eof_received():
                self.close()

    def arrive_reset(self) -> None:
        self._process.call_soon(self._lose, ConnectionResetError(_RESET))

    def reset_by_death(self) -> None:
        if not self._gone:
            self._gone = True
            self._tell_peer(Transport.arrive_reset)

    def _tell_peer(self, what: Callable[[Transport], None]) -> None:
        if self.peer is not None:
            self._way.send(lambda: None if self.peer is None else what(self.peer))

    def _lose(self, error: Exception | None) -> None:
        if self._gone:
            return
        self._gone = True
        self._network.forget(self)
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    # asyncio.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._gone or self._ended or not data:
            return
        sent = bytes(data)
        self._network.watch(self._way.link[0], self._way.link[1], sent)
        self._tell_peer(lambda peer: peer.arrive(sent))

    def write_eof(self) -> None:
        if not (self._gone or self._ended):
            self._ended = True
            self._tell_peer(lambda peer: peer.arrive(None))

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._gone:
            self.write_eof()
            self._process.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._gone:
            self._tell_peer(Transport.arrive_reset)
            self._process.call_soon(self._lose, None)

    def is_closing(self) -> bool:
        return self._gone or self._ended

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._process.call_soon(self._hand_over)

    def is_reading(self) -> bool:
        return self._reading

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default
