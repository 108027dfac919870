"""Find the replicas that could have answered a failed read."""

from __future__ import annotations

from dataclasses import dataclass

from queryable_app.placement.assignment import Placement
from tests.simulation.checks import ReadRequest
from tests.simulation.nodes import CLIENT, PLACER, host_of
from tests.simulation.world import World

_SETTLING_SECONDS = 5.0  # after that long a reachable node has received every change
_SLACK_MS = 700  # a lag grows between two requests for the end offsets


def readable_replicas(world: World, key: bytes, read_request: ReadRequest, now: float) -> dict[int, object]:
    """Return the replicas that could answer now, by the ordinal of their node."""
    if read_request.consistency not in ("bounded",) or world.mixed:
        return {}
    partition = world.topic.partition_of(key)
    found: dict[int, object] = {}
    for ordinal, machine in world.machines.items():
        if machine.node is None:
            continue
        replica = machine.node.replicas.by_partition.get(partition)
        if replica is not None and replica._recovered_at is not None and replica._recovered_at >= now:
            continue  # its store was reopened meanwhile
        if (
            replica is None
            or not replica.complete
            or replica.failed is not None
            or replica.absent is not None
        ):
            continue
        if replica.store.on_disk.corrupt_keys:  # type: ignore[attr-defined]
            continue
        if read_request.max_lag_ms is not None:
            then = world.scheduler.now - (read_request.max_lag_ms - _SLACK_MS) / 1000
            if world.topic.away or not world.has_all(replica, then):
                continue
            now_ms = int(world.scheduler.monotonic() * 1000)
            if now_ms - replica.fresh_as_of_ms > read_request.max_lag_ms - _SLACK_MS:
                continue
        found[ordinal] = replica
    return found


@dataclass(frozen=True, slots=True)
class BegunRead:
    """Hold what could answer a read when it began."""

    ordinal: int
    key: bytes
    read_request: ReadRequest
    began: float
    replicas: dict[int, object]
    placement: Placement | None
    """The placement that the requested node followed; None if it did not run."""


def begin_read(world: World, ordinal: int, key: bytes, read_request: ReadRequest, now: float) -> BegunRead:
    """Note what could answer a read of this node that begins now."""
    machine = world.machines.get(ordinal)
    placement = machine.node.placement if machine is not None and machine.node is not None else None
    replicas = readable_replicas(world, key, read_request, now)
    return BegunRead(ordinal, key, read_request, now, replicas, placement)


def must_be_answered(world: World, read: BegunRead) -> bool:
    """Tell whether one reachable replica could have answered throughout the read.

    A node that was cut off from the others may learn of a newer placement after it has forwarded the read. So the replica's node
    must serve in the placement of the read's beginning too. A node that was connected for long has each placement in time.
    """
    machine, partition = world.machines.get(read.ordinal), world.topic.partition_of(read.key)
    began = read.began
    if machine is None or machine.node is None or read.placement is None:
        return False
    if not world.reachability.connected(CLIENT, machine.host, began):
        return False
    after = readable_replicas(world, read.key, read.read_request, began)
    placements = (read.placement, machine.node.placement)
    for other, replica in read.replicas.items():
        if after.get(other) is not replica or not world.reachability.connected(
            machine.host, host_of(other), began
        ):
            continue
        if other == read.ordinal or all(other in placement.serving[partition] for placement in placements):
            return True
        settled = began - _SETTLING_SECONDS
        hosts = [host_of(o) for o in range(len(world.placement.addresses))]
        if world.reachability.connected(machine.host, PLACER, settled) and all(
            world.reachability.connected(machine.host, host, settled) for host in hosts
        ):
            return True
    return False
