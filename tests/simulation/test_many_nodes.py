"""Test the heartbeats of a large view: the `Peers` of all its nodes, in one thread and in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from queryable_app.placement.assignment import initial_placement
from queryable_app.policy import failure_detector
from queryable_app.serve.peers import peers as peers_module
from queryable_app.serve.peers.peers import HEARTBEAT, Peers
from queryable_app.serve.store.partitioner_in_use import PartitionerInUse
from queryable_app.serve.store.replicas import Replicas
from tests.simulation.clock import Process, Scheduler
from tests.simulation.network import Network
from tests.simulation.nodes import APPLICATION_ID, Machine, address_of, host_of

_TICK = failure_detector.HEARTBEAT_SECONDS
_SUSPECTED_WITHIN = 4.5 * _TICK
"""After a heartbeat was sent: three missed ones, and the tick that follows the last."""
_NETWORK_SECONDS = 0.01


class _Answers(asyncio.Protocol):
    """Answer heartbeats as a node does, and plain reads with 404."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for request in data.split(b"\r\n\r\n")[:-1]:
            is_heartbeat = request.startswith(b"GET " + HEARTBEAT.encode())
            body = self._peers.heartbeat_body() if is_heartbeat else b""
            status = b"200 OK" if is_heartbeat else b"404 Not Found"
            self._transport.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))


class _NoHandler:
    def on_response(self, ordinal: int, status: int, head: bytes, body: bytes) -> None: ...

    def on_failure(self, ordinal: int) -> None: ...


class _View:
    """The nodes of a view, all started at once. `heartbeats` counts them by sender and receiver."""

    def __init__(self, directory: Path, nodes: int) -> None:
        self.scheduler = Scheduler(random.Random(0))
        self.network = Network(self.scheduler, random.Random(0))
        self.network.watch = self._watch
        self.heartbeats: Counter[tuple[str, str]] = Counter()
        self.processes: list[Process] = []
        self._all_processes: list[Process] = []
        self.peers: list[Peers] = []
        addresses = [address_of(ordinal) for ordinal in range(nodes)]
        placement = initial_placement(APPLICATION_ID, 2 * nodes, addresses, 2)
        for ordinal in range(nodes):
            machine = Machine(directory, ordinal, "murmur2")
            machine.bootstrap = placement
            partitioner = PartitionerInUse("murmur2", placement.partitions, machine.directory / "mismatches")
            process = self.process_of(ordinal)
            peers = Peers(machine.settings(), Replicas(placement, (), partitioner))
            self.network.listen(process.name, process)
            self.network.serve(process.name, lambda peers=peers: _Answers(peers))  # type: ignore[misc]
            process.call_soon(lambda process=process, peers=peers: process.create_task(peers.start()))
            self.processes.append(process)
            self.peers.append(peers)
        self.run(1.0)
        assert self.suspecting() == {}

    def _watch(self, source: str, target: str, data: bytes) -> None:
        if data.startswith(b"GET " + HEARTBEAT.encode()):
            self.heartbeats[source, target] += 1

    def process_of(self, ordinal: int) -> Process:
        """Return a new process of a node."""
        process = Process(host_of(ordinal), self.scheduler, pytest.fail, self.network.connect)  # type: ignore[abstract]
        self._all_processes.append(process)
        return process

    def run(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now + seconds)

    def suspecting(self) -> dict[int, frozenset[int]]:
        """Return the suspected nodes of each node that suspects any."""
        return {
            ordinal: peers.suspected
            for ordinal, peers in enumerate(self.peers)
            if peers.suspected and not (self.processes[ordinal].killed or self.processes[ordinal].stopped)
        }

    def close(self) -> None:
        for process in self._all_processes:
            process.cancel_all()
        self.run(0.1)
        for process in self._all_processes:
            process.discard()


@contextmanager
def _view(directory: Path, nodes: int, heartbeats_per_tick: int) -> Iterator[_View]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers_module, "event", lambda *_, **__: None)
        patch.setattr(failure_detector, "HEARTBEATS_PER_TICK_MAX", heartbeats_per_tick)
        view = _View(directory, nodes)
        yield view
        view.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_View]:
    """100 nodes. Each test leaves all of them running."""
    directory = tmp_path_factory.mktemp("large")
    with _view(directory, 100, failure_detector.HEARTBEATS_PER_TICK_MAX) as view:
        yield view


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[_View]:
    """20 nodes, of which each gets a heartbeat every 1.9 s, as in a view of 380."""
    with _view(tmp_path, 20, 1) as view:
        yield view


def test_heartbeats_of_each_node_are_bounded(large: _View) -> None:
    """Each of 100 nodes sends and answers at most 200 heartbeats a second, and every pair exchanges one each half second."""
    large.heartbeats.clear()
    large.run(2.0)
    sent: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    for (source, target), number in large.heartbeats.items():
        sent[source] += number
        answered[target] += number
    assert set(large.heartbeats.values()) == {4}
    assert set(sent.values()) == set(answered.values()) == {4 * 99}
    assert large.suspecting() == {}


def test_stopped_node_is_suspected_by_all_after_their_turns(large: _View) -> None:
    """Within its turn, half a second, and three missed heartbeats each node suspects it, and no other one."""
    large.processes[7].stop_signal()
    large.run(0.5 + _SUSPECTED_WITHIN)
    assert large.suspecting() == {ordinal: {7} for ordinal in range(100) if ordinal != 7}
    large.processes[7].continue_signal()
    large.run(2 * _NETWORK_SECONDS)
    assert large.suspecting() == {}


def test_killed_node_is_suspected_at_once(slow: _View) -> None:
    """The end of a connection does not wait for a turn. Once the node has returned, each node reaches it in its turn."""
    process, peers = slow.processes[7], slow.peers[7]
    process.kill()
    slow.network.kill(process.name)
    slow.run(_NETWORK_SECONDS)
    assert slow.suspecting() == {ordinal: {7} for ordinal in range(20) if ordinal != 7}
    returned = slow.process_of(7)
    slow.network.listen(process.name, returned)
    slow.network.serve(process.name, lambda: _Answers(peers))
    slow.run(1.9 + _TICK)
    assert slow.suspecting() == {}


def test_node_that_does_not_answer_a_read_is_suspected_before_its_turn(slow: _View) -> None:
    """A late read makes a heartbeat due, and the missed ones count at every tick."""
    slow.heartbeats.clear()
    while not (had_turn := [target for source, target in slow.heartbeats if source == "node0"]):
        slow.run(_TICK / 4)
    ordinal = int(had_turn[0].removeprefix("node"))
    slow.run(2 * _NETWORK_SECONDS)  # it answers
    slow.processes[ordinal].stop_signal()
    process = slow.processes[0]

    def read() -> None:
        now = process.time()
        assert slow.peers[0].send_plain_read(ordinal, b"key", _NoHandler(), now, now + 5)

    process.call_soon(read)
    slow.run(2 * _TICK + _SUSPECTED_WITHIN)  # the read counts as late after a tick, and a tick notices it
    assert slow.suspecting() == {0: {ordinal}}
