"""Find the replicas that could have answered a failed read."""

from __future__ import annotations

from collections.abc import Mapping

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
            if world.topic.away or max(0, replica.position) < world.topic.end_at(partition, then):
                continue
            now_ms = int(world.scheduler.monotonic() * 1000)
            if now_ms - replica.fresh_as_of_ms > read_request.max_lag_ms - _SLACK_MS:
                continue
        found[ordinal] = replica
    return found


def must_be_answered(
    world: World,
    ordinal: int,
    key: bytes,
    before: Mapping[int, object],
    read_request: ReadRequest,
    began: float,
) -> bool:
    """Tell whether one reachable replica could have answered throughout a read of this node."""
    machine, partition = world.machines.get(ordinal), world.topic.partition_of(key)
    if (
        machine is None
        or machine.node is None
        or not world.reachability.connected(CLIENT, machine.host, began)
    ):
        return False
    after = readable_replicas(world, key, read_request, began)
    placement = machine.node.placement
    for other, replica in before.items():
        if after.get(other) is not replica or not world.reachability.connected(
            machine.host, host_of(other), began
        ):
            continue
        if other == ordinal or other in placement.serving[partition]:
            return True
        settled = began - _SETTLING_SECONDS
        hosts = [host_of(o) for o in range(len(world.placement.addresses))]
        if world.reachability.connected(machine.host, PLACER, settled) and all(
            world.reachability.connected(machine.host, host, settled) for host in hosts
        ):
            return True
    return False
