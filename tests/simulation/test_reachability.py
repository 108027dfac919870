"""Test which hosts the simulation takes for reachable, and when a host accepts connections."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.simulation.clock import Process, Scheduler
from tests.simulation.network import Network
from tests.simulation.observations import Reachability

HOST = "node0"


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(random.Random(0))


def test_host_is_whole_when_its_last_fault_has_ended(scheduler: Scheduler) -> None:
    """A node that begins to serve without descriptors is not reachable until it has descriptors again."""
    reachability = Reachability(scheduler)
    reachability.mark_broken(HOST, "down")
    reachability.mark_broken(HOST, "no descriptors")
    reachability.end_cause(HOST, "down")
    assert not reachability.unchanged(HOST, scheduler.now)
    reachability.end_cause(HOST, "no descriptors")
    assert reachability.unchanged(HOST, scheduler.now)


def test_end_of_an_absent_fault_changes_nothing(scheduler: Scheduler) -> None:
    """A host that was whole throughout stays so when a fault ends that it did not have."""
    reachability = Reachability(scheduler)
    before = scheduler.now
    scheduler.run_until(before + 1)
    reachability.end_cause(HOST, "stopped")
    assert reachability.unchanged(HOST, before)


def test_host_without_descriptors_accepts_no_connection_when_it_begins_to_serve(scheduler: Scheduler) -> None:
    """A connection waits in the backlog until the host serves and has descriptors."""
    network = Network(scheduler, random.Random(0))
    accepted: list[asyncio.Protocol] = []

    class Accepted(asyncio.Protocol):
        def connection_made(self, _: asyncio.BaseTransport) -> None:
            accepted.append(self)

    def process(name: str) -> Process:
        return Process(name, scheduler, pytest.fail, network.connect)  # type: ignore[abstract]

    client = process("client")
    network.listen(HOST, process(HOST))
    network.exhaust_descriptors(HOST)
    client.create_task(network.connect(client, asyncio.Protocol, HOST))
    scheduler.run_until(scheduler.now + 1)
    network.serve(HOST, Accepted)
    scheduler.run_until(scheduler.now + 1)
    assert not accepted
    network.feed(HOST)
    scheduler.run_until(scheduler.now + 1)
    assert len(accepted) == 1
